#!/usr/bin/env python3
"""Adaptive mode from random floors, beside fixed rules in the same minutes, on the host device.

    bench/adaptive.py target/release/hawser --ranks 4 --cpus 2 --size 64K --starts 10 --parallel 10 --seconds 300 \\
        --out bench/results/adaptive-host.txt --json adaptive.json

First every way runs alone for some seconds; the fastest is "best". Then rounds of --parallel starts follow. Each start
draws a floor and runs adaptive mode over it; in the same seconds run each of these floors as a fixed rule, no rules at
all, best as a fixed rule, and, where processors are left, best --twins times more. Those run the same, so what they
differ by is what the machine does by itself, and their median is what "to best" compares with. Every job has
processors of its own (whole cores, sched_setaffinity), and all jobs move on to the next ones every --turn seconds,
since processors differ. --first and --until run some of the starts, so that several calls make the ten. Prints for
each start the time of an operation in the last third (adaptive, plain, the median, least and most of best), everything
adaptive mode ran against all of its floor, the worst minute of that, and what it ended with."""

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time

WAYS = [
    "ring",
    "double_ring",
    "tree",
    "all_pairs",
    "halving_doubling",
    "recursive_doubling",
    "one_shot",
    "knomial",
]
CHANGE = re.compile(r"adaptive mode of communicator \S+: (from collective \d+ on: .*)")
INSTEAD = re.compile(r": (\w+)/\S+ instead of ")
PLAIN = "plain"


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
        self.rows, self.changes, self.last_line = [], [], ""
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, cpus),
        )
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            words = line.split()
            if change := CHANGE.search(line):
                self.changes.append(change[1])
            elif len(words) > 10 and words[0].isdigit() and words[2] == "float":
                self.rows.append((time.monotonic() - self.began, (float(words[5]) + float(words[9])) / 2))
            self.last_line = line.strip() or self.last_line

    def move(self, cpus):
        """All threads go to these processors; one that has ended meanwhile is no fault."""
        try:
            for thread in os.listdir(f"/proc/{self.process.pid}/task"):
                os.sched_setaffinity(int(thread), cpus)
        except (ProcessLookupError, FileNotFoundError):
            pass

    def end(self):
        ended = self.process.poll()
        self.process.terminate()
        self.process.wait()
        self.reader.join()
        self.folder.cleanup()
        if ended is not None or not self.rows:
            sys.exit(f"a job ended by itself, or has no rows: {self.last_line}")
        return self

    def mean(self, first=0, last=float("inf")):
        """Mean time of the operations between two moments, in seconds from the start; None without any."""
        some = [us for at, us in self.rows if first <= at < last]
        return statistics.fmean(some) if some else None

    def last_third(self):
        return statistics.median(us for _, us in self.rows[-max(len(self.rows) // 3, 1) :])

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


def slots(each):
    """Sets of `each` processors that this process may use, those of one core together."""
    allowed = os.sched_getaffinity(0)

    def core(cpu):
        try:
            with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") as file:
                return int(re.split("[-,]", file.read())[0])
        except (OSError, ValueError):
            return cpu

    order = sorted(allowed, key=lambda cpu: (core(cpu), cpu))
    return [set(order[at : at + each]) for at in range(0, len(order) - each + 1, each)]


def together(options, texts, seconds):
    """Jobs with these rules at once, by name; they take turns on all processors."""
    places = slots(options.cpus)
    everywhere = set().union(*places)
    if len(places) > len(texts):
        os.sched_setaffinity(0, places.pop())
    jobs = {name: Job(options, places[at], text) for at, (name, text) in enumerate(texts.items())}
    end, turn = time.monotonic() + seconds, 0
    # Every job should come to every place.
    each = min(options.turn, seconds / len(places)) if options.turn else seconds
    while (rest := end - time.monotonic()) > 0:
        time.sleep(min(rest, each))
        turn += 1
        for at, job in enumerate(jobs.values()):
            if options.turn:
                job.move(places[(at + turn) % len(places)])
    for job in jobs.values():
        job.end()
    os.sched_setaffinity(0, everywhere)
    return jobs


def fixed_rules(options):
    """The time of an operation by each way alone."""
    most, times = len(slots(options.cpus)), {}
    for first in range(0, len(WAYS), most):
        texts = {way: rule(way) for way in WAYS[first : first + most]}
        times |= {way: job.last_third() for way, job in together(options, texts, options.each).items()}
    return times


def rounds(options, best):
    """For each round the numbers of its starts, each with its floor: as many floors as there is room for."""
    draw, left = random.Random(options.seed), len(slots(options.cpus)) - options.parallel - 2
    if left < 1:
        sys.exit(
            f"--parallel {options.parallel} needs {(options.parallel + 3) * options.cpus} processors: one job for "
            "each start, its floor, a plain run and the best way"
        )
    for first in range(0, options.starts, options.parallel):
        floors = draw.sample([way for way in WAYS if way != best], min(left, len(WAYS) - 1)) + [best]
        numbers = range(first, min(first + options.parallel, options.starts))
        drawn = {number: draw.choice(floors) for number in numbers}
        some = {number: floor for number, floor in drawn.items() if options.first <= number < options.until}
        if some:
            yield some


def run_round(options, floors, best):
    """One row for each start of a round."""
    texts = {
        start: f'mode = "adaptive"\nbudget = {options.budget}\n' + rule(way) for start, way in floors.items()
    }
    texts |= {way: rule(way) for way in dict.fromkeys([*floors.values(), best])}
    texts[PLAIN] = ""
    left = max(len(slots(options.cpus)) - len(texts), 0)
    twins = [f"twin {number}" for number in range(min(options.twins, left))]
    texts |= dict.fromkeys(twins, rule(best))
    jobs = together(options, texts, options.seconds)
    alike = [jobs[name].last_third() for name in [best, *twins]]
    for start, floor in floors.items():
        adaptive, fixed = jobs[start], jobs[floor]
        end, minutes = adaptive.last_third(), []
        for at in range(0, int(options.seconds), 60):
            ours, theirs = adaptive.mean(at, at + 60), fixed.mean(at, at + 60)
            minutes.append(round(ours / theirs, 4) if ours and theirs else None)
        yield {
            "start": start,
            "floor": floor,
            "adaptive": end,
            "plain": jobs[PLAIN].last_third(),
            "best": statistics.median(alike),
            "alike": alike,
            "to_best": end / statistics.median(alike),
            "to_floor": adaptive.mean() / fixed.mean(),
            "minutes_to_floor": minutes,
            "ends_with": adaptive.way(floor),
            "changes": adaptive.changes,
        }


def line(row):
    alike = f"{min(row['alike']):.0f}-{max(row['alike']):.0f}"
    worst = max((minute for minute in row["minutes_to_floor"] if minute), default=float("nan"))
    return (
        f"{row['start']:2} {row['floor']:19}{row['adaptive']:9.0f}{row['plain']:9.0f}{row['best']:9.0f}{alike:>8}"
        f"{row['to_best']:9.3f}{row['to_floor']:11.3f}{worst:9.3f}  {row['ends_with']}, {len(row['changes'])} changes"
    )


def main():
    options = parse()
    out = open(options.out, "w") if options.out else None

    def say(text):
        print(text, flush=True)
        if out:
            print(text, file=out, flush=True)

    say("command: bench/adaptive.py " + " ".join(sys.argv[1:]))
    ways = {} if options.best else fixed_rules(options)
    best = options.best or min(ways, key=ways.get)
    if ways:
        ranked = sorted(ways.items(), key=lambda item: item[1])
        say("fixed rules, µs: " + ", ".join(f"{way} {us:.0f}" for way, us in ranked))
    say(f"best is {best}; {len(slots(options.cpus))} times {options.cpus} processors")
    head = f"{'adaptive':>9}{'plain':>9}{'best':>9}{'alike':>8}{'to best':>9}{'all/floor':>11}{'minute':>9}"
    say(f"{'start: floor':22}{head}  ends with")
    rows = []
    for floors in rounds(options, best):
        for row in run_round(options, floors, best):
            rows.append(row)
            say(line(row))
            for change in row["changes"] if options.changes else []:
                say("      " + change[:200])
    if not rows:
        sys.exit("no start lies between --first and --until")
    shares = [row["to_best"] for row in rows]
    noise = [max(row["alike"]) / min(row["alike"]) for row in rows]
    minutes = [minute for row in rows for minute in row["minutes_to_floor"] if minute]
    say(
        f"{len(rows)} starts, to best: median {statistics.median(shares):.3f}, worst {max(shares):.3f}, "
        f"{sum(share <= 1.03 for share in shares)} within 1.03; minutes above 1.02 of the floor: "
        f"{sum(minute > 1.02 for minute in minutes)} of {len(minutes)}, worst {max(minutes):.3f}; jobs that run "
        f"alike differ by up to {max(noise):.3f}"
    )
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"args": sys.argv[1:], "fixed": ways, "best": best, "starts": rows}, file, indent=1)


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("hawser")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--cpus", type=int, default=2, help="processors of each job")
    parser.add_argument("--size", default="64K")
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument(
        "--twins", type=int, default=1, help="jobs that run the best way as well, where there is room"
    )
    parser.add_argument("--parallel", type=int, default=1, help="starts at the same time")
    parser.add_argument("--first", type=int, default=0, help="run starts from this number on")
    parser.add_argument("--until", type=int, default=1 << 30, help="and below this number")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--each", type=float, default=10, help="seconds for each way by itself")
    parser.add_argument(
        "--turn", type=float, default=5, help="seconds until jobs change processors; 0: never"
    )
    parser.add_argument("--best", choices=WAYS, help="the best way, where an earlier call has found it")
    parser.add_argument("--budget", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--changes", action="store_true", help="print each change of adaptive mode")
    parser.add_argument("--out", help="file for what is printed")
    parser.add_argument("--json", help="file for all figures")
    return parser.parse_args()


if __name__ == "__main__":
    main()
