#!/usr/bin/env python3
"""The same bits every time: tests/gpu/determinism.py libnccl.so.2 [ranks]

Random floats over a wide range of exponents, many of which cancel, so that the order of additions shows.
all_reduce must give the same bits on all ranks; all_reduce, reduce_scatter and reduce the same bits in every
repetition, eager and as a replayed CUDA graph, in place, and in buffers that are not aligned, while ranks are
delayed at random. With OneShot or AllPairs forced the sum must be x0 + x1 + ... in the order of ranks, folded
in float and rounded once (16-bit types: up to 8 ranks). A process per forced pair, as in forced.py. Needs
PyTorch and a GPU, or `--host` with numpy and ml_dtypes (no graphs there); says so and ends with 0 otherwise.
The exit code is 1 if bits differ."""

import random
import sys

sys.dont_write_bytecode = True

import cases
import children
import layer as layers
import nccl
import program

FUSED = ("fused/LL", "fused/Simple", "fused/Simple/zero_copy")
PAIRS = [children.DEFAULT, "Ring/Simple", "Tree/Simple"]
PAIRS += [f"{a}/{p}" for a in ("OneShot", "AllPairs") for p in ("LL", "LL128", "Simple", *FUSED)]
IN_RANK_ORDER = ("OneShot", "AllPairs")
MOST_IN_ONE_STEP = 8
# Exponent bits, mantissa bits, smallest and largest exponent.
FORMATS = {"float": (8, 23, -30, 30), "bfloat16": (8, 7, -30, 30), "half": (5, 10, -14, 10)}
SIZES = [8 << i for i in range(0, 26)]
AROUND = [8 << 10, 64 << 10, 256 << 10, 512 << 10, 1 << 20, 4 << 20, 64 << 20]


def main():
    options = arguments()
    parts = [(pair, pair, Suite(options, pair).run) for pair in options.pairs]
    return program.run(parts, options.timeout + 60, "cases", "differ")


def arguments():
    parser = program.parser(__doc__, PAIRS)
    parser.add_argument("--largest", type=float, default=256, help="MiB (1 with --host)")
    parser.add_argument("--repetitions", type=int, default=50, help="eager, and as many replays")
    options = program.options_with_pairs(parser)
    options.largest = int((min(options.largest, 1) if options.host else options.largest) * (1 << 20))
    return options


