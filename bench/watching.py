#!/usr/bin/env python3
"""Measures what a trace costs: bench/watching.py HAWSER PLUGIN [--sizes 1K,64K] [--rounds 21] [-- WORDS OF PERF]

HAWSER is the program `hawser`, PLUGIN libnccl-profiler-hawser.so of the same build. `hawser perf all_reduce` runs
without a profiler, without one again (which shows the noise), and with a trace, in turns; the one that begins
changes from round to round. Prints medians of the rounds in microseconds, the smallest and largest, and the
median of the rounds' ratios to the first. Words behind `--` go to perf, such as `-t 2` or `-p 2`."""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

SIDES = ("no profiler", "no profiler again", "a trace")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("hawser", type=pathlib.Path)
    parser.add_argument("plugin", type=pathlib.Path)
    parser.add_argument("--sizes", default="1K,64K")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--iters", type=int, default=20000)
    words = sys.argv[1:]
    own = words.index("--") if "--" in words else len(words)
    given = parser.parse_args(words[:own])
    given.words = words[own + 1 :]
    sizes = given.sizes.split(",")
    times = {(size, side): [] for size in sizes for side in SIDES}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(given.rounds):
            for size in sizes:
                for at in range(len(SIDES)):
                    side = SIDES[(at + turn) % len(SIDES)]
                    times[size, side].append(measure(given, size, side, folder))
    for size in sizes:
        for side in SIDES:
            us, first = times[size, side], times[size, SIDES[0]]
            ratio = statistics.median(ours / theirs for ours, theirs in zip(us, first))
            spread = f"({min(us):.3f} to {max(us):.3f})"
            print(f"{size:>5}  {statistics.median(us):9.3f} us {spread:22}  x{ratio:.3f}  {side}")


def measure(given, size, side, folder):
    """The time of an all-reduce out of place, in microseconds."""
    env = {**os.environ, "NCCL_PROFILER_PLUGIN": "none"}
    if side == SIDES[2]:
        env.update(NCCL_PROFILER_PLUGIN=str(given.plugin.resolve()))
        env.update(HAWSER_PROFILER_FILE=f"{folder}/trace-%p.json")
    words = f"perf all_reduce -b {size} -e {size} -n {given.iters} -w 200 -c 0 --skip-in-place --json".split()
    done = subprocess.run([given.hawser, *words, *given.words], env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"watching.py: {done.stderr.strip()}")
    for trace in pathlib.Path(folder).iterdir():
        trace.unlink()
    return json.loads(done.stdout)["results"][0]["out_of_place"]["time"]


if __name__ == "__main__":
    main()
