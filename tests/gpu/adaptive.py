#!/usr/bin/env python3
"""Rules that look at the running job: tests/gpu/adaptive.py libnccl.so.2 [ranks]

One process learns: the floor is a rule that is slow on purpose, adaptive mode has to replace it on all ranks
at one collective; a graph that was captured before keeps its plan and its results. Another process checks the
conditions `in_graph` and `registered`: captured calls and calls in symmetric windows take other algorithms.
All results are checked. Needs PyTorch and a GPU, or `--host` with numpy and ml_dtypes (no graphs there); says
so and ends with 0 otherwise. The exit code is 1 if something is wrong."""

import ctypes
import dataclasses
import os
import re
import sys
import tempfile

sys.dont_write_bytecode = True

import cases
import children
import layer as layers
import nccl
import program
from nccl import INT, P, SIZE

SLOW = """mode = "adaptive"
budget = 0.1
[[rule]]
name = "slow"
match.collective = "all_reduce"
use = [{ algorithm = "one_shot", protocol = "simple", channels = 1, chunk = 512 }, { algorithm = "ring", channels = 1, chunk = 512 }]
"""
CONDITIONS = """[[rule]]
match.registered = true
use = { algorithm = "all_pairs", protocol = "simple" }
[[rule]]
match.in_graph = true
use = { algorithm = "tree", protocol = "simple" }
[[rule]]
use = { algorithm = "ring", protocol = "simple" }
"""
COUNT, CHECK_EVERY, MOST_CALLS, SYMMETRIC = 10_000, 50, 40_000, 1
TAKEN = re.compile(r"(\S+) rank (\d+) op (\d+): change (\d+) of the rules counts from here on: (.*)")


def main():
    options = program.parser(__doc__).parse_args()
    learning, conditions = Trial(options, SLOW), Trial(options, CONDITIONS)
    parts = [
        ("learning", children.DEFAULT, lambda: learning.run(Trial.learn)),
        ("conditions", children.DEFAULT, lambda: conditions.run(Trial.conditions)),
    ]
    return program.run(parts, 300, "parts")


