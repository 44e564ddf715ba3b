#!/usr/bin/env python3
"""Compares two libnccl.so.2, interleaved, and prints medians, spreads and ratios.

    bench/compare.py --hawser FILE --ours FILE --nccl FILE [--gpus N] [--rounds 5] [--json OUT] [op ...]
    bench/compare.py --bin DIR --ours FILE --nccl FILE ...

FILE of --hawser is the built program, whose `perf --library` runs either library; it measures all operations
in one process, after results of both were checked. DIR holds built nccl-tests binaries (all_reduce_perf,
...), which run one operation per process. Every round runs both libraries, in alternating order, one thread
and one GPU per rank, NVLink multicast off for both. The time is the out-of-place one; wrong results end the
program."""

import argparse
import datetime
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile

ROW = re.compile(r"^\s+(\d+)\s+\d+\s+\S+\s+\S+\s+-?\d+\s+([\d.]+)\s+[\d.]+\s+([\d.]+)\s+(\S+)")
SIDES = ("ours", "nccl")
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
BANDS = ((1 << 16, "to 64K"), (1 << 20, "to 1M"), (16 << 20, "to 16M"), (math.inf, "above"))


def main():
    args = options()
    libraries = {"ours": args.ours, "nccl": args.nccl}
    about = {
        "gpus": args.gpus,
        "rounds": args.rounds,
        "graph": args.graph,
        "date": datetime.date.today().isoformat(),
    }
    times, facts = {}, {}
    if args.hawser:
        for side in SIDES:
            check(args, libraries[side])
    for number in range(args.rounds):
        for side in SIDES if number % 2 == 0 else SIDES[::-1]:
            rows, fact = (
                by_hawser(args, libraries[side]) if args.hawser else by_nccl_tests(args, libraries[side])
            )
            for op, size, us, busbw in rows:
                times.setdefault((op, size), {name: [] for name in SIDES})[side].append(
                    (round(us, 3), round(busbw, 4))
                )
            if fact:
                facts.setdefault("init_ms", {}).setdefault(side, []).append(round(fact.pop("init_ms"), 3))
                facts.setdefault("libraries", {})[side] = fact.pop("version")
                facts.update(fact)
            print(
                f"round {number + 1} of {args.rounds}, {side}: {len(rows)} points",
                file=sys.stderr,
                flush=True,
            )
    report(times, facts)
    if args.json:
        rows = [{"op": op, "bytes": size, **sides} for (op, size), sides in times.items()]
        with open(args.json, "w") as out:
            out.write(document({**about, **facts, "driver": driver()}, rows))


def options():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    program = parser.add_mutually_exclusive_group(required=True)
    program.add_argument("--hawser", help="the built hawser")
    program.add_argument("--bin", help="folder of nccl-tests' programs")
    parser.add_argument("--ours", required=True)
    parser.add_argument("--nccl", required=True)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", default="8:1G:8", help="first:last:factor")
    parser.add_argument("--iters", default="50")
    parser.add_argument("--warmup", default="10")
    parser.add_argument(
        "--point-ms", help="with --hawser: fewer iterations where a measurement takes longer than this"
    )
    parser.add_argument(
        "--graph", type=int, default=0, help="launches of a CUDA graph of all iterations; 0 = no graph"
    )
    parser.add_argument("--timeout", type=int, default=300, help="seconds that one process may take")
    parser.add_argument("--json")
    parser.add_argument(
        "ops",
        nargs="*",
        default=["all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv", "broadcast"],
    )
    args = parser.parse_args()
    for side, path in (("ours", args.ours), ("nccl", args.nccl)):
        if not os.path.isfile(path):
            parser.error(f"--{side}: there is no file {path}")
    if args.sizes.count(":") != 2 or args.rounds < 1:
        parser.error("--sizes is first:last:factor, e.g. 8:1G:2; --rounds is at least 1")
    return args


def check(args, library):
    """A few sizes up to 1 MiB with every result compared; a wrong one ends the program."""
    first, last, _ = args.sizes.split(":")
    last = min(number(last), max(1 << 20, number(first)))
    perf(args, library, ["-b", first, "-e", str(last), "-f", "32", "-n", "1", "-c", "1"])


