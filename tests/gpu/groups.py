#!/usr/bin/env python3
"""Groups of many small calls: tests/gpu/groups.py libnccl.so.2 [ranks]

Random groups of 2 to 70 small collectives, of one kind or mixed, in place and not, aligned and not, on one
stream or two, with messages beside them. Each runs call by call, then as a group (eager, and as replayed CUDA
graphs), while ranks are delayed at random: results, inputs, outputs that must stay and guards are compared,
and the bits of a group with those of the calls alone. Then groups whose calls use each other's results, on
each rank in other buffers (`--apart` leaves these out: NVIDIA's library promises nothing for them). Graphs
tell how many launches a rank makes. A process with nothing forced and one for each pair of `--pairs`, as in
forced.py; `HAWSER_FUSE=0` gives every call a launch of its own. Needs PyTorch and a GPU, or `--host` with
numpy and ml_dtypes (no graphs there); says so and ends with 0 otherwise. The exit code is 1 if a result is
wrong."""

import random
import sys

sys.dont_write_bytecode = True

import cases
import children
import layer as layers
import nccl
import program

PAIRS = [children.DEFAULT, "OneShot/fused/LL", "AllPairs/fused/LL", "OneShot/fused/Simple"]
LAUNCHES = [2, 8, 16, 64]


def main():
    options = arguments()
    parts = [(pair, pair, Suite(options, pair).run) for pair in options.pairs]
    return program.run(parts, options.timeout + 60, "groups")


def arguments():
    parser = program.parser(__doc__, PAIRS)
    parser.add_argument("--groups", type=int, default=60, help="random groups of a process")
    parser.add_argument("--largest", type=int, default=64 << 10, help="bytes of a call")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--apart", action="store_true", help="no groups whose calls use each other's results")
    return program.options_with_pairs(parser)


class Suite:
    """All groups of one process."""

    def __init__(self, options, pair):
        self.options, self.pair, self.random = options, pair, random.Random(options.seed)
        self.wrong, self.groups, self.calls, self.refused = [], 0, 0, 0

    def run(self):
        layer, reason = layers.open_layer(self.options.ranks, self.options.host)
        if layer is None:
            return {"skipped": reason}
        self.layer, self.ranks = layer, self.options.ranks or layer.default_ranks()
        watchdog = nccl.Watchdog(min(120, self.options.timeout))
        self.world = nccl.world(nccl.Library(self.options.library), layer, self.ranks)
        self.streams = [[layer.stream(place) for place in range(self.ranks)] for _ in range(2)]
        for number in range(self.options.groups):
            group = Group(self, number)
            watchdog.step(lambda: f"{self.pair}: {group}")
            self.try_to(group.run, len(group.calls))
        if not self.options.apart:
            for number in range(8):
                watchdog.step(lambda: f"{self.pair}: chain {number}")
                self.try_to(Chain(self, number).run, 0)
        watchdog.step(lambda: f"{self.pair}: launches")
        launches = "" if layer.on_host else self.launches()
        self.world.destroy()
        counts = f"{self.groups} groups, {self.calls} calls, {self.refused} groups not offered"
        return {"done": self.groups, "wrong": self.wrong, "text": counts + launches}

    def try_to(self, run, calls):
        try:
            run()
            self.groups, self.calls = self.groups + 1, self.calls + calls
        except nccl.NcclError as error:
            if not error.not_offered:
                raise
            self.layer.synchronize()
            self.refused += 1

    def each(self, work):
        """`work(rank)` on the GPU and the first stream of every rank."""
        results = []
        for rank in range(self.ranks):
            self.layer.use(rank)
            with self.layer.on(self.streams[0][rank]):
                results.append(work(rank))
        return results

    def launches(self):
        """How many launches a group of small sums takes, as graphs tell."""
        dtype = next(t for t in self.layer.types if t.name == "float")
        texts = []
        for count in LAUNCHES:
            made = [cases.Case("all_reduce", dtype, "sum", 256, 0, self.ranks, tag) for tag in range(count)]
            works = self.each(
                lambda rank: [cases.RankWork(self.layer, c, rank, rank, False, 0) for c in made]
            )
            streams = list(enumerate(self.streams[0]))
            try:
                graphs = self.layer.capture(streams, lambda: self.issue(works, [0] * count))
            except nccl.NcclError as error:
                if error.not_offered:
                    return ""
                raise
            texts.append(f"{count}: {max(self.layer.nodes)}")
            self.layer.drop(graphs)
        return f"; all-reduces of 1 KiB in a group: launches {', '.join(texts)}"

    def issue(self, works, lanes):
        """All calls of all ranks in one group. `lanes`: which stream each call is put on, by rank or for
        all."""
        with self.world.library.group():
            for rank, mine in enumerate(works):
                for index, work in enumerate(mine):
                    lane = lanes[index] if isinstance(lanes[index], int) else lanes[index][rank]
                    work.issue(self.world, self.layer.handle(self.streams[lane][rank]))


