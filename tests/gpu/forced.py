#!/usr/bin/env python3
"""Every collective with every algorithm and protocol forced in turn: tests/gpu/forced.py libnccl.so.2 [ranks]

A process per pair (`NCCL_ALGO` and `NCCL_PROTO` are read once), first one with nothing forced. Types,
reductions, counts, roots, in place and not, buffers aligned and not; results, inputs, outputs that must stay
and guards around all buffers are compared (`cases.py` says how exactly). What the library refuses with "no
algorithm and protocol left" is listed as not offered. Copy engines (`copy_engine`) come with
`NCCL_PASS_SM=1`; `NCCL_ZERO_COPY=1` lets them copy from buffer to buffer. One thread drives all ranks, which
share GPUs if there are more. Needs PyTorch and a GPU, or `--host` with numpy and ml_dtypes; says so and ends
with 0 otherwise. The exit code is 1 if a result is wrong or a pair did not end."""

import sys
import time

sys.dont_write_bytecode = True

import cases
import children
import layer as layers
import nccl
import program

ALGORITHMS = ["Ring", "Tree", "OneShot", "AllPairs", "Direct"]
ALGORITHMS += ["RecursiveDoubling", "HalvingDoubling", "Bruck", "Pairwise", "Knomial", "PAT"]
PROTOCOLS = ["LL", "LL128", "Simple", "fused/LL", "fused/Simple", "fused/Simple/zero_copy", "copy_engine"]
COUNTS = [0, 1, 2, 3, 7, 15, 16, 17, 127, 1000, 4095, 4096, 4097, 100_003, (1 << 20) + 3]


def main():
    options = arguments()
    rows, bad = [], 0
    for pair in options.pairs:
        row = children.in_child(pair, lambda: Suite(options, pair).run(), options.timeout + 60)
        if "failed" in row:
            row |= {"ran": {}, "refused": {}, "wrong": 1, "texts": [row["failed"]]}
        if "skipped" in row:
            print(f"skipped: {row['skipped']}")
            return 0
        rows.append((pair, row))
        print(describe(pair, row), flush=True)
        bad += row["wrong"]
    ran = sum(1 for _, row in rows if row["ran"])
    checks = sum(sum(row["ran"].values()) for _, row in rows)
    print(f"{ran} of {len(rows)} pairs offered, {checks} checks, {bad} wrong")
    if not checks:
        print("FAIL: nothing was checked")
    return 1 if bad or not checks else 0


def arguments():
    every = [children.DEFAULT] + [f"{a}/{p}" for a in ALGORITHMS for p in PROTOCOLS]
    parser = program.parser(__doc__, every)
    parser.add_argument("--collectives", default=",".join([*cases.COLLECTIVES, "send_recv"]))
    parser.add_argument("--large", type=float, default=64, help="MiB of the largest case (4 with --host)")
    parser.add_argument("--quick", action="store_true", help="not every type with every reduction")
    options = program.options_with_pairs(parser)
    options.collectives = options.collectives.split(",")
    options.large = int((min(options.large, 4) if options.host else options.large) * (1 << 20))
    return options


def describe(pair, row):
    ran = " ".join(f"{name}:{n}" for name, n in row["ran"].items()) or "-"
    refused = " ".join(
        name if name not in row["ran"] else f"{name}({what})" for name, what in row["refused"].items()
    )
    lines = [
        f"{pair:18} {'WRONG ' + str(row['wrong']) if row['wrong'] else 'ok'}  {row['seconds']:.0f} s  {ran}"
    ]
    if refused:
        lines.append(f"{'':18} not offered: {refused}")
    return "\n".join(lines + [f"{'':18} {text}" for text in row["texts"]])


