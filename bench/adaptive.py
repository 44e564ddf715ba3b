#!/usr/bin/env python3
"""Adaptive mode from random floors, beside fixed rules in the same minutes, on the host device.

    bench/adaptive.py target/release/hawser --ranks 4 --cpus 2 --size 64K --starts 10 --seconds 300 \\
        --out bench/results/adaptive-host.txt

First every way runs alone for some seconds, all at once, each on processors of its own; the fastest is "best".
Then each start draws a floor and runs four jobs at once, again on processors of their own: adaptive mode over
that floor, the floor as a fixed rule, no rules at all, and best as a fixed rule. Which job gets which
processors changes from start to start, since processors differ. Prints for each start the time of an operation
in the last third (adaptive, plain, best), the mean over everything against the floor's, and what adaptive mode
ended with."""

import argparse
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time

WAYS = ["ring", "double_ring", "tree", "all_pairs", "halving_doubling", "recursive_doubling", "one_shot", "knomial"]
CHANGE = re.compile(r"adaptive mode of communicator \S+: (from collective \d+ on: .*)")
INSTEAD = re.compile(r": (\w+)/\S+ instead of ")


class Job:
    """A hawser perf that runs until it is told to end; its rows are kept with the time they came."""

    def __init__(self, options, cpus, rules):
        self.folder = tempfile.TemporaryDirectory()
        path = os.path.join(self.folder.name, "rules.toml")
        with open(path, "w") as file:
            file.write(rules)
        environment = dict(os.environ, HAWSER_DEVICE="host", NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="TUNING")
        environment["HAWSER_RULES"] = path
        command = [options.hawser, "perf", "all_reduce", "-t", str(options.ranks)]
        command += ["-b", options.size, "-e", options.size, "-n", "1000", "-N", "1000000", "-c", "0"]
        command = ["taskset", "-c", ",".join(map(str, cpus))] + command
        self.rows, self.changes = [], []
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            words = line.split()
            if change := CHANGE.search(line):
                self.changes.append(change[1])
            elif len(words) > 10 and words[0].isdigit() and words[2] == "float":
                self.rows.append((float(words[5]) + float(words[9])) / 2)

    def end(self):
        self.process.terminate()
        self.process.wait()
        self.reader.join()
        self.folder.cleanup()
        return self

    def mean(self):
        return statistics.fmean(self.rows) if self.rows else float("nan")

    def last_third(self):
        return statistics.median(self.rows[-max(len(self.rows) // 3, 1) :]) if self.rows else float("nan")

    def way(self, floor):
        """What it ended with, and whether stress held it on the floor then."""
        for change in reversed(self.changes):
            if "the floor counts until" in change:
                return floor + " (stress)"
            if "any more" in change:
                return floor
            if found := INSTEAD.search(change):
                return found[1]
        return floor


def rule(way):
    return f'[[rule]]\nuse = [{{ algorithm = "{way}" }}]\n'


def together(options, texts, turn, seconds):
    """Jobs with these rules at once; which processors each has depends on the turn."""
    places = [(at + turn) % len(texts) for at in range(len(texts))]
    sets = [range(place * options.cpus, (place + 1) * options.cpus) for place in places]
    jobs = [Job(options, cpus, text) for cpus, text in zip(sets, texts)]
    time.sleep(seconds)
    return [job.end() for job in jobs]


def main():
    options = parse()
    draw = random.Random(options.seed)
    out = open(options.out, "w") if options.out else None

    def say(text):
        print(text, flush=True)
        if out:
            print(text, file=out, flush=True)

    say("command: bench/adaptive.py " + " ".join(sys.argv[1:]))
    ways = {}
    most = max(os.cpu_count() // options.cpus, 1)
    for first in range(0, len(WAYS), most):
        some = WAYS[first : first + most]
        turns = [together(options, [rule(way) for way in some], turn, options.each) for turn in (0, len(some) // 2)]
        for at, way in enumerate(some):
            ways[way] = statistics.fmean(jobs[at].last_third() for jobs in turns)
    best = min(ways, key=ways.get)
    say("fixed rules, µs: " + ", ".join(f"{way} {us:.0f}" for way, us in sorted(ways.items(), key=lambda i: i[1])))
    say(f"{'start: floor':22}{'adaptive':>9}{'plain':>9}{best:>12}{'to best':>9}{'all/floor':>11}  ends with")
    shares = []
    for start in range(options.starts):
        floor = draw.choice(WAYS)
        texts = [f'mode = "adaptive"\nbudget = {options.budget}\n' + rule(floor), rule(floor), "", rule(best)]
        adaptive, fixed, plain, other = together(options, texts, start, options.seconds)
        end, share = adaptive.last_third(), adaptive.last_third() / other.last_third()
        shares.append(share)
        say(
            f"{start:2} {floor:19}{end:9.0f}{plain.last_third():9.0f}{other.last_third():12.0f}{share:9.2f}"
            f"{adaptive.mean() / fixed.mean():11.2f}  {adaptive.way(floor)}, {len(adaptive.changes)} changes"
        )
        if options.changes:
            for change in adaptive.changes:
                say("      " + change[:200])
    say(f"to best, median of starts: {statistics.median(shares):.3f}")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hawser")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--cpus", type=int, default=2, help="processors of each job")
    parser.add_argument("--size", default="64K")
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--each", type=float, default=10, help="seconds for each way by itself")
    parser.add_argument("--budget", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--changes", action="store_true", help="print each change of adaptive mode")
    parser.add_argument("--out")
    return parser.parse_args()


if __name__ == "__main__":
    main()
