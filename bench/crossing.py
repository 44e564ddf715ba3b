#!/usr/bin/env python3
"""Five all-reduce algorithms by rules on one machine, and the rule that follows: bench/crossing.py
libnccl.so.2 [ranks]

A communicator for each of ring, tree, all-pairs, a hierarchical and a pipeline program, told apart in one
rule file by their names. Every size from 128 B to 32 MiB is run by each of them in turns, in rounds; results
are checked before, and after every measurement the library is asked what really ran: what ran otherwise is no
measurement. Then a rule "all-pairs up to the crossing, ring above" is made of the times, and its communicator
is measured beside ring and all-pairs: it must not be slower than the better of them at any size, beyond
noise. Times are those of CUDA graphs of many operations. With --out NAME it writes NAME.md, NAME.svg and
NAME.toml (the rule). Needs PyTorch and GPUs, or `--host` with numpy and ml_dtypes. The exit code is 1 if a
result is wrong, something else ran, or the rule is slower."""

import argparse
import dataclasses
import datetime
import os
import statistics
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "gpu"))

import cases
import layer as layers
import nccl
import plot
from timing import Timed

# What a rule says, and what then has to run.
WAYS = {
    "ring": ('{ algorithm = "ring" }', "Ring"),
    "tree": ('{ algorithm = "tree" }', "Tree"),
    "all-pairs": ('{ algorithm = "all_pairs" }', "AllPairs"),
    "hierarchical": ('{ program = "two_levels" }', "two_levels"),
    "pipeline": ('{ program = "pipeline" }', "pipeline"),
}
COLOURS = {
    "ring": "#2e6fb0",
    "tree": "#8e6fb5",
    "all-pairs": "#c0392b",
    "hierarchical": "#d68910",
    "pipeline": "#2e8b57",
    "rule": "black",
}
SLOWER = 1.05


