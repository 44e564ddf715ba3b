#!/usr/bin/env python3
"""What checksums and encryption cost between hosts: `hawser perf` with each of them, in turns.

    bench/wire.py HAWSER [BEFORE] [--rounds 5] [--op all_reduce] [--ranks 2] [--json OUT]

HAWSER is the built program, BEFORE one that has neither, for the cost of not using them. Each round runs
`perf OP -p RANKS --hosts RANKS` on the host device with every protection, one after the other, rounds in
alternating order; wrong results end the program. Printed are medians of the rounds and their range."""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys

ROW = re.compile(r"^\s+(\d+)\s+\d+\s+\S+\s+\S+\s+-?\d+\s+([\d.]+)\s+[\d.]+\s+[\d.]+\s+(\S+)")
KINDS = {
    "before": {},
    "plain": {},
    "checksum": {"HAWSER_CHECKSUM": "1"},
    "encrypt": {"HAWSER_WIRE": "encrypt"},
    "both": {"HAWSER_CHECKSUM": "1", "HAWSER_WIRE": "encrypt"},
}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("hawser")
    parser.add_argument("before", nargs="?")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--op", default="all_reduce")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--json")
    args = parser.parse_args()
    kinds = [kind for kind in KINDS if kind != "before" or args.before]
    times = {}
    for number in range(args.rounds):
        for kind in kinds if number % 2 == 0 else kinds[::-1]:
            for size, us in run(args, kind):
                times.setdefault(size, {name: [] for name in kinds})[kind].append(us)
            print(f"round {number + 1} of {args.rounds}: {kind}", file=sys.stderr, flush=True)
    print(f"| bytes | {' | '.join(kinds)} |")
    print("|---" * (len(kinds) + 1) + "|")
    for size, of in times.items():
        print(f"| {size} | {' | '.join(text(of[kind]) for kind in kinds)} |")
    if args.json:
        facts = {"op": args.op, "ranks": args.ranks, "rounds": args.rounds, "unit": "us", "times": times}
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(facts, file, indent=1)
            file.write("\n")


def run(args, kind):
    """Sizes and times of one run."""
    program = args.before if kind == "before" else args.hawser
    ranks = str(args.ranks)
    command = [program, "perf", args.op, "-p", ranks, "--hosts", ranks, "-b", "8", "-e", "64M", "-f", "2"]
    environment = {**os.environ, "HAWSER_DEVICE": "host", **KINDS[kind]}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    rows = [ROW.match(line) for line in done.stdout.splitlines()]
    found = [(int(row[1]), float(row[2])) for row in rows if row]
    if done.returncode != 0 or not found:
        sys.exit(f"{' '.join(command)} with {KINDS[kind]}: {done.stdout}{done.stderr}")
    return found


def text(us):
    """The median and the range."""
    return f"{statistics.median(us):.1f} ({min(us):.1f} to {max(us):.1f})"


if __name__ == "__main__":
    main()