class Group:
    """Random calls that do not depend on each other."""

    def __init__(self, suite, number):
        self.suite, self.layer, self.world = suite, suite.layer, suite.world
        dice, ranks = suite.random, suite.ranks
        self.kinds = dice.sample(cases.COLLECTIVES, dice.choice([1, 1, 2, 8]))
        self.types = dice.sample(suite.layer.types, dice.choice([1, 1, 2]))
        size = dice.choice([2, 3, 4, 8, 12, 16, 33, 64, 70] if not suite.layer.on_host else [2, 3, 8, 16])
        self.calls = [self.call(dice, ranks, 1000 * number + i) for i in range(size)]
        self.two_streams = dice.random() < 0.25 and not suite.layer.on_host
        self.lanes = [0] * size
        if self.two_streams:
            self.lanes = [[int(dice.random() < 0.2) for _ in range(ranks)] for _ in range(size)]
        self.messages = self.exchange(dice, ranks, number) if dice.random() < 0.2 else None
        in_place = [dice.random() < 0.3 for _ in self.calls]
        shift = [dice.choice([0, 0, 0, 1, 3]) for _ in self.calls]
        self.works = suite.each(
            lambda rank: [
                cases.RankWork(self.layer, case, rank, rank, *how)
                for case, *how in zip(self.calls, in_place, shift, strict=True)
            ]
        )
        if self.messages:
            beside = suite.each(lambda rank: cases.ExchangeWork(self.layer, self.messages, rank, rank, 0))
            self.works = [mine + [work] for mine, work in zip(self.works, beside, strict=True)]
            self.lanes = self.lanes + [0]

    def __str__(self):
        return f"{len(self.calls)} calls, such as {self.calls[0]}, {self.calls[-1]}"

    def call(self, dice, ranks, tag):
        collective, dtype = dice.choice(self.kinds), dice.choice(self.types)
        parts = (
            ranks if collective in ("reduce_scatter", "all_to_all", "scatter", "all_gather", "gather") else 1
        )
        most = max(1, self.suite.options.largest // dtype.size // parts)
        count = 1 + int(most ** dice.random() - 1) if dice.random() < 0.9 else dice.randrange(most + 1)
        op = dice.choice(["sum"] * 8 + cases.OPS)
        return cases.Case(collective, dtype, op, count, dice.randrange(ranks), ranks, tag)

    def exchange(self, dice, ranks, tag):
        pairs = [(dice.randrange(ranks), dice.randrange(ranks)) for _ in range(2 * ranks)]
        messages = tuple((a, b, 1 + dice.randrange(500)) for a, b in pairs)
        return cases.Exchange(messages, self.types[0], tag)

    def run(self):
        self.fill()
        for index in range(len(self.works[0])):
            self.suite.issue([[mine[index]] for mine in self.works], [0])
        self.check("call by call")
        alone = self.outputs()
        for turn in range(2):
            self.again(lambda: self.suite.issue(self.works, self.lanes), alone, f"group {turn}")
        if self.layer.on_host or self.two_streams:
            return
        streams = list(enumerate(self.suite.streams[0]))
        graphs = self.layer.capture(streams, lambda: self.suite.issue(self.works, self.lanes))

        def replay():
            for rank, stream in streams:
                self.layer.replay(rank, graphs[rank], stream)

        for turn in range(3):
            self.again(replay, alone, f"replay {turn}")
        # Replays and eager groups in turn: both count in the same memory.
        self.again(lambda: self.suite.issue(self.works, self.lanes), alone, "group after replays")
        self.layer.synchronize()
        self.layer.drop(graphs)

    def fill(self):
        self.suite.each(lambda rank: [work.fill() for work in self.works[rank]])

    def again(self, issue, alone, what):
        self.fill()
        late = self.suite.random.randrange(self.suite.ranks)
        self.layer.delay(self.suite.streams[0][late], self.suite.random.randrange(1000, 200_000))
        self.join(1, 0)
        issue()
        self.join(0, 1)
        self.check(what, alone)

    def join(self, later, earlier):
        if self.two_streams:
            for rank in range(self.suite.ranks):
                self.layer.after(self.suite.streams[later][rank], self.suite.streams[earlier][rank])

    def outputs(self):
        """Copies of all outputs: what a group must give bit by bit."""
        return self.suite.each(
            lambda rank: [work.output.bytes + 0 for work in self.works[rank] if hasattr(work, "output")]
        )

    def check(self, what, alone=None):
        def one(rank):
            count = sum(work.wrong() for work in self.works[rank])
            if alone is not None:
                for work, bits in zip(self.works[rank], alone[rank]):
                    count = count + (work.output.bytes != bits).sum()
            return count

        counts = self.suite.each(one)
        self.layer.synchronize()
        counts = [self.layer.number(count) for count in counts]
        if any(counts):
            self.suite.wrong.append(f"{self}: {what}: wrong per rank {counts}")


class Chain:
    """Sums of sums: each call of the group takes the result of the one before. Some ranks keep all results,
    others work in place, so that calls depend on each other in other ways on every rank."""

    STEPS = 6

    def __init__(self, suite, number):
        self.suite, self.layer = suite, suite.layer
        self.count = [1, 5, 64, 1000][number % 4]
        self.dtype = next(t for t in suite.layer.types if t.name == "int32")
        self.kept = [(rank + number) % 3 for rank in range(suite.ranks)]
        length = self.count * self.dtype.size
        self.buffers = suite.each(
            lambda rank: [cases.Buffer(self.layer, rank, length, 0) for _ in range(self.STEPS + 1)]
        )

    def place(self, rank, step):
        """The buffer that holds the result of a step (0: the input) of a rank."""
        return self.buffers[rank][[step, 0, step % 2][self.kept[rank]]]

    def run(self):
        layer, dtype = self.layer, self.dtype

        def fill(rank):
            for buffer in self.buffers[rank]:
                buffer.bytes[:] = cases.FILL
            self.place(rank, 0).bytes[:] = layer.raw(layer.index(rank, 0, self.count) + rank, dtype.size)

        self.suite.each(fill)
        with self.suite.world.library.group():
            for rank in range(self.suite.ranks):
                for step in range(self.STEPS):
                    addresses = self.place(rank, step).address, self.place(rank, step + 1).address
                    stream = layer.handle(self.suite.streams[0][rank])
                    self.suite.world.call(
                        "all_reduce", rank, addresses, self.count, dtype.number, 0, 0, stream
                    )
        counts = self.suite.each(self.wrong)
        layer.synchronize()
        counts = [layer.number(count) for count in counts]
        if any(counts):
            self.suite.wrong.append(f"chain of {self.STEPS} sums of {self.count}: wrong per rank {counts}")

    def wrong(self, rank):
        ranks = self.suite.ranks
        first = self.layer.index(rank, 0, self.count) * ranks + ranks * (ranks - 1) // 2
        result = self.layer.raw(first * ranks ** (self.STEPS - 1), self.dtype.size)
        last = self.place(rank, self.STEPS)
        return (last.bytes != result).sum() + last.guards_wrong()


if __name__ == "__main__":
    sys.exit(main())
