#!/usr/bin/env python3
"""Registered buffers between hosts against staged ones: bench/registered.py hawser [--rounds 5] [--ranks 2]

Each rank is a process and a host of its own on the CPU as a device, over TCP on loopback, and copy engines
move (`NCCL_PASS_SM=1`). Three ways take turns in each round: `unstaged` (buffers registered), `asked` (not
registered, receives posted when the stream asks) and `staged` (`NCCL_LOCAL_REGISTER=0`: receives posted into
every free slot, as it was before registered buffers went between hosts). Prints the median time in µs of
`staged`, and of the others over `staged` of the same round the median, least and most.
"""

import argparse
import json
import os
import statistics
import subprocess

WAYS = {"staged": ("0", {"NCCL_LOCAL_REGISTER": "0"}), "asked": ("0", {}), "unstaged": ("1", {})}
TESTS = "sendrecv,all_gather,alltoall,broadcast"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("hawser")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    rounds = [{way: times(options, way) for way in WAYS} for _ in range(options.rounds)]
    print(f"{options.ranks} ranks, {options.rounds} rounds, {os.cpu_count()} processors")
    print(f"{'':12} {'bytes':>9} {'staged µs':>10} {'asked':>18} {'unstaged':>18}")
    for test, size in rounds[0]["staged"]:
        staged = [taken["staged"][test, size] for taken in rounds]
        cells = []
        for way in ("asked", "unstaged"):
            ratios = [taken[way][test, size] / own for taken, own in zip(rounds, staged)]
            cells.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f} {max(ratios):.2f})")
        print(f"{test:12} {size:9} {statistics.median(staged):10.1f} {cells[0]:>18} {cells[1]:>18}")


def times(options, way):
    """µs by test and bytes."""
    registered, settings = WAYS[way]
    ranks = str(options.ranks)
    command = [options.hawser, "perf", TESTS, "-p", ranks, "--hosts", ranks, "-b", "64", "-e", "64M", "-f", "16"]
    command += ["-R", registered, "-w", "5", "-n", "200", "--point-ms", "100", "--skip-in-place", "--json"]
    environment = {**os.environ, "HAWSER_DEVICE": "host", "NCCL_PASS_SM": "1", **settings}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    rows = json.loads(ended.stdout)["results"]
    return {(row["collective"], row["size"]): float(row["out_of_place"]["time"]) for row in rows}


if __name__ == "__main__":
    main()