class Suite:
    """All cases of one process."""

    def __init__(self, options, pair):
        self.options, self.pair, self.wrong, self.random = options, pair, [], random.Random(1)
        self.cases = self.refused = 0

    def run(self):
        layer, reason = layers.open_layer(self.options.ranks, self.options.host)
        if layer is None:
            return {"skipped": reason}
        self.layer, self.ranks = layer, self.options.ranks or layer.default_ranks()
        watchdog = nccl.Watchdog(min(120, self.options.timeout))
        self.in_rank_order = self.pair.split("/")[0] in IN_RANK_ORDER
        try:
            self.world = nccl.world(nccl.Library(self.options.library), layer, self.ranks)
        except nccl.NcclError as error:
            if not error.not_offered:
                raise
            self.refused = 1
            return self.report()
        self.streams = [layer.stream(place) for place in range(self.ranks)]
        for collective, dtype, total in self.plan():
            blocks = self.ranks if collective == "reduce_scatter" else 1
            count = max(1, total // dtype.size // blocks)
            case = cases.Case(collective, dtype, "sum", count, self.ranks - 1, self.ranks, total)
            watchdog.step(lambda: f"{self.pair}: {case}")
            try:
                Trial(self, case).run()
                self.cases += 1
            except nccl.NcclError as error:
                if not error.not_offered:
                    raise
                self.refused += 1
        self.world.destroy()
        return self.report()

    def report(self):
        refused = f", {self.refused} not offered" if self.refused else ""
        return {"done": self.cases, "wrong": self.wrong, "text": f"{self.cases} cases{refused}"}

    def plan(self):
        types = [t for t in self.layer.types if t.name in FORMATS]
        sizes = SIZES + [s + 4 for s in AROUND] + [s - 4 for s in AROUND]
        sizes = sorted(s for s in sizes if s <= self.options.largest)
        for turn, size in enumerate(sizes):
            for dtype in types:
                yield "all_reduce", dtype, size
            yield "reduce_scatter", types[turn % len(types)], size
            yield "reduce", types[(turn + 1) % len(types)], size


class Trial:
    """One case, in all ways in which it can be run."""

    def __init__(self, suite, case):
        self.suite, self.case, self.layer, self.world = suite, case, suite.layer, suite.world
        self.streams, self.ranks = suite.streams, suite.ranks
        self.input_bytes = case.input_length() * case.dtype.size
        self.output_bytes = case.output_length() * case.dtype.size
        self.sent = self.each(lambda rank: values(self.layer, rank, rank, case))
        self.differing = [self.layer.counters(place, 1) for place in range(self.ranks)]

    def each(self, work):
        results = []
        for rank, stream in enumerate(self.streams):
            self.layer.use(rank)
            with self.layer.on(stream):
                results.append(work(rank))
        return results

    def run(self):
        plain = self.buffers(False, 0)
        self.issue(plain)
        self.first = self.each(lambda rank: self.output(plain, rank) + 0)
        for repetition in range(self.suite.options.repetitions):
            self.again(plain, lambda: self.issue(plain), delayed=repetition % 3 == 0)
        self.expect("a repetition")
        if not self.layer.on_host:
            self.replays(plain)
        ways = (("in place", True, 0), ("not aligned", False, 1), ("in place and not aligned", True, 1))
        for name, in_place, shift in ways:
            buffers = self.buffers(in_place, shift)
            for _ in range(3):
                self.again(buffers, lambda: self.issue(buffers))
            self.expect(name)
        self.between_ranks()
        few = self.ranks <= MOST_IN_ONE_STEP or self.case.dtype.name == "float"
        if self.suite.in_rank_order and few:
            self.rank_order()

    def buffers(self, in_place, shift):
        """(input, output) of each rank, and where in the bytes of both the call begins."""
        case, size = self.case, self.case.dtype.size

        def make(rank):
            if not in_place:
                pair = cases.Buffer(self.layer, rank, self.input_bytes, shift * size)
                return pair, cases.Buffer(self.layer, rank, self.output_bytes, shift * size), 0
            both = cases.Buffer(self.layer, rank, max(self.input_bytes, self.output_bytes), shift * size)
            return both, both, case.in_place_offsets(rank)[1] * size

        return self.each(make)

    def output(self, buffers, rank):
        _, output, at = buffers[rank]
        return output.part(at, self.output_bytes)

    def fill(self, buffers):
        def one(rank):
            sent, output, _ = buffers[rank]
            output.bytes[:] = cases.FILL
            sent.part(0, self.input_bytes)[:] = self.sent[rank]

        self.each(one)

    def issue(self, buffers):
        self.fill(buffers)
        self.call(buffers)

    def call(self, buffers):
        case, number = self.case, self.case.dtype.number
        with self.world.library.group():
            for rank, (sent, output, at) in enumerate(buffers):
                addresses, stream = (sent.address, output.address + at), self.layer.handle(self.streams[rank])
                self.world.call(case.collective, rank, addresses, case.count, number, 0, case.root, stream)

    def again(self, buffers, run, delayed=False):
        """Runs and counts bytes that differ from the first run's."""
        if delayed:
            late = self.suite.random.randrange(self.ranks)
            self.layer.delay(self.streams[late], self.suite.random.randrange(1000, 200_000))
        run()
        self.each(lambda rank: self.count(rank, self.output(buffers, rank) != self.first[rank]))

    def count(self, rank, differing):
        if self.case.has_output(rank):
            self.differing[rank] += self.layer.moved(differing.sum(), rank)

    def replays(self, buffers):
        streams = list(enumerate(self.streams))
        graphs = self.layer.capture(streams, lambda: self.call(buffers))

        def replay():
            self.fill(buffers)
            for rank, stream in streams:
                self.layer.replay(rank, graphs[rank], stream)

        for repetition in range(self.suite.options.repetitions):
            self.again(buffers, replay, delayed=repetition % 3 == 0)
        self.expect("a replay of a graph")
        self.layer.drop(graphs)

    def between_ranks(self):
        if self.case.collective == "all_reduce":
            self.layer.synchronize()
            home = self.layer.moved(self.first[0], 0)
            for rank in range(1, self.ranks):
                self.count(rank, self.layer.moved(self.first[rank], 0) != home)
            self.expect("the result of rank 0")

    def rank_order(self):
        """Compares with the sum in the order of ranks, and makes sure that another order would show."""
        self.layer.synchronize()
        total = ordered(self.layer, self.case, range(self.ranks))
        backwards = ordered(self.layer, self.case, reversed(range(self.ranks)))
        if self.ranks > 2 and self.input_bytes > 4096 and not int((total != backwards).sum()):
            self.suite.wrong.append(
                f"{self.case}: the data does not tell orders apart: a mistake of this program"
            )
        for rank in range(self.ranks):
            start = rank * self.output_bytes if self.case.collective == "reduce_scatter" else 0
            part = total[start : start + self.output_bytes]
            self.count(rank, self.layer.moved(self.first[rank], 0) != part)
        self.expect("the sum in the order of ranks")

    def expect(self, what):
        self.layer.synchronize()
        counts = [self.layer.number(counter[0]) for counter in self.differing]
        if any(counts):
            self.suite.wrong.append(f"{self.case}: {what} differs, bytes per rank {counts}")
        for counter in self.differing:
            counter[:] = 0
        self.layer.synchronize()


def values(layer, place, rank, case, formats=FORMATS):
    """Bytes of random floats of both signs, in one of the formats.

    About half of the values of an odd rank are those of the rank before it with the other sign: where large
    values cancel, the order shows in 16-bit types too, which else round it away at the end."""
    exponent_bits, mantissa_bits, least, most = formats[case.dtype.name]
    n, lowest, width = (
        case.input_length(),
        (1 << (exponent_bits - 1)) - 1 + least,
        exponent_bits + mantissa_bits,
    )

    def random_bits(rank):
        h, e = (cases.seeded(layer, place, 0, n, case.tag, rank, word) for word in (0, 1))
        exponent = lowest + (e & 0xFFFF) % (most - least + 1)
        # The sign is all ones above, which `raw` cuts to one bit.
        return exponent << mantissa_bits | h & (1 << mantissa_bits) - 1 | h >> 31 << width

    bits = random_bits(rank)
    if rank & 1:
        opposite = random_bits(rank - 1) ^ -1 << width
        bits = layer.xp.where(cases.seeded(layer, place, 0, n, case.tag, rank, 2) & 1 == 0, bits, opposite)
    return layer.raw(bits, case.dtype.size)


def ordered(layer, case, order):
    """Bytes of the sum in this order, on place 0: folded in float, rounded once."""
    total = None
    for rank in order:
        x = layer.decode(values(layer, 0, rank, case), case.dtype)
        total = x if total is None else total + x
    return layer.encode(total, case.dtype)


if __name__ == "__main__":
    sys.exit(main())