def by_hawser(args, library):
    first, last, factor = args.sizes.split(":")
    more = [
        "-b",
        first,
        "-e",
        last,
        "-f",
        factor,
        "-n",
        args.iters,
        "-w",
        args.warmup,
        "-c",
        "0",
        "--skip-in-place",
    ]
    more += ["--point-ms", args.point_ms] if args.point_ms else []
    data = perf(args, library, more + ["-G", str(args.graph)])
    rows = [
        (row["collective"], row["size"], row["out_of_place"]["time"], row["out_of_place"]["bus_bw"])
        for row in data["results"]
        if row["size"] > 0
    ]
    config = data["config"]
    devices = sorted({line.split("] ", 1)[-1] for line in config["devices"]})
    facts = {
        "init_ms": config["init_ms"],
        "version": config["library"]["version"],
        "devices": ", ".join(devices),
    }
    return rows, facts


def perf(args, library, more):
    """The JSON of one run of `hawser perf` with all operations."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.json")
        command = [args.hawser, "perf", ",".join(args.ops), "--library", os.path.abspath(library)]
        command += [
            "-t",
            str(args.gpus),
            "-g",
            "1",
            "-T",
            str(max(args.timeout - 10, 1)),
            "-J",
            out,
            *more,
        ]
        run(args, command, {})
        with open(out) as file:
            return json.load(file)


def by_nccl_tests(args, library):
    first, last, factor = args.sizes.split(":")
    rows = []
    for op in args.ops:
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(os.path.abspath(library), os.path.join(folder, "libnccl.so.2"))
            command = [os.path.join(args.bin, f"{op}_perf"), "-b", first, "-e", last, "-f", factor]
            command += [
                "-t",
                str(args.gpus),
                "-g",
                "1",
                "-n",
                args.iters,
                "-w",
                args.warmup,
                "-G",
                str(args.graph),
            ]
            text = run(args, command, {"LD_LIBRARY_PATH": folder})
        found = [match.groups() for match in map(ROW.match, text.splitlines()) if match]
        if not found or any(wrong not in ("0", "N/A") for *_, wrong in found):
            sys.exit(f"{op} with {library} gave wrong results or none:\n{text[-2000:]}")
        rows += [(op, int(size), float(us), float(busbw)) for size, us, busbw, _ in found if int(size) > 0]
    return rows, {}


def run(args, command, env):
    """Standard output of a command that must succeed in time."""
    env = {**os.environ, "NCCL_NVLS_ENABLE": "0", **env}
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=args.timeout)
    except subprocess.TimeoutExpired:
        sys.exit(f"{' '.join(command)} took longer than {args.timeout} s; --timeout sets this limit")
    except OSError as error:
        sys.exit(f"{command[0]} cannot be run: {error}")
    if done.returncode != 0:
        sys.exit(
            f"{' '.join(command)} failed (exit {done.returncode}):\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return done.stdout


def report(times, facts):
    for op in dict.fromkeys(op for op, _ in times):
        rows = [
            (size, [summary(sides[side]) for side in SIDES])
            for (name, size), sides in times.items()
            if name == op
        ]
        print(
            f"\n{op:15} {'ours us':>10} {'spread':>7} {'nccl us':>10} {'spread':>7} {'time ratio':>10} {'busbw ours':>10} {'nccl':>7}"
        )
        for size, (ours, nccl) in rows:
            print(
                f"{size:>15} {ours[0]:>10.2f} {ours[1]:>6.0%} {nccl[0]:>10.2f} {nccl[1]:>6.0%} {ours[0] / nccl[0]:>10.2f} {ours[2]:>10.1f} {nccl[2]:>7.1f}"
            )
        print(f"{'worst ratio':>15} {worst(rows)}")
    if "init_ms" in facts:
        print(
            "\ncommunicators made in "
            + ", ".join(f"{side} {statistics.median(facts['init_ms'][side]):.0f} ms" for side in SIDES)
        )


def worst(rows):
    """The largest ratio of each band of sizes."""
    texts, low = [], 0
    for high, name in BANDS:
        ratios = [ours[0] / nccl[0] for size, (ours, nccl) in rows if low < size <= high]
        texts += [f"{name}: {max(ratios):.2f}"] if ratios else []
        low = high
    return ", ".join(texts)


def summary(runs):
    us = [run[0] for run in runs]
    median = statistics.median(us)
    return median, (max(us) - min(us)) / median, statistics.median(run[1] for run in runs)


def document(about, rows):
    """JSON with one line per row, so that changes can be read."""
    head = json.dumps(about, indent=1)[:-2]
    return head + ',\n "rows": [\n' + ",\n".join("  " + json.dumps(row) for row in rows) + "\n ]\n}\n"


def driver():
    """Version of NVIDIA's driver, if there is one."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.split("\n")[0]
    except (OSError, subprocess.TimeoutExpired):
        return ""


def number(size):
    return int(size[:-1]) * UNITS[size[-1].upper()] if size[-1].upper() in UNITS else int(size)


if __name__ == "__main__":
    main()