class Suite:
    """All cases of one process."""

    def __init__(self, options, pair):
        self.options, self.pair, self.tag = options, pair, 0
        self.ran, self.refused, self.wrong, self.texts = {}, {}, 0, []

    def run(self):
        self.layer, reason = layers.open_layer(self.options.ranks, self.options.host)
        if self.layer is None:
            return {"skipped": reason}
        self.ranks = self.options.ranks or self.layer.default_ranks()
        self.watchdog = nccl.Watchdog(min(120, self.options.timeout))
        self.watchdog.step(lambda: f"{self.pair}: creating communicators")
        library = nccl.Library(self.options.library)
        try:
            self.world = nccl.world(library, self.layer, self.ranks)
        except nccl.NcclError as error:
            if not error.not_offered:
                raise
            return self.report() | {"refused": {"all, an unknown word": ""}}
        self.streams = [self.layer.stream(place) for place in range(self.ranks)]
        deadline = time.monotonic() + self.options.timeout
        for name in self.options.collectives:
            for made in self.exchanges() if name == "send_recv" else self.plan(name):
                if time.monotonic() > deadline:
                    self.texts.append(f"stopped after {self.options.timeout} s in {name}: raise --timeout")
                    self.wrong += 1
                    return self.report()
                self.check(name, *made)
        self.world.destroy()
        return self.report()

    def report(self):
        ranges = {
            name: f"{len(all_)} cases, {min(all_)} to {max(all_)} bytes"
            for name, all_ in self.refused.items()
        }
        return {"ran": self.ran, "refused": ranges, "wrong": self.wrong, "texts": self.texts}

    def plan(self, collective):
        """(case, maker of a rank's work) for all cases of a collective; few, if those are refused."""
        types, turn, last = self.layer.types, 0, self.ranks - 1
        for count in (1, 4097, 1 << 20):
            yield self.maker(
                collective, next(t for t in types if t.name == "float"), "sum", count, 0, False, 0
            )
        if collective not in self.ran:
            return
        places = [(False, 0), (False, 1), (True, 0), (True, 1)]
        if collective == "all_to_all":
            places = places[:2]
        for count in COUNTS:
            for in_place, shift in places:
                turn += 1
                dtype, op = types[turn * 5 % len(types)], cases.OPS[turn % len(cases.OPS)]
                yield self.maker(collective, dtype, op, count, last * (turn // 4 + turn & 1), in_place, shift)
        ops = cases.OPS if collective in cases.REDUCING else ["sum"]
        for dtype in types[:: 3 if self.options.quick else 1]:
            for op in ops:
                for count in (17, 3001):
                    turn += 1
                    in_place, shift = places[turn // 2 % len(places)]
                    yield self.maker(collective, dtype, op, count, last * (turn & 1), in_place, shift)
        if self.pair.endswith("zero_copy"):
            yield from self.direct(collective, ops, places)
        for name, (in_place, shift) in (("float", places[0]), ("bfloat16", places[-1])):
            dtype = next(t for t in types if t.name == name)
            blocks = 1 if collective in ("all_reduce", "reduce", "broadcast") else self.ranks
            count = self.options.large // dtype.size // blocks + 1
            yield self.maker(collective, dtype, "sum", count, last * shift, in_place, shift)

    def direct(self, collective, ops, places):
        """Sizes that this protocol takes; where a block is the whole, also such that leave bytes behind the
        last 16."""
        aligned, shifted = ([place for place in places if place[1] == shift] for shift in (0, 1))
        is_whole, turn = collective in ("all_reduce", "reduce", "broadcast"), 0
        for dtype in self.layer.types[:: 3 if self.options.quick else 1]:
            for op in ops:
                for root in (0, self.ranks - 1):
                    turn += 1
                    fitting = shifted if turn % 7 == 0 else aligned
                    in_place, shift = fitting[turn // 2 % len(fitting)]
                    count = (1 << 20) + (3 * (turn // 4 & 1) if is_whole else 0)
                    yield self.maker(collective, dtype, op, count, root, in_place, shift)

    def maker(self, collective, dtype, op, count, root, in_place, shift):
        self.tag += 1
        case = cases.Case(collective, dtype, op, count, root, self.ranks, self.tag)
        return case, lambda rank: cases.RankWork(self.layer, case, rank, rank, in_place, shift)

    def exchanges(self):
        """Send and receive go by size, not by `NCCL_ALGO`: they run where nothing is forced and with
        Direct."""
        if self.pair != children.DEFAULT and not self.pair.startswith("Direct"):
            return
        n, types = self.ranks, self.layer.types
        for turn, count in enumerate([*COUNTS, self.options.large // 4]):
            distance = turn % n
            ring = tuple((r, (r + distance) % n, count) for r in range(n))
            mixed = tuple((a, b, (count + 3 * a + b) // n) for a in range(n) for b in range(n))
            twice = tuple((r, (r + 1) % n, count // k) for r in range(n) for k in (1, 2))
            for number, messages in enumerate((ring, mixed, twice)):
                self.tag += 1
                dtype = types[(turn + 5 * number) % len(types)]
                yield self.exchange_maker(cases.Exchange(messages, dtype, self.tag), (turn + number) & 1)

    def exchange_maker(self, case, shift):
        return case, lambda rank: cases.ExchangeWork(self.layer, case, rank, rank, shift)

    def check(self, name, case, make):
        self.watchdog.step(lambda: f"{self.pair}: {case}")
        works = []
        for rank, stream in enumerate(self.streams):
            self.layer.use(rank)
            with self.layer.on(stream):
                works.append(make(rank))
                works[-1].fill()
        try:
            with self.world.library.group():
                for rank, work in enumerate(works):
                    work.issue(self.world, self.layer.handle(self.streams[rank]))
        except nccl.NcclError as error:
            if not error.not_offered:
                raise
            self.refused.setdefault(name, []).append(
                max(case.input_length(), case.output_length()) * case.dtype.size
            )
            return
        counts = []
        for stream, work in zip(self.streams, works):
            with self.layer.on(stream):
                counts.append(work.wrong())
        self.layer.synchronize()
        counts = [self.layer.number(count) for count in counts]
        self.ran[name] = self.ran.get(name, 0) + 1
        if any(counts):
            self.wrong += 1
            if len(self.texts) < 20:
                self.texts.append(
                    f"wrong: {case}, in place {getattr(works[0], 'in_place', False)}: per rank {counts}"
                )


if __name__ == "__main__":
    sys.exit(main())