def main():
    options = arguments()
    with tempfile.TemporaryDirectory() as folder:
        rules, programs = os.path.join(folder, "rules.toml"), os.path.join(folder, "programs")
        os.mkdir(programs)
        os.environ.update(
            HAWSER_RULES=rules, MSCCL_ALGO_DIR=programs, HAWSER_RUNTIME_DIR="none", NCCL_NVLS_ENABLE="0"
        )
        layer, reason = layers.open_layer(options.ranks, options.host)
        if layer is None:
            print(f"skipped: {reason}")
            return 0
        return Experiment(options, layer, rules, programs).run()


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("library")
    parser.add_argument("ranks", type=int, nargs="?", default=0, help="default: one per GPU")
    parser.add_argument("--least", type=int, default=128, help="bytes of the first size")
    parser.add_argument("--most", type=int, default=32 << 20, help="bytes of the last size")
    parser.add_argument("--factor", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--in-place", action="store_true")
    parser.add_argument("--host", action="store_true", help="the host device, numpy")
    parser.add_argument("--out", help="file names without ending")
    options = parser.parse_args()
    if options.rounds < 3 or options.factor < 2 or not 4 <= options.least <= options.most:
        parser.error("--rounds is at least 3, --factor at least 2, and sizes are 4 bytes or more")
    return options


@dataclasses.dataclass
class Point:
    """The times of one way for one size, in microseconds, and what ran."""

    us: list
    ran: str

    def median(self):
        return statistics.median(self.us)

    def range(self):
        """Without the extreme round on either side, if there are enough."""
        out = 1 if len(self.us) >= 5 else 0
        us = sorted(self.us)
        return us[out], us[len(us) - 1 - out]


class Experiment:
    def __init__(self, options, layer, rules, programs):
        self.options, self.layer, self.rules = options, layer, rules
        self.ranks = max(2, options.ranks or layer.default_ranks())
        self.ways = {way: what for way, what in WAYS.items() if way != "hierarchical" or self.ranks % 2 == 0}
        self.wrong, self.watchdog = [], nccl.Watchdog(120)
        texts = {"pipeline": pipeline(self.ranks)}
        if "hierarchical" in self.ways:
            texts["two_levels"] = two_levels(self.ranks)
        for name, text in texts.items():
            write(os.path.join(programs, f"{name}.plan"), text)
        self.library = nccl.Library(options.library)
        self.streams = [layer.stream(place) for place in range(self.ranks)]
        self.float = next(t for t in layer.types if t.name == "float")

    def run(self):
        sizes, size = [], self.options.least
        while size <= self.options.most:
            sizes.append(size)
            size *= self.options.factor
        write(
            self.rules, "".join(rule(f'communicator = "{way}"', use) for way, (use, _) in self.ways.items())
        )
        table = self.measure({way: ran for way, (_, ran) in self.ways.items()}, sizes)
        at = crossing(table, sizes)
        text = chosen(table, sizes, at)
        write(
            self.rules,
            text.replace("match = {", 'match = { communicator = "rule",')
            + "".join(rule(f'communicator = "{way}"', self.ways[way][0]) for way in ("ring", "all-pairs")),
        )
        both = {way: self.ways[way][1] for way in ("ring", "all-pairs")}
        second = self.measure(
            {**both, "rule": lambda size: both["all-pairs" if size < at else "ring"]}, sizes
        )
        slower = [size for size in sizes if is_slower(second[size])]
        report = self.report(table, second, at, slower)
        print(report)
        if self.options.out:
            write(f"{self.options.out}.md", report + "\n")
            write(f"{self.options.out}.svg", picture(table, second, sizes, self.title()))
            write(f"{self.options.out}.toml", f"# {self.title()}\n" + text)
        for line in self.wrong[:20]:
            print(f"WRONG: {line}")
        return 1 if self.wrong or slower else 0

    def measure(self, ways, sizes):
        """Points by size and way. `ways` says what has to run, for all sizes or by size."""
        self.watchdog.step(lambda: f"making communicators {', '.join(ways)}")
        communicators = {way: nccl.world(self.library, self.layer, self.ranks, way) for way in ways}
        table = {}
        for size in sizes:
            self.watchdog.step(lambda: f"{size} bytes by {', '.join(ways)}")
            case = cases.Case("all_reduce", self.float, "sum", size // 4, 0, self.ranks, size % 97)
            works = self.works(case)
            running = {
                way: self.ready(communicator, works, size) for way, communicator in communicators.items()
            }
            table[size] = {way: Point([], asked(one.communicator)) for way, one in running.items()}
            for _ in range(self.options.rounds):
                for way, one in running.items():
                    table[size][way].us.append(one.microseconds())
            for way, one in running.items():
                wanted, ran = ways[way](size) if callable(ways[way]) else ways[way], table[size][way].ran
                if ran.split("/")[0] != wanted:
                    self.wrong.append(f"{way} at {size} bytes: {ran} ran, not {wanted}")
                    del table[size][way]
                one.end()
        for communicator in communicators.values():
            communicator.destroy()
        return table

    def ready(self, communicator, works, size):
        """A communicator and one size: checked, and ready to be timed."""
        one = Timed(
            self.layer,
            self.streams,
            communicator,
            works,
            50 if size <= 1 << 18 else 20 if size <= 4 << 20 else 8,
        )
        if counts := one.wrong():
            self.wrong.append(f"{communicator.name} at {size} bytes: bytes wrong by rank: {counts}")
        before = asked(communicator)
        one.capture()
        if asked(communicator) != before:
            self.wrong.append(
                f"{communicator.name} at {size} bytes: {asked(communicator)} in a graph, {before} before"
            )
        return one

    def works(self, case):
        works = []
        for rank, stream in enumerate(self.streams):
            self.layer.use(rank)
            with self.layer.on(stream):
                works.append(cases.RankWork(self.layer, case, rank, rank, self.options.in_place, 0))
        return works

    def title(self):
        place = "in place" if self.options.in_place else "out of place"
        return (
            f"all-reduce of float, {place}, {self.ranks} ranks on {self.devices()}, {datetime.date.today()}"
        )

    def devices(self):
        if self.layer.on_host:
            return "the host device"
        names = [
            self.layer.torch.cuda.get_device_name(gpu) for gpu in range(min(self.ranks, self.layer.gpus))
        ]
        return f"{len(names)} x {names[0]}"

    def report(self, table, second, at, slower):
        ways = list(self.ways)
        lines = [
            f"## {self.title()}",
            "",
            f"Medians of {self.options.rounds} rounds in turns, µs, and what ran (protocol, blocks).",
            "",
        ]
        lines += ["| bytes | " + " | ".join(ways) + " |", "|---" * (len(ways) + 1) + "|"]
        for size, row in table.items():
            best = min((point.median() for point in row.values()), default=0)
            cells = [cell(row.get(way), best) for way in ways]
            lines.append(f"| {plot.unit(size)} | " + " | ".join(cells) + " |")
        lines += [
            "",
            f"All-pairs below {at} bytes, ring from there on:" if at > min(table) else "Ring for all sizes:",
            "",
        ]
        lines += ["| bytes | ring | all-pairs | rule | rule / better | ran |", "|---|---|---|---|---|---|"]
        for size, row in second.items():
            if len(row) == 3:
                better = min(row["ring"].median(), row["all-pairs"].median())
                figures = [f"{row[way].median():.1f}" for way in ("ring", "all-pairs", "rule")]
                mark = " **slower**" if size in slower else ""
                ratio = f"{row['rule'].median() / better:.2f}{mark}"
                lines.append(
                    f"| {plot.unit(size)} | " + " | ".join([*figures, ratio, row["rule"].ran]) + " |"
                )
        said = "never slower than the better of both beyond noise" if not slower else f"SLOWER at {slower}"
        return "\n".join([*lines, "", f"The rule is {said}."])


def asked(communicator):
    """What the last operation ran."""
    last = communicator.decision()
    return f"{last.algorithm.decode()}/{last.executor.decode()}/{last.protocol.decode()} x {last.channels}"


def cell(point, best):
    if point is None:
        return "–"
    low, high = point.range()
    text = f"{point.median():.1f} ±{(high - low) / 2 / point.median():.0%}"
    text = f"**{text}**" if point.median() == best else text
    return f"{text} {point.ran.split('/', 1)[1]}"


def crossing(table, sizes):
    """The size from which ring is taken: where the product of all times is least; 0 = always, past the last =
    never."""
    rows = [(size, table[size]) for size in sizes if {"ring", "all-pairs"} <= set(table[size])]
    if not rows:
        return 0

    def cost(at):
        points = [row["all-pairs" if size < at else "ring"].median() for size, row in rows]
        return statistics.geometric_mean(points)

    return min([*(size for size, _ in rows), sizes[-1] + 1], key=cost)


def chosen(table, sizes, at):
    """The rule file, with the times around the crossing."""
    near = [size for size in sizes if at // 4 <= size <= at * 4 and {"ring", "all-pairs"} <= set(table[size])]
    text = "".join(
        f"# {size:>9} bytes: ring {table[size]['ring'].median():.1f} µs, all-pairs {table[size]['all-pairs'].median():.1f} µs\n"
        for size in near
    )
    text += (
        rule(f'collective = "all_reduce", bytes = "..{at}"', WAYS["all-pairs"][0]) if at > sizes[0] else ""
    )
    return text + (rule(f'collective = "all_reduce", bytes = "{at}.."', WAYS["ring"][0]))


def rule(when, use):
    return f"[[rule]]\nmatch = {{ {when} }}\nuse = {use}\n\n"


def is_slower(row):
    """Whether the rule is slower than the better of both, beyond noise."""
    if len(row) < 3:
        return False
    better = min((row["ring"], row["all-pairs"]), key=Point.median)
    return row["rule"].median() > SLOWER * better.median() and row["rule"].range()[0] > better.range()[1]


def plan(name, ranks, per_block, programs):
    """The text of a program: for each rank a list of channels, each a list of steps."""
    text = f"hawser-plan 1\nname {name}\ncollective all_reduce\nranks {ranks}\nroot 0\nper_block {per_block}\nscratch 0\n"
    for rank, channels in enumerate(programs):
        text += f"\nrank {rank}\n"
        for number, steps in enumerate(channels):
            text += f"  channel {number}\n" + "".join(f"    {step}\n" for step in steps)
    return text


def pipeline(ranks):
    """Sums go along a chain and back, half of the data from either end: tiles follow one another."""

    def along(rank, chunk):
        chain = list(range(ranks)) if chunk == 0 else list(reversed(range(ranks)))
        at = chain.index(rank)
        before, after = chain[max(at - 1, 0)], chain[min(at + 1, ranks - 1)]
        if at == 0:
            return [f"send src in:{chunk} to {after}", f"recv from {after} dst out:{chunk}"]
        if at == ranks - 1:
            return [
                f"recv_reduce_copy_send from {before} src in:{chunk} order 1 dst out:{chunk} to {before} finish"
            ]
        return [
            f"recv_reduce_send from {before} src in:{chunk} order 1 to {after}",
            f"recv_copy_send from {after} dst out:{chunk} to {before}",
        ]

    return plan("pipeline", ranks, 2, [[along(rank, chunk) for chunk in (0, 1)] for rank in range(ranks)])


def two_levels(ranks):
    """All pairs inside each half of the ranks, an exchange between the halves, all pairs again."""
    half = ranks // 2

    def steps(rank):
        own, first = rank % half, rank // half * half
        peers, twin = [first + i for i in range(half) if i != own], (rank + half) % ranks
        out = [f"send src in:{peer - first} to {peer}" for peer in peers]
        if peers:
            out.append(f"recv_reduce_copy from {','.join(map(str, peers))} src in:{own} dst out:{own}")
        kept = f"{'out' if peers else 'in'}:{own}"
        out += [f"send src {kept} to {twin}", f"recv_reduce_copy from {twin} src {kept} dst out:{own} finish"]
        if peers:
            out.append(f"send src out:{own} to {','.join(map(str, peers))}")
        return out + [f"recv from {peer} dst out:{peer - first}" for peer in peers]

    return plan("two_levels", ranks, half, [[steps(rank)] for rank in range(ranks)])


def picture(table, second, sizes, title):
    """Time against size, both logarithmic."""
    width, height = 640, 400
    curves = {
        way: [(size, row[way].median()) for size, row in table.items() if way in row] for way in COLOURS
    }
    curves["rule"] = [(size, row["rule"].median()) for size, row in second.items() if "rule" in row]
    every = [us for points in curves.values() for _, us in points]
    low, high = min(every), max(max(every), min(every) * 1.1)
    x, y = plot.scale(sizes[0], max(sizes[-1], sizes[0] + 1), 0, width), plot.scale(low, high, height, 0)
    body = plot.label(0, -16, title, "start")
    mark = 1
    while mark <= high * 10:
        for us in (mark, 2 * mark, 5 * mark):
            if low <= us <= high:
                body += plot.line(0, y(us), width, y(us)) + plot.label(-6, y(us) + 4, f"{us} µs", "end")
        mark *= 10
    for size in sizes[:: max(1, len(sizes) // 9)]:
        body += plot.line(x(size), 0, x(size), height) + plot.label(
            x(size), height + 18, plot.unit(size), "middle"
        )
    for index, (way, points) in enumerate(curves.items()):
        style = ' stroke-dasharray="3 4"' if way == "rule" else ""
        body += plot.curve([(x(size), y(us)) for size, us in points], COLOURS[way], style) if points else ""
        body += plot.label(14, 20 + 16 * index, way, "start", COLOURS[way])
    body += plot.label(width / 2, height + 38, "size", "middle", "#555")
    body += plot.label(-6, 2, "time", "end", "#555")
    ways = ", ".join(curves)
    text = f"Time per operation in µs against size, both logarithmic, of {ways}."
    body = f'<g transform="translate(80,44)">\n{body}</g>\n</svg>\n'
    return plot.begin(width + 120, height + 100, title, text) + body


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    sys.exit(main())
