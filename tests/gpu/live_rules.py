#!/usr/bin/env python3
"""Rules that change under load: tests/gpu/live_rules.py libnccl.so.2 path/to/hawser [ranks] --switches 50

One thread drives all ranks of two communicators: collectives of many sizes in groups, ranks delayed at
random, and replays of CUDA graphs that were captured before the first change. Meanwhile `hawser rules apply`
changes the rules of this process again and again, now and then to a file that is refused. Every result is
checked on the GPU; at the end the log must show every change on every rank at the same collective, and the
refused ones nowhere. Needs PyTorch and a GPU, or `--host` with numpy and ml_dtypes (no graphs there); says so
and ends with 0 otherwise. The exit code is 1 if anything is wrong."""

import argparse
import collections
import dataclasses
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True

import cases
import layer as layers
import nccl

ALGORITHMS = [
    ("ring", "simple"),
    ("tree", "ll"),
    ("one_shot", "symll"),
    ("all_pairs", "ll128"),
    ("all_pairs", "symll"),
]
ALGORITHMS += [("ring", "ll"), ("tree", "simple"), ("all_pairs", "symsimple"), ("halving_doubling", "simple")]
COLLECTIVES = [
    "all_reduce",
    "all_gather",
    "all_reduce",
    "reduce_scatter",
    "all_reduce",
    "all_to_all",
    "broadcast",
]
SIZES = [4, 1000, 4096, 30_000, 100_000, 700_000]
ROUNDS_IN_A_CHECK = 16
# So many collectives lie between a promise and the decision at most.
MARGIN = 64
TAKEN = re.compile(r"(\S+) rank (\d+) op (\d+): change (\d+) of the rules counts from here on: (.*)")


def main():
    options = arguments()
    folder = tempfile.TemporaryDirectory()
    settings = {
        "HAWSER_RUNTIME_DIR": f"{folder.name}/run",
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "TUNING",
    }
    os.environ.update(settings, NCCL_DEBUG_FILE=f"{folder.name}/log")
    layer, reason = layers.open_layer(options.ranks, options.host)
    if layer is None:
        print(f"skipped: {reason}")
        return 0
    ranks = options.ranks or layer.default_ranks()
    load = Load(options, layer, ranks)
    changer = Changer(options, folder.name)
    load.run(changer)
    with open(f"{folder.name}/log", encoding="utf-8") as log:
        faults = changer.faults + record(log.read(), load, changer)
    for fault in faults[:20]:
        print(fault)
    print(
        f"{ranks} ranks, {changer.changed} changes of 2 communicators, {changer.refused} refused, "
        f"{changer.waited} tried again, {load.calls} calls, "
        f"{load.replays} replays, {load.wrong} wrong, {len(faults)} faults"
    )
    load.destroy()
    return 1 if load.wrong or faults or changer.changed < options.switches else 0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("hawser")
    parser.add_argument("ranks", type=int, nargs="?", default=0, help="default: one per GPU")
    parser.add_argument("--switches", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--deadline", type=float, default=60, help="seconds without progress that count as a hang"
    )
    parser.add_argument("--host", action="store_true", help="the host device, numpy")
    return parser.parse_args()


class Changer(threading.Thread):
    """Changes the rules of this process through the tool, one change after the other."""

    def __init__(self, options, folder):
        super().__init__(daemon=True)
        self.options, self.folder = options, folder
        self.changed = self.refused = self.waited = 0
        self.faults, self.last, self.over = [], 0, False

    def run(self):
        try:
            for number in range(self.options.switches):
                self.change(number)
                if number % 10 == 5:
                    self.refuse(number)
        except Exception as error:  # ends the program, through `over`
            self.faults.append(f"the changing thread ended: {error!r}")
        self.over = True

    def change(self, number):
        algorithm, protocol = ALGORITHMS[number % len(ALGORITHMS)]
        action = (
            f'{{ algorithm = "{algorithm}", protocol = "{protocol}" }}, {{ channels = {1 + number % 7} }}'
        )
        code, text = self.apply(f"{number}.toml", f"[[rule]]\nuse = [{action}]\n")
        while code != 0 and "too many changes wait" in text:
            # A change counts some collectives after its decision, and so many may wait for theirs.
            self.waited += 1
            time.sleep(0.05)
            code, text = self.apply(f"{number}.toml", f"[[rule]]\nuse = [{action}]\n")
        places = [int(place) for place in re.findall(r"changed from collective (\d+) on", text)]
        if code != 0 or len(places) != 2:
            return self.faults.append(f"change {number}: exit code {code}: {text}")
        self.changed += 1
        self.last = max(places)

    def refuse(self, number):
        code, text = self.apply(f"bad{number}.toml", '[[rule]]\nuse = { algorithm = "rng" }\n')
        if code == 0 or '"rng" is not known' not in text:
            self.faults.append(f"a broken file was not refused: exit code {code}: {text}")
        self.refused += 1

    def apply(self, name, text):
        path = f"{self.folder}/{name}"
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        command = [self.options.hawser, "rules", "apply", path, "--pid", str(os.getpid())]
        settings = {
            k: v for k, v in os.environ.items() if k != "LD_PRELOAD" and not k.startswith("NCCL_DEBUG")
        }
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=self.options.deadline, env=settings
        )
        return done.returncode, done.stdout + done.stderr


