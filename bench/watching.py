#!/usr/bin/env python3
"""Measures what watching costs: bench/watching.py HAWSER PLUGIN [--sizes 1K,64K] [--rounds 21] [-- PERF'S]

HAWSER is the program `hawser`, PLUGIN libnccl-profiler-hawser.so of the same build. `hawser perf all_reduce`
runs without a profiler, without one again (which shows the noise), with one that counts, and with a trace, in
turns; the one that begins changes from round to round. Prints medians of the rounds in microseconds, the
smallest and largest, and the median of the rounds' ratios to the first. Words behind `--` go to perf, such as
`-t 2` or `-p 2`.

`--words LIBRARY --unwatched LIBRARY` measure that build of libnccl.so.2 instead of the one in HAWSER, and one
more side, the second build without a profiler: one with the feature `unwatched` of core/runtime, without
progress words, so that all ratios come out of one run."""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

# The name, whether a profiler watches, and what its trace is.
SIDES = (
    ("no profiler", None),
    ("no profiler again", None),
    ("counting", "none"),
    ("a trace", "trace-%p.json"),
)
UNWATCHED = ("no words", None)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("hawser", type=pathlib.Path)
    parser.add_argument("plugin", type=pathlib.Path)
    parser.add_argument("--sizes", default="1K,64K")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--iters", type=int, default=20000)
    parser.add_argument("--words", type=pathlib.Path)
    parser.add_argument("--unwatched", type=pathlib.Path)
    words = sys.argv[1:]
    own = words.index("--") if "--" in words else len(words)
    given = parser.parse_args(words[:own])
    given.rest = words[own + 1 :]
    sizes, sides = given.sizes.split(","), SIDES + ((UNWATCHED,) if given.unwatched else ())
    times = {(size, side): [] for size in sizes for side in sides}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(given.rounds):
            for size in sizes:
                for at in range(len(sides)):
                    side = sides[(at + turn) % len(sides)]
                    times[size, side].append(measure(given, size, side, folder))
    for size in sizes:
        for side in sides:
            us, first = times[size, side], times[size, sides[0]]
            ratio = statistics.median(ours / theirs for ours, theirs in zip(us, first))
            spread = f"({min(us):.3f} to {max(us):.3f})"
            print(f"{size:>5}  {statistics.median(us):9.3f} us {spread:22}  x{ratio:.3f}  {side[0]}")


def measure(given, size, side, folder):
    """The time of an all-reduce out of place, in microseconds."""
    env = {**os.environ, "NCCL_PROFILER_PLUGIN": "none"}
    trace, library = side[1], given.unwatched if side == UNWATCHED else given.words
    if trace:
        env.update(NCCL_PROFILER_PLUGIN=str(given.plugin.resolve()))
        env.update(HAWSER_PROFILER_FILE=trace if trace == "none" else f"{folder}/{trace}")
    words = f"perf all_reduce -b {size} -e {size} -n {given.iters} -w 200 -c 0 --skip-in-place --json".split()
    words += ["--library", str(library.resolve())] if library else []
    words = [given.hawser.resolve(), *words, *given.rest]
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"watching.py: {done.stderr.strip()}")
    for trace in pathlib.Path(folder).iterdir():
        trace.unlink()
    return json.loads(done.stdout)["results"][0]["out_of_place"]["time"]


if __name__ == "__main__":
    main()
