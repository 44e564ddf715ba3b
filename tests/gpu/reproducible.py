#!/usr/bin/env python3
"""The declared order of additions: tests/gpu/reproducible.py libnccl.so.2 [ranks]

With `HAWSER_REPRODUCIBLE=1` and 2, whatever algorithm and protocol is forced: all_reduce, reduce_scatter and
reduce of all float types, as sum, average and pre-multiplied sum, must give the bits of a sum that is made
here along the declared tree (docs/reproducible.md). The same elements come in calls of other sizes, at other
offsets, in place and not, aligned and not, as the next of one call or of several in a group. A process per
level and forced pair, as in forced.py; one thread drives all ranks, which share GPUs if there are more. A
pair that does not keep the order must be refused, and one that is named as keeping it must run. Needs PyTorch
and a GPU, or `--host` with numpy and ml_dtypes; says so and ends with 0 otherwise. The exit code is 1 if bits
differ."""

import os
import random
import struct
import sys

sys.dont_write_bytecode = True

import cases
import children
import determinism
import layer as layers
import nccl
import program

ROUTES = ["LL", "LL128", "Simple", "fused/LL", "fused/LL128", "fused/Simple", "fused/Simple/zero_copy"]
PAIRS = [children.DEFAULT, "Ring/Simple", "RecursiveDoubling/LL", "RecursiveDoubling/Simple"]
PAIRS += [f"Nested/{route}" for route in ROUTES[:3]]
PAIRS += [f"{algorithm}/{route}" for algorithm in ("OneShot", "AllPairs") for route in ROUTES]
# Exponent bits, mantissa bits, smallest and largest exponent.
FORMATS = determinism.FORMATS | {"f8e4m3": (4, 3, -6, 3), "f8e5m2": (5, 2, -8, 6)}
MOST_IN_RANK_ORDER = 8
FACTORS = (0.5, 1.5, 0.75, -1.25)
AVERAGE = cases.OPS.index("avg")


def main():
    options = arguments()
    parts = [
        (f"{level}: {pair}", pair, Suite(options, pair, level).run)
        for level in (1, 2)
        for pair in options.pairs
    ]
    return program.run(parts, options.timeout + 60, "calls", "differ")


def arguments():
    parser = program.parser(__doc__, PAIRS)
    parser.add_argument("--largest", type=float, default=64, help="MiB (1 with --host)")
    parser.add_argument("--layouts", type=int, default=12, help="calls of each type and operation")
    parser.add_argument("--seed", type=int, default=1)
    options = program.options_with_pairs(parser)
    options.largest = int((min(options.largest, 1) if options.host else options.largest) * (1 << 20))
    return options


class Suite:
    """All calls of one process."""

    def __init__(self, options, pair, level):
        self.options, self.pair, self.level = options, pair, level
        self.wrong, self.calls, self.refused = [], 0, 0

    def run(self):
        os.environ["HAWSER_REPRODUCIBLE"] = str(self.level)
        layer, reason = layers.open_layer(self.options.ranks, self.options.host)
        if layer is None:
            return {"skipped": reason}
        self.layer, self.ranks = layer, self.options.ranks or layer.default_ranks()
        self.random = random.Random(f"{self.options.seed} {self.pair} {self.level}")
        watchdog = nccl.Watchdog(min(120, self.options.timeout))
        try:
            self.world = nccl.world(nccl.Library(self.options.library), layer, self.ranks)
        except nccl.NcclError as error:
            if not error.not_offered:
                raise
            return {"wrong": [], "done": 0, "text": "not offered"}
        self.streams = [layer.stream(place) for place in range(self.ranks)]
        known = {dtype.name: dtype for dtype in layer.types}
        for name in [*FORMATS, "double"]:
            if name not in known:
                continue
            for op in ("sum", "avg", "premulsum"):
                elements = Elements(self, known[name], op)
                for _ in range(self.options.layouts):
                    call = Call(self, elements)
                    watchdog.step(lambda: f"{self.pair}: {call}")
                    self.attempt(call)
        self.world.destroy()
        text = f"{self.calls} calls" + (f", {self.refused} not offered" if self.refused else "")
        # Nothing may be left of a pair: that is right, and no reason to fail.
        return {"wrong": self.wrong, "done": self.calls, "text": text}

    def attempt(self, call):
        try:
            call.run()
            self.calls += 1
            # A chain to the last rank keeps the order of ranks.
            if "Ring" in self.pair and self.ranks > 2 and call.collective != "reduce":
                self.wrong.append(f"{call}: a ring ran, which keeps no order of more than two ranks")
        except nccl.NcclError as error:
            if not error.not_offered:
                raise
            self.refused += 1