class Load:
    """Calls whose results are checked."""

    def __init__(self, options, layer, ranks):
        self.layer, self.ranks, self.random = layer, ranks, random.Random(options.seed)
        self.watchdog = nccl.Watchdog(options.deadline)
        self.library = nccl.Library(options.library)
        world = nccl.world(self.library, layer, ranks)
        backwards = nccl.split(world, layer, [0] * ranks, [-r for r in range(ranks)], "back")[0]
        self.communicators = [world, backwards]
        self.streams = [layer.stream(place) for place in range(ranks)]
        self.bad = [layer.counters(place, 1) for place in range(ranks)]
        self.types = [t for t in layer.types if t.name in ("float", "bfloat16", "int32")]
        self.calls = self.replays = self.wrong = self.rounds = 0
        self.graphs = (
            [] if layer.on_host else [self.capture(c, n) for c in self.communicators for n in (5000, 400_000)]
        )

    def run(self, changer):
        self.warm_up()
        changer.start()
        after = 0
        # At the end so many more that the last change has been reached everywhere.
        while not changer.over or after < MARGIN:
            after += changer.over
            self.watchdog.step(lambda: f"round {self.rounds}, {changer.changed} changes")
            self.round()
        self.check()
        changer.join()

    def warm_up(self):
        for _ in range(2 * ROUNDS_IN_A_CHECK):
            self.watchdog.step(lambda: "warming up")
            self.round()

    def round(self):
        self.rounds += 1
        if self.random.randrange(3) == 0:
            late = self.random.randrange(self.ranks)
            self.layer.delay(self.streams[late], self.random.randrange(1000, 500_000))
        if self.graphs and self.rounds % 4 == 0:
            self.replay(self.graphs[self.rounds // 4 % len(self.graphs)])
        for communicator in self.communicators:
            self.eager(communicator)
        if self.rounds % ROUNDS_IN_A_CHECK == 0:
            self.check()

    def case(self, communicator, collective, count):
        dtype = self.random.choice(self.types)
        root = self.random.randrange(communicator.size) if collective in cases.ROOTED else 0
        return cases.Case(collective, dtype, "sum", count, root, communicator.size, self.rounds)

    def each(self, works, do):
        for work in works:
            self.layer.use(work.place)
            with self.layer.on(self.streams[work.place]):
                do(work)

    def eager(self, communicator):
        collective = self.random.choice(COLLECTIVES)
        works = self.works(communicator, self.case(communicator, collective, self.random.choice(SIZES)))
        self.each(works, lambda work: work.fill())
        self.issue(communicator, works)
        self.count(works)

    def works(self, communicator, case):
        """The buffers of all ranks, each taken on the stream that uses it."""
        works = []
        for rank, place in enumerate(communicator.places):
            self.layer.use(place)
            with self.layer.on(self.streams[place]):
                works.append(cases.RankWork(self.layer, case, rank, place, False, 0))
        return works

    def issue(self, communicator, works):
        with self.library.group():
            for work in works:
                work.issue(communicator, self.layer.handle(self.streams[work.place]))
        self.calls += 1

    def count(self, works):
        def one(work):
            self.bad[work.place][0] += work.wrong()

        self.each(works, one)

    def capture(self, communicator, count):
        works = self.works(communicator, self.case(communicator, "all_reduce", count))
        self.layer.synchronize()
        streams = [(place, self.streams[place]) for place in range(self.ranks)]
        return works, self.layer.capture(streams, lambda: self.issue(communicator, works))

    def replay(self, graph):
        works, graphs = graph
        self.each(works, lambda work: work.fill(dataclasses.replace(work.case, tag=self.rounds)))
        for place, ready in enumerate(graphs):
            self.layer.replay(place, ready, self.streams[place])
        self.count(works)
        self.replays += 1

    def check(self):
        self.layer.synchronize()
        for place, counter in enumerate(self.bad):
            count = self.layer.number(counter[0])
            if count:
                self.wrong += 1
                print(f"WRONG: {count} bytes on place {place} before round {self.rounds}", flush=True)
            counter[:] = 0
        self.layer.synchronize()
        for communicator in self.communicators:
            states = [communicator.state(rank) for rank in range(communicator.size)]
            if any(states):
                print(f"FAIL: {communicator.name} has asynchronous errors {states}", flush=True)
                os._exit(1)

    def destroy(self):
        for _, graphs in self.graphs:
            self.layer.drop(graphs)
        for communicator in reversed(self.communicators):
            communicator.destroy()


def record(log, load, changer):
    """What is wrong with the record of changes in the log."""
    taken, faults = collections.defaultdict(dict), []
    for name, rank, op, change, _ in TAKEN.findall(log):
        taken[name, int(change)][int(rank)] = int(op)
    names = {name for name, _ in taken}
    if len(names) != 2:
        faults.append(f"changes of {len(names)} communicators, not of 2: {sorted(names)}")
    for (name, change), ranks in sorted(taken.items()):
        if len(ranks) != load.ranks or len(set(ranks.values())) != 1:
            faults.append(f"{name}: change {change} was taken at {ranks}")
    for name in names:
        count = sum(1 for key in taken if key[0] == name)
        if count < changer.changed:
            faults.append(f"{name} took {count} changes of {changer.changed}")
    return faults


if __name__ == "__main__":
    sys.exit(main())
