#!/usr/bin/env python3
"""Compares two libnccl.so.2 with nccl-tests, interleaved, and prints medians, spreads and ratios.

    bench/compare.py --bin DIR --ours FILE --nccl FILE [--gpus N] [--rounds 5] [--json OUT] [op ...]

DIR holds built nccl-tests binaries (all_reduce_perf, ...). Every round runs both libraries for every
operation, one thread and one GPU per rank, NVLink multicast off for both. The time is the out-of-place
column; a row with wrong results ends the program.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

ROW = re.compile(r"^\s+(\d+)\s+\d+\s+\S+\s+\S+\s+-?\d+\s+([\d.]+)\s+[\d.]+\s+([\d.]+)\s+(\S+)")


def main():
    args = options()
    times = {}
    for _ in range(args.rounds):
        for op in args.ops:
            for name, library in (("ours", args.ours), ("nccl", args.nccl)):
                for size, us, busbw in measure(args, op, library):
                    times.setdefault((op, size), {}).setdefault(name, []).append((us, busbw))
    report(times)
    if args.json:
        rows = [{"op": op, "bytes": size, **sides} for (op, size), sides in times.items()]
        with open(args.json, "w") as out:
            json.dump({"gpus": args.gpus, "rounds": args.rounds, "rows": rows}, out, indent=1)


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--ours", required=True)
    parser.add_argument("--nccl", required=True)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", default="8:1G:8", help="first:last:factor")
    parser.add_argument("--iters", default="50")
    parser.add_argument("--timeout", type=int, default=120)
    parser.add_argument("--json")
    parser.add_argument("ops", nargs="*", default=["all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv", "broadcast"])
    return parser.parse_args()


def measure(args, op, library):
    first, last, factor = args.sizes.split(":")
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(os.path.abspath(library), os.path.join(folder, "libnccl.so.2"))
        env = dict(os.environ, LD_LIBRARY_PATH=folder, NCCL_NVLS_ENABLE="0")
        command = [os.path.join(args.bin, f"{op}_perf"), "-b", first, "-e", last, "-f", factor]
        command += ["-t", str(args.gpus), "-g", "1", "-n", args.iters, "-w", "10"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=args.timeout)
    rows = [m.groups() for m in map(ROW.match, done.stdout.splitlines()) if m]
    if done.returncode != 0 or not rows or any(wrong != "0" for *_, wrong in rows):
        sys.exit(f"{op} with {library} failed (exit {done.returncode}):\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return [(int(size), float(us), float(busbw)) for size, us, busbw, _ in rows if int(size) > 0]


def report(times):
    print(f"{'operation':15} {'bytes':>11} {'ours us':>10} {'spread':>7} {'nccl us':>10} {'spread':>7} {'time ratio':>10} {'busbw ours':>10} {'nccl':>7}")
    for (op, size), sides in times.items():
        ours, nccl = (summary(sides[name]) for name in ("ours", "nccl"))
        print(f"{op:15} {size:>11} {ours[0]:>10.2f} {ours[1]:>6.0%} {nccl[0]:>10.2f} {nccl[1]:>6.0%} {ours[0] / nccl[0]:>10.2f} {ours[2]:>10.1f} {nccl[2]:>7.1f}")


def summary(runs):
    us = [run[0] for run in runs]
    median = statistics.median(us)
    return median, (max(us) - min(us)) / median, statistics.median(run[1] for run in runs)


if __name__ == "__main__":
    main()