class Elements:
    """Numbered elements of a type on all ranks, and what an operation makes of them along the tree."""

    def __init__(self, suite, dtype, op):
        self.suite, self.layer, self.dtype, self.op, self.ranks = suite, suite.layer, dtype, op, suite.ranks
        self.count = max(2 * self.ranks, suite.options.largest // dtype.size)
        self.sent = [self.values(rank, rank) for rank in range(self.ranks)]
        self.expected = self.layer.encode(self.tree(), dtype)
        # Calls take them on streams of their own.
        self.layer.synchronize()

    def values(self, place, rank):
        is_double = self.dtype.name == "double"
        source = self.type_named("float") if is_double else self.dtype
        case = cases.Case("all_reduce", source, "sum", self.count, 0, self.ranks, 77)
        raw = determinism.values(self.layer, place, rank, case, FORMATS)
        return self.layer.encode(self.layer.decode(raw, source), self.dtype) if is_double else raw

    def type_named(self, name):
        return next(dtype for dtype in self.layer.types if dtype.name == name)

    def factor(self, rank):
        return 1.0 / self.ranks if self.op == "avg" else FACTORS[rank % len(FACTORS)]

    def rounded(self, x):
        return self.layer.decode(self.layer.encode(x, self.dtype), self.dtype)

    def operand(self, rank):
        x = self.layer.decode(self.values(0, rank), self.dtype)
        if self.op == "sum":
            return x
        # A factor is a float, but for doubles.
        single = self.dtype.name != "double"
        factor = struct.unpack("f", struct.pack("f", self.factor(rank)))[0] if single else self.factor(rank)
        return self.rounded(x * factor)

    def tree(self):
        if self.suite.level == 1 and self.ranks <= MOST_IN_RANK_ORDER:
            total = self.operand(0)
            for rank in range(1, self.ranks):
                total = total + self.operand(rank)
            return total
        return self.nested(0, self.ranks)

    def nested(self, first, end):
        if end - first == 1:
            return self.operand(first)
        middle = first + (1 << (end - first - 1).bit_length() - 1)
        return self.rounded(self.nested(first, middle) + self.nested(middle, end))


class Call:
    """One call of all ranks: some of the elements, somewhere."""

    def __init__(self, suite, elements):
        draw = suite.random
        self.suite, self.elements, self.layer = suite, elements, suite.layer
        self.collective = draw.choice(sorted(cases.REDUCING))
        blocks = suite.ranks if self.collective == "reduce_scatter" else 1
        most = elements.count // blocks
        self.count = draw.choice([most, min(most, 1 << draw.randrange(most.bit_length()))])
        self.count = max(1, self.count - draw.randrange(4))
        self.length = self.count * blocks
        self.first = draw.randrange(elements.count - self.length + 1)
        self.root, self.shift = draw.randrange(suite.ranks), draw.choice([0, 0, 1, 3])
        self.in_place = draw.random() < 0.5

    def __str__(self):
        where = f"from {self.first}, shift {self.shift}, in place {self.in_place}, root {self.root}"
        return f"{self.collective} {self.elements.dtype} {self.elements.op} x {self.count} {where}"

    def run(self):
        suite, size = self.suite, self.elements.dtype.size
        buffers = []
        for rank, stream in enumerate(suite.streams):
            self.layer.use(rank)
            with self.layer.on(stream):
                buffers.append(self.buffers(rank, size))
        with suite.world.library.group():
            for rank, (sent, output, at) in enumerate(buffers):
                addresses = sent.address, output.address + at
                stream = self.layer.handle(suite.streams[rank])
                dtype = self.elements.dtype.number
                operation = self.operation(rank)
                suite.world.call(
                    self.collective, rank, addresses, self.count, dtype, operation, self.root, stream
                )
        self.layer.synchronize()
        for rank, (sent, output, at) in enumerate(buffers):
            self.check(rank, sent, output, at, size)

    def operation(self, rank):
        if self.elements.op != "premulsum":
            return {"sum": 0, "avg": AVERAGE}[self.elements.op]
        dtype = self.elements.dtype
        factor = self.layer.encode(
            self.layer.decode(self.one(), dtype) * 0 + self.elements.factor(rank), dtype
        )
        data = bytes(int(byte) & 0xFF for byte in factor)
        return self.suite.world.premulsum(rank, dtype.number, data)

    def one(self):
        return self.layer.filled(0, self.elements.dtype.size, 0)

    def buffers(self, rank, size):
        input_bytes = self.length * size
        output_bytes = (self.count if self.collective == "reduce_scatter" else self.length) * size
        sent = cases.Buffer(self.layer, rank, input_bytes, self.shift * size)
        sent.bytes[:] = self.elements.sent[rank][self.first * size :][:input_bytes]
        if self.in_place:
            return sent, sent, rank * output_bytes if self.collective == "reduce_scatter" else 0
        return sent, cases.Buffer(self.layer, rank, output_bytes, self.shift * size), 0

    def check(self, rank, sent, output, at, size):
        if self.collective == "reduce" and rank != self.root:
            return
        start = self.first + (rank * self.count if self.collective == "reduce_scatter" else 0)
        count = self.count if self.collective == "reduce_scatter" else self.length
        want = self.layer.moved(self.elements.expected[start * size :][: count * size], rank)
        differing = self.layer.number((output.part(at, count * size) != want).sum())
        if differing or any(self.layer.number(buffer.guards_wrong()) for buffer in (sent, output)):
            self.suite.wrong.append(f"{self}: rank {rank}, {differing} bytes differ, or guards do")


if __name__ == "__main__":
    sys.exit(main())
