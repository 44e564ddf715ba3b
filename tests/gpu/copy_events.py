#!/usr/bin/env python3
"""Events of collectives that copy engines run, in traces: tests/gpu/copy_events.py --hawser FILE --profiler
FILE

The tool runs all-gathers by copy engines (`NCCL_PASS_SM=1`) with the profiler plugin
(`libnccl-profiler-hawser.so`), a process for each of four ranks. In the trace of each rank every event has an
end, and each collective has what NCCL's have: the ranks get ready, copies run, the ranks are through, one
after the other, within the collective; and with the bytes that its rank has to move. `--host` takes the host
device. Prints a line for each rank; the exit code is 1 if one is wrong."""

import argparse
import collections
import glob
import json
import os
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True

RANKS = 4
# Collectives, messages and calls as NCCL's example has them, and all three kinds of copy engines.
MASK = 1 << 1 | 1 << 8 | 1 << 9 | 1 << 12 | 1 << 13 | 1 << 14
BYTES = 4 << 20
KINDS = ("ce_coll", "ce_sync", "ce_batch")


def main():
    options = arguments()
    if not options.host and not has_gpu():
        print("skipped: needs a GPU (or --host)")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        run(options, folder)
        traces = sorted(glob.glob(os.path.join(folder, "trace-*.json")))
        wrong = [] if len(traces) == RANKS else [f"{len(traces)} traces of {RANKS} ranks"]
        moved = collections.Counter()
        for trace in traces:
            counts, of_trace = judge(json.load(open(trace)), moved)
            print(f"{os.path.basename(trace)}: {counts or 'no copies'}", flush=True)
            wrong += [f"{os.path.basename(trace)}: {text}" for text in of_trace]
        # The part of each rank goes to all others, whoever copies it.
        least = (RANKS - 1) * BYTES
        wrong += [f"{bytes} bytes moved of all-gather {seq}" for seq, bytes in moved.items() if bytes < least]
    print("\n".join(f"WRONG: {text}" for text in wrong) or "all right")
    return int(bool(wrong))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hawser", type=os.path.abspath, required=True)
    parser.add_argument("--profiler", type=os.path.abspath, required=True)
    parser.add_argument("--host", action="store_true")
    return parser.parse_args()


def has_gpu():
    try:
        listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "GPU " in listed.stdout


def run(options, folder):
    env = {
        **os.environ,
        "NCCL_PASS_SM": "1",
        "NCCL_PROFILER_PLUGIN": options.profiler,
        "NCCL_PROFILE_EVENT_MASK": str(MASK),
        "HAWSER_PROFILER_FILE": os.path.join(folder, "trace-%p.json"),
        "NCCL_MULTI_RANK_GPU_ENABLE": "1",
        "CUDA_DEVICE_MAX_CONNECTIONS": "32",
        "HAWSER_OP_TIMEOUT": "60",
    }
    if options.host:
        env["HAWSER_DEVICE"] = "host"
    words = [options.hawser, "perf", "all_gather", "-p", str(RANKS), "-b", str(BYTES), "-e", str(BYTES)]
    subprocess.run(words, env=env, check=True, timeout=300)


def judge(events, moved):
    """The number of events of each kind, and what is wrong with them. Adds what copies moved to `moved`."""
    if isinstance(events, dict):
        events = events["traceEvents"]
    wrong, bars = [], {kind: [] for kind in KINDS}
    begun = {}
    for event in events:
        if event.get("cat") not in KINDS:
            continue
        key = (event["pid"], event["id2"]["local"])
        if event["ph"] == "b":
            begun[key] = event
        elif event["ph"] == "e":
            start = begun.pop(key)
            args = {**start.get("args", {}), **event.get("args", {})}
            bars[start["cat"]].append((start["ts"], event["ts"], args))
    wrong += [f"{event['name']} at {event['ts']} has no end" for event in begun.values()]
    for kind in KINDS:
        bars[kind].sort(key=lambda bar: bar[:2])
    parts = sorted(bars["ce_sync"] + bars["ce_batch"], key=lambda bar: bar[:2])
    for start, end, args in bars["ce_coll"]:
        inside = [part for part in parts if start <= part[0] and part[1] <= end]
        wrong += parts_of(args, inside)
        moved[args.get("seq")] += sum(args["bytes"] for _, _, args in inside if "ops" in args)
    if not bars["ce_coll"]:
        wrong.append("no collective by copy engines")
    if len(bars["ce_sync"]) != 2 * len(bars["ce_coll"]):
        wrong.append(f"{len(bars['ce_sync'])} syncs of {len(bars['ce_coll'])} collectives")
    return ", ".join(f"{len(bars[kind])} {kind}" for kind in KINDS), wrong


def parts_of(collective, parts):
    """What is wrong with the parts of a collective."""
    kinds = ["batch" if "ops" in args else "through" if args["complete"] else "ready" for *_, args in parts]
    # A rank whose peers copy for both has none of its own.
    if kinds[:1] != ["ready"] or kinds[-1:] != ["through"] or set(kinds[1:-1]) - {"batch"}:
        return [f"all-gather {collective.get('seq')} has the parts {kinds}"]
    wrong = [
        f"part {kinds[at + 1]} begins before {kinds[at]} is over"
        for at in range(len(parts) - 1)
        if parts[at + 1][0] < parts[at][1]
    ]
    return wrong


if __name__ == "__main__":
    sys.exit(main())
