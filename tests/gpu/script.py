"""What a soak does: random steps without end that depend on seed and communicators only, equal for all
ranks."""

import dataclasses
import math
import random

import cases

WINDOW_STEPS, WINDOW_BYTES = 16, 512 << 20
LARGEST_IN_A_GRAPH = 8 << 20


@dataclasses.dataclass
class Item:
    """One collective or exchange of a communicator."""

    communicator: object
    case: object
    in_place: bool
    shift: int

    def work(self, layer, rank, place):
        if isinstance(self.case, cases.Exchange):
            return cases.ExchangeWork(layer, self.case, rank, place, self.shift)
        return cases.RankWork(layer, self.case, rank, place, self.in_place, self.shift)

    def __str__(self):
        how = f"{', in place' if self.in_place else ''}{', not aligned' if self.shift else ''}"
        return f"{self.communicator.name}: {self.case}{how}"


@dataclasses.dataclass
class Step:
    """Items of one group, or the replay of a graph (`graph` is its number, `tag` its data)."""

    number: int
    items: list
    graph: object
    tag: int
    streams: list
    ends_window: bool = False

    def __str__(self):
        what = f"replay of graph {self.graph}, tag {self.tag}: " if self.graph is not None else ""
        return f"step {self.number}: {what}{' + '.join(map(str, self.items))} on streams {self.streams}"


class Script:
    """Iterate for steps. `graphs` are the lists of items that were captured."""

    def __init__(self, seed, layer, communicators, places, options, graphs=()):
        self.random, self.types, self.communicators = random.Random(seed), layer.types, communicators
        self.places, self.options, self.graphs = places, options, graphs
        self.number = self.tag = 0

    def __iter__(self):
        steps = bytes_ = 0
        while True:
            step = self.step()
            steps, bytes_ = steps + 1, bytes_ + sum(volume(item.case) for item in step.items)
            step.ends_window = steps >= self.options.window or bytes_ >= WINDOW_BYTES
            if step.ends_window:
                steps = bytes_ = 0
            yield step

    def step(self):
        self.number += 1
        streams = [self.random.randrange(2) for _ in range(self.places)]
        if self.graphs and self.random.random() < 0.3:
            graph = self.random.randrange(len(self.graphs))
            return Step(self.number, self.graphs[graph], graph, self.next_tag(), streams)
        communicator = self.random.choice(self.communicators)
        return Step(self.number, self.group(communicator, self.options.largest, True), None, 0, streams)

    def group(self, communicator, largest, may_mix):
        """Items of one group, sometimes of several communicators."""
        count = self.random.choice([1, 1, 1, 1, 2, 3, 5])
        mixed = may_mix and self.random.random() < 0.25
        pick = lambda: self.random.choice(self.communicators) if mixed else communicator
        return [self.item(pick(), largest >> (count > 1)) for _ in range(count)]

    def item(self, communicator, largest):
        dtype, shift = self.random.choice(self.types), self.random.choice([0, 0, 1, 3])
        if self.random.random() < 0.2:
            return Item(communicator, self.exchange(communicator.size, dtype, largest), False, shift)
        name, n = self.random.choice(cases.COLLECTIVES), communicator.size
        blocks = 1 if name in ("all_reduce", "broadcast", "reduce") else n
        count = 0 if self.random.random() < 0.03 else max(1, self.size(largest) // dtype.size // blocks)
        op, root = self.random.choice(cases.OPS), self.random.randrange(n)
        case = cases.Case(name, dtype, op, count, root, n, self.next_tag())
        return Item(communicator, case, case.can_be_in_place() and self.random.random() < 0.4, shift)

    def exchange(self, n, dtype, largest):
        if self.random.random() < 0.4:
            distance, count = self.random.randrange(n), self.size(largest) // dtype.size
            messages = [(r, (r + distance) % n, count) for r in range(n)]
        else:
            count = self.random.randrange(1, 3 * n)
            ends = [(self.random.randrange(n), self.random.randrange(n)) for _ in range(count)]
            messages = [(a, b, self.size(largest // 4) // dtype.size) for a, b in ends]
        return cases.Exchange(tuple(messages), dtype, self.next_tag())

    def size(self, largest):
        """Bytes, every order of magnitude as often as any other."""
        return int(math.exp(self.random.uniform(0, math.log(largest + 1))))

    def next_tag(self):
        self.tag += 1
        return self.tag


def volume(case):
    """Bytes of the buffers of the ranks that have most."""
    if isinstance(case, cases.Exchange):
        return sum(count for _, _, count in case.messages) * case.dtype.size
    return (case.input_length() + case.output_length()) * case.dtype.size