class Trial:
    """One process."""

    def __init__(self, options, rules):
        self.options, self.rules, self.wrong = options, rules, []

    def run(self, work):
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/rules.toml", "w", encoding="utf-8") as file:
                file.write(self.rules)
            log = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "TUNING", "NCCL_DEBUG_FILE": f"{folder}/log"}
            os.environ.update(log, HAWSER_RULES=f"{folder}/rules.toml")
            self.log = f"{folder}/log"
            self.layer, reason = layers.open_layer(self.options.ranks, self.options.host)
            if self.layer is None:
                return {"skipped": reason}
            self.ranks = max(2, self.options.ranks or self.layer.default_ranks())
            self.watchdog = nccl.Watchdog(60)
            self.library = nccl.Library(self.options.library)
            self.lib = self.library.lib
            self.lib.ncclCommWindowRegister.argtypes = [P, P, SIZE, P, INT]
            self.lib.ncclCommWindowDeregister.argtypes = [P, P]
            self.world = nccl.world(self.library, self.layer, self.ranks)
            self.streams = [self.layer.stream(place) for place in range(self.ranks)]
            dtype = next(t for t in self.layer.types if t.name == "float")
            self.case = cases.Case("all_reduce", dtype, "sum", COUNT, 0, self.ranks, 1)
            text = work(self)
            self.world.destroy()
            return {"done": 1, "wrong": self.wrong, "text": text}

    def learn(self):
        graph_works = self.works()
        graph = None if self.layer.on_host else self.capture(graph_works)
        works, calls, replays, trials = self.works(), 0, 0, 0
        self.fill(works)
        while calls < MOST_CALLS:
            self.watchdog.step(lambda: f"call {calls}")
            self.issue(works)
            calls += 1
            last = self.world.decision()
            trials += "a trial of adaptive mode" in last.rule.decode()
            if calls % CHECK_EVERY == 0:
                self.check(works, f"call {calls}")
                self.fill(works, calls)
                if graph:
                    replays += self.replay(graph, graph_works, calls)
            if "learned: " in last.rule.decode():
                break
        else:
            self.wrong.append(f"nothing was learned in {calls} calls: {self.said()[-3:]}")
        self.check(works, f"call {calls}")
        if trials > calls / 10 + 4 or trials < 8:
            self.wrong.append(f"{trials} trials in {calls} calls")
        if graph:
            self.layer.drop(graph)
        self.switches()
        return f"{calls} calls, {trials} trials, {replays} replays; {'; '.join(self.said()[-1:])}"

    def conditions(self):
        seen, works = [], self.works()
        plain = self.once(works)
        seen.append(("plain", plain, "Ring"))
        # All ranks make a window together.
        with self.library.group():
            windows = [self.register(work) for work in works]
        seen.append(("in windows", self.once(works), "AllPairs"))
        for rank, pair in enumerate(windows):
            for window in pair:
                self.library.check(self.lib.ncclCommWindowDeregister(self.world.handles[rank], window))
        seen.append(("taken back", self.once(works), "Ring"))
        if not self.layer.on_host:
            graph = self.capture(works)
            seen.append(("captured", self.world.decision().algorithm.decode(), "Tree"))
            for tag in range(20):
                self.replay(graph, works, tag)
            seen.append(("after a capture", self.once(works), "Ring"))
            self.layer.drop(graph)
        self.wrong += [f"{what}: {got}, not {wanted}" for what, got, wanted in seen if got != wanted]
        return ", ".join(f"{what}: {got}" for what, got, _ in seen)

    def register(self, work):
        """Both buffers of a rank as symmetric windows."""
        pair = []
        for buffer in (work.input, work.output):
            window = P()
            handle, size = self.world.handles[work.rank], buffer.start + buffer.length
            first = buffer.address - buffer.start
            call = self.lib.ncclCommWindowRegister(handle, first, size, ctypes.byref(window), SYMMETRIC)
            self.library.check(call)
            pair.append(window)
        return pair

    def once(self, works):
        self.fill(works, 7)
        self.issue(works)
        self.check(works, "one call")
        return self.world.decision().algorithm.decode()

    def works(self):
        works = []
        for rank in range(self.ranks):
            self.layer.use(rank)
            with self.layer.on(self.streams[rank]):
                works.append(cases.RankWork(self.layer, self.case, rank, rank, False, 0))
        return works

    def each(self, works, do):
        for work in works:
            self.layer.use(work.place)
            with self.layer.on(self.streams[work.place]):
                do(work)

    def fill(self, works, tag=1):
        self.each(works, lambda work: work.fill(dataclasses.replace(self.case, tag=tag)))

    def issue(self, works):
        with self.library.group():
            for work in works:
                work.issue(self.world, self.layer.handle(self.streams[work.place]))

    def capture(self, works):
        self.layer.synchronize()
        return self.layer.capture(list(enumerate(self.streams)), lambda: self.issue(works))

    def replay(self, graph, works, tag):
        self.fill(works, tag)
        for place, ready in enumerate(graph):
            self.layer.replay(place, ready, self.streams[place])
        self.check(works, f"replay {tag}")
        return 1

    def check(self, works, what):
        counts = []
        self.each(works, lambda work: counts.append(self.layer.number(work.wrong())))
        if any(counts):
            self.wrong.append(f"{what}: bytes wrong by rank: {counts}")

    def said(self):
        """What adaptive mode has written."""
        with open(self.log, encoding="utf-8") as log:
            return [line.split("adaptive mode of ")[1].strip() for line in log if "adaptive mode of " in line]

    def switches(self):
        """All ranks have taken each change at one collective."""
        taken = {}
        with open(self.log, encoding="utf-8") as log:
            for _, rank, op, change, _ in TAKEN.findall(log.read()):
                taken.setdefault(int(change), {})[int(rank)] = int(op)
        for change, ranks in taken.items():
            if len(ranks) != self.ranks or len(set(ranks.values())) != 1:
                self.wrong.append(f"change {change} was taken at {ranks}")
        if not taken:
            self.wrong.append("no change was taken")


if __name__ == "__main__":
    sys.exit(main())
