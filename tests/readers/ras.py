#!/usr/bin/env python3
"""What readers of RAS that others wrote make of a job: ras.py sglang|ray FILE ADDRESS [POLLS | NCCLRAS]

FILE is `nccl_ras.py` of SGLang (`python/sglang/srt/distributed`; it needs the package msgspec) or of Ray
(`ray/train/v2/_internal/callbacks`, in its wheel too). Everything else of SGLang and Ray is replaced by
stand-ins, so neither has to be installed. Prints what the reader has found as one line of JSON. SGLang's asks
POLLS times and judges all answers together; Ray's runs NVIDIA's client NCCLRAS.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import time
import types
from unittest.mock import MagicMock

sys.dont_write_bytecode = True


def stand_in(name):
    """A class, if it is named as one, which can be inherited from; else something that can be used."""
    is_class = name[0].isupper() and not name.isupper()
    return type(name, (), {}) if is_class else MagicMock(name=name)


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module of these packages, and gives an object that has every name."""

    def __init__(self, packages):
        self.packages = packages

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in self.packages:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__getattr__ = stand_in
        return module

    def exec_module(self, module):
        """There is nothing to run."""


def load(path, packages):
    """The module in a file, whose imports of these packages are stand-ins."""
    sys.meta_path.insert(0, StandIns(packages))
    spec = importlib.util.spec_from_file_location("reader", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["reader"] = module
    spec.loader.exec_module(module)
    return module


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
