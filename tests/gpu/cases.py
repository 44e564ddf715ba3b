"""Collectives with data that tells mistakes apart, what they must give, and buffers with guards.

What only moves data moves bits of a hash (every eighth case all zeros, every eighth all ones: values that
could pass for flags). What reduces takes its data and its results from the project's oracle (`vectors.py`),
chosen so that every partial result in every order is exact in its type; only the average of floats over a
number of ranks that is no power of two has a tolerance."""

import dataclasses

import vectors

COLLECTIVES = [
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "gather",
    "scatter",
]
REDUCING = {"all_reduce", "reduce_scatter", "reduce"}
ROOTED = {"broadcast", "reduce", "gather", "scatter"}
OPS = ["sum", "prod", "max", "min", "avg", "premulsum"]
FILL, GUARD = 0xA5, 256


def seeded(layer, place, start, stop, *words):
    """A hash of 32 bits for each index of `start..stop`, another one for other `words`."""
    seed = 0x2545F491
    for word in words:
        seed = (seed ^ (word + 0x9E3779B9)) * 0x85EBCA6B & 0xFFFFFFFF
        seed ^= seed >> 15
    h = layer.index(place, start, stop) * 0x01000193 + signed(seed)
    h = (h ^ (h >> 15)) * signed(0x2C1B3C6D)
    h = (h ^ (h >> 12)) * signed(0x297A2D39)
    return h ^ (h >> 15)


def signed(x):
    return x - (1 << 32) if x >= 1 << 31 else x


@dataclasses.dataclass(frozen=True)
class Case:
    """One collective call of all ranks. `tag` makes the data of each case another."""

    collective: str
    dtype: object
    op: str
    count: int
    root: int
    ranks: int
    tag: int

    def __str__(self):
        op = f" {self.op}" if self.collective in REDUCING else ""
        root = f" root {self.root}" if self.collective in ROOTED else ""
        return f"{self.collective} {self.dtype}{op} x {self.count}{root} (tag {self.tag})"

    @property
    def reduces(self):
        return self.collective in REDUCING

    def moves(self, _rank):
        """Whether a rank has anything to do."""
        return self.count > 0

    def input_length(self):
        return self.count * (
            self.ranks if self.collective in ("reduce_scatter", "all_to_all", "scatter") else 1
        )

    def output_length(self):
        return self.count * (self.ranks if self.collective in ("all_gather", "all_to_all", "gather") else 1)

    def has_input(self, rank):
        return self.collective not in ("broadcast", "scatter") or rank == self.root

    def has_output(self, rank):
        return self.collective not in ("reduce", "gather") or rank == self.root

    def can_be_in_place(self):
        return self.collective != "all_to_all"

    def in_place_offsets(self, rank):
        """Elements from the start of the one buffer to input and output."""
        own = rank * self.count
        if self.collective == "all_gather" or self.collective == "gather" and rank == self.root:
            return own, 0
        if self.collective == "reduce_scatter" or self.collective == "scatter" and rank == self.root:
            return 0, own
        return 0, 0

    def op_number(self, communicator, rank):
        """NCCL's number of the reduction; a pre-multiplied sum is made at its first use."""
        if self.op != "premulsum" or not self.reduces:
            return OPS.index(self.op) if self.reduces else 0
        factor = vectors.of(self.ranks).factor(self.dtype, OPS.index(self.op), rank)
        return communicator.premulsum(rank, self.dtype.number, factor)

    def input(self, layer, place, rank, start, stop):
        """Bytes of the elements `start..stop` of the input of `rank`."""
        if self.reduces:
            first, last = self._shifted(start, stop)
            return self._vectors().input(layer, place, self.dtype, OPS.index(self.op), rank, first, last)
        return self._bits(layer, place, rank, start, stop)

    def output(self, layer, place, rank):
        """Bytes that `rank` must get; None where it gets none."""
        n, own = self.count, rank * self.count
        if not self.has_output(rank):
            return None
        if self.reduces:
            start = own if self.collective == "reduce_scatter" else 0
            return self._reduced(layer, place, start, start + n)
        if self.collective == "broadcast":
            return self.input(layer, place, self.root, 0, n)
        if self.collective == "scatter":
            return self.input(layer, place, self.root, own, own + n)
        start = own if self.collective == "all_to_all" else 0
        return layer.xp.concatenate(
            [self.input(layer, place, r, start, start + n) for r in range(self.ranks)]
        )

    def wrong(self, layer, place, rank, got, want):
        """How many bytes (elements, of floats that are reduced) of the output are wrong, on the device."""
        if not self.reduces or not self.dtype.is_float:
            return (got != want).sum()
        start = rank * self.count if self.collective == "reduce_scatter" else 0
        first, last = self._shifted(start, start + self.count)
        tolerance = self._vectors().tolerance(layer, place, self.dtype, OPS.index(self.op), first, last)
        difference = layer.xp.abs(layer.decode(got, self.dtype) - layer.decode(want, self.dtype))
        return (~(difference <= tolerance)).sum()

    def _vectors(self):
        return vectors.of(self.ranks)

    def _shifted(self, start, stop):
        """Where elements lie in the oracle's data: other cases begin elsewhere."""
        shift = self.tag * 977 % self._vectors().period
        return start + shift, stop + shift

    def _bits(self, layer, place, rank, start, stop):
        special = {6: 0, 7: -1}.get(self.tag % 8)
        if special is None:
            return layer.raw(seeded(layer, place, start, stop, self.tag, rank), self.dtype.size)
        return layer.raw(layer.index(place, start, stop) * 0 + special, self.dtype.size)

    def _reduced(self, layer, place, start, stop):
        first, last = self._shifted(start, stop)
        return self._vectors().reduced(layer, place, self.dtype, OPS.index(self.op), first, last)


