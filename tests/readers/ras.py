#!/usr/bin/env python3
"""What readers of RAS that others wrote make of a job: ras.py sglang|ray FILE ADDRESS [POLLS | NCCLRAS]

FILE is `nccl_ras.py` of SGLang (`python/sglang/srt/distributed`; it needs the package msgspec) or of Ray
(`ray/train/v2/_internal/callbacks`, in its wheel too). Everything else of SGLang and Ray is replaced by
stand-ins, so neither has to be installed. Prints what the reader has found as one line of JSON. SGLang's asks
POLLS times and judges all answers together; Ray's runs NVIDIA's client NCCLRAS.
"""

import json
import os
import sys
import time

sys.dont_write_bytecode = True

from stand_ins import load


def sglang(path, address, polls):
    """Asks so many times, half a second apart, and returns the last of the detector's findings."""
    reader = load(path, ["sglang"])
    client, detector = reader.RasSocketClient.from_endpoint(address), reader.RasDetector(stuck_polls=2)
    for poll in range(polls):
        time.sleep(0.5 if poll else 0)
        status = client.poll_status()
        found = detector.evaluate(status, time.time())
    ranks = [comm.ranks for comm in status.communicators] if status else []
    return {
        "answered": found.poll_success,
        "state": found.worst_state.name,
        "ranks": sum(map(len, ranks)),
        "unresponsive": found.total_unresponsive,
        "dead": found.total_dead,
        "divergence": [comm.divergence for comm in found.per_comm.values()],
        "fresh": found.last_collection_age_sec is not None,
    }


def ray(path, address, client):
    """Runs NVIDIA's client as Ray does, and returns what Ray's parser makes of its answer."""
    os.environ["NCCL_RAS_ADDR"] = address
    reader = load(path, ["ray"])
    # What Ray's constants say; a stand-in is no name of a variable.
    reader.NCCL_RAS_ADDR_ENV_VAR = "NCCL_RAS_ADDR"
    answer = reader.run_ncclras(client, 20)
    if not answer["ok"]:
        return {"error": answer}
    report = reader.parse_ras_schema(answer["stdout"])
    if report is None:
        return {"error": answer["stdout"]}
    return {
        "healthy": report.healthy,
        "mismatched": len(report.mismatched_comms),
        "skews": list(report.comm_op_skews.values()),
        "states": [sorted(ranks.values()) for ranks in report.comm_rank_status.values()],
    }


def main():
    name, path, address, *more = sys.argv[1:]
    if name == "sglang":
        found = sglang(path, address, int(more[0]) if more else 1)
    else:
        found = ray(path, address, more[0])
    print(json.dumps(found))


main()
