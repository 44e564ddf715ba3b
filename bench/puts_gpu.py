#!/usr/bin/env python3
"""What puts between the GPUs of a host take: bench/puts_gpu.py LIBRARY [LIBRARY...] [--rounds 9] [--steps 200]

Two ranks, a process and a GPU for each (they share one where there is no other), with windows of `ncclMemAlloc`.
A step is a put and a wait for the other rank's, which answers with a put of its own; the steps of a round are on
the streams before the first is over. Libraries take turns. Printed are, for each size, the medians of the rounds
in µs, with the smallest and the largest: of half a step on the GPU, and of the time in which the calling thread
was busy for one put and one wait."""

import argparse
import ctypes
import os
import statistics
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "gpu"))
sys.dont_write_bytecode = True

import processes
import rma

SIZES = [8, 4 << 10, 64 << 10, 1 << 20, 4 << 20]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("libraries", nargs="+", type=os.path.abspath)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    for word in ("--phase", "--identity"):
        parser.add_argument(word, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.library, options.memory, options.ranks = options.libraries[0], "ncclMemAlloc", 2
    if options.child is not None:
        return Timer(options).run()
    figures = {library: {} for library in options.libraries}
    for number in range(options.rounds):
        for library in options.libraries[:: -1 if number % 2 else 1]:
            options.library = library
            for size, *pair in one_round(options):
                figures[library].setdefault(size, []).append(pair)
    for library, sizes in figures.items():
        for size, pairs in sizes.items():
            on_gpu, on_host = ([pair[at] for pair in pairs] for at in (0, 1))
            print(f"{library} {size:8.0f} bytes: {spread(on_gpu)} us, host {spread(on_host)} us")
    return 0


def spread(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def one_round(options):
    """By size: the time of half a step, and that of the host."""
    words = ["--steps", str(options.steps)]
    with tempfile.TemporaryDirectory() as folder:
        ranks = [processes.start(options, rank, "time", folder, words=words) for rank in range(2)]
        texts = [rank.communicate(timeout=120)[0].decode(errors="replace") for rank in ranks]
    lines = [line for line in texts[0].splitlines() if line.startswith("took ")]
    if len(lines) != len(SIZES) or any(rank.returncode for rank in ranks):
        sys.exit(f"a round failed: {texts}")
    return [[float(word) for word in line.split()[1:]] for line in lines]


class Timer(rma.Putter):
    """A rank whose puts are timed."""

    def time(self):
        for size in SIZES:
            self.steps(size, 10)
            self.meet()
            began = time.perf_counter()
            called = self.steps(size, self.options.steps)
            whole = time.perf_counter() - began
            of_one = 1e6 / self.options.steps
            print(f"took {size} {whole * of_one / 2} {called * of_one}", flush=True)
            self.meet()

    def steps(self, size, count):
        """The time in which the calling thread was busy."""
        peer, began = 1 - self.rank, time.perf_counter()
        for _ in range(count):
            if self.rank == 0:
                self.put_to(peer, size // 4)
                self.wait_for([peer])
            else:
                self.wait_for([peer])
                self.put_to(peer, size // 4)
        called = time.perf_counter() - began
        self.settle()
        return called


if __name__ == "__main__":
    sys.exit(main())