class Buffer:
    """Bytes, `shift` bytes off a 128-byte boundary, with guards on both sides."""

    def __init__(self, layer, place, length, shift):
        self.all = layer.filled(place, length + 2 * GUARD + 128 + shift, FILL)
        self.start = GUARD + shift + -(layer.address(self.all) + GUARD) % 128
        self.bytes = self.all[self.start : self.start + length]
        self.length, self.address = length, layer.address(self.all) + self.start

    def part(self, start, length):
        return self.bytes[start : start + length]

    def guards_wrong(self):
        after = self.start + self.length
        return (self.all[: self.start] != FILL).sum() + (self.all[after:] != FILL).sum()


class RankWork:
    """The buffers of one rank for one case: `fill`, let it run, then `wrong()`."""

    def __init__(self, layer, case, rank, place, in_place, shift):
        """`shift` is in elements."""
        self.layer, self.case, self.rank, self.place = layer, case, rank, place
        self.in_place = in_place and case.can_be_in_place()
        size = case.dtype.size
        input_bytes, output_bytes = case.input_length() * size, case.output_length() * size
        if self.in_place:
            self.output = self.input = Buffer(layer, place, max(input_bytes, output_bytes), shift * size)
        else:
            self.input = Buffer(layer, place, input_bytes, shift * size)
            self.output = Buffer(layer, place, output_bytes, shift * size)
        offsets = case.in_place_offsets(rank) if self.in_place else (0, 0)
        self.input_at, self.output_at = (offset * size for offset in offsets)
        self.input_bytes, self.output_bytes = input_bytes, output_bytes

    def fill(self, case=None):
        """Puts the data of the case (or of another that differs in its tag only) in."""
        self.case = case or self.case
        self.output.bytes[:] = FILL
        self.input.part(self.input_at, self.input_bytes)[:] = self._sent()

    def addresses(self):
        return self.input.address + self.input_at, self.output.address + self.output_at

    def issue(self, communicator, stream):
        case, op = self.case, self.case.op_number(communicator, self.rank)
        number = case.dtype.number
        communicator.call(
            case.collective, self.rank, self.addresses(), case.count, number, op, case.root, stream
        )

    def wrong(self):
        """What is wrong, counted on the device: output, input that must stay, guards."""
        case, want = self.case, self.case.output(self.layer, self.place, self.rank)
        count = self.output.guards_wrong()
        got = self.output.part(self.output_at, self.output_bytes)
        if want is not None:
            count = count + case.wrong(self.layer, self.place, self.rank, got, want)
        elif not self.in_place:
            count = count + (got != FILL).sum()
        if not self.in_place or want is None:
            sent = self.input.part(self.input_at, self.input_bytes)
            count = count + (sent != self._sent()).sum() + self.input.guards_wrong()
        return count

    def _sent(self):
        if not self.case.has_input(self.rank):
            return FILL
        return self.case.input(self.layer, self.place, self.rank, 0, self.case.input_length())


@dataclasses.dataclass(frozen=True)
class Exchange:
    """Messages `(source, destination, elements)` of one group; a pair of ranks may have several."""

    messages: tuple
    dtype: object
    tag: int

    def __str__(self):
        return f"send/recv {self.dtype} {list(self.messages)} (tag {self.tag})"

    def moves(self, rank):
        """Whether a rank has anything to send or to receive."""
        return any(rank in message[:2] and message[2] > 0 for message in self.messages)

    def data(self, layer, place, number):
        count = self.messages[number][2]
        return layer.raw(seeded(layer, place, 0, count, self.tag, number), self.dtype.size)


class ExchangeWork:
    """The buffers of one rank for an exchange, used as `RankWork`."""

    def __init__(self, layer, case, rank, place, shift):
        self.layer, self.case, self.rank, self.place = layer, case, rank, place
        size = case.dtype.size

        def buffers(end):
            mine = [(i, m) for i, m in enumerate(case.messages) if m[end] == rank]
            return [(i, m, Buffer(layer, place, m[2] * size, shift * size)) for i, m in mine]

        self.sent, self.received = buffers(0), buffers(1)

    def fill(self, case=None):
        self.case = case or self.case
        for number, _, buffer in self.sent:
            buffer.bytes[:] = self.case.data(self.layer, self.place, number)
        for _, _, buffer in self.received:
            buffer.bytes[:] = FILL

    def issue(self, communicator, stream):
        number = self.case.dtype.number
        for _, (_, destination, count), buffer in self.sent:
            communicator.send(self.rank, buffer.address, count, number, destination, stream)
        for _, (source, _, count), buffer in self.received:
            communicator.recv(self.rank, buffer.address, count, number, source, stream)

    def wrong(self):
        count = self.layer.counters(self.place, 1).sum()
        for number, _, buffer in self.sent + self.received:
            expected = self.case.data(self.layer, self.place, number)
            count = count + (buffer.bytes != expected).sum() + buffer.guards_wrong()
        return count
