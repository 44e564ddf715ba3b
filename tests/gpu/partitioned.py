#!/usr/bin/env python3
"""Collectives in parts: tests/gpu/partitioned.py libnccl.so.2 [ranks] [--gemm]

Every collective in several partitions, which a producing stream fills and marks in a random order on each
rank, while a consuming stream copies what has arrived out of the output; the input holds garbage until it is
filled. Then the same in a CUDA graph that is replayed with new data. Plain and with NCCL_PASS_SM=1 (a process
each). Where ranks share a GPU there are no graphs, and NCCL_PASS_SM=1 is refused. A thread for each rank. With `--gemm` also the time of a GEMM
and a reduce-scatter, one after the other and in eight parts. Needs PyTorch and a GPU, or `--host` with numpy
and ml_dtypes (no graphs there); says so and ends with 0 otherwise. The exit code is 1 if something is
wrong."""

import array
import ctypes
import os
import random
import statistics
import sys
import threading

sys.dont_write_bytecode = True

import children
import layer as layers
import nccl
import program
from nccl import INT, P, SIZE

UINT, MAGIC, FLOAT, BFLOAT16, SUM = ctypes.c_uint, 0x54505748, 7, 9, 0
# By collective: whether the input and the output have a block for each rank.
BLOCKS = {
    "all_reduce": (False, False),
    "reduce": (False, False),
    "broadcast": (False, False),
    "all_gather": (False, True),
    "reduce_scatter": (True, False),
    "alltoall": (True, True),
    "gather": (False, True),
    "scatter": (True, False),
}
ROOT, GARBAGE, ROUNDS, REPLAYS, PERIOD = 0, 0x5A, 5, 20, 251
COUNTS = [[1000], [300, 0, 1, 699], [40_000, 80_000, 120_000, 7, 260_000]]


class Config(ctypes.Structure):
    """`hawserPartitionedConfig_t`."""

    _fields_ = [
        ("size", SIZE),
        ("magic", UINT),
        ("version", UINT),
        ("collective", ctypes.c_char_p),
        ("sendbuff", P),
        ("recvbuff", P),
        ("count", SIZE),
        ("datatype", INT),
        ("op", INT),
        ("root", INT),
        ("partitions", UINT),
        ("counts", P),
        ("order", P),
        ("arrivals", UINT),
        ("reserved", UINT),
        ("config", P),
    ]


def main():
    parser = program.parser(__doc__)
    parser.add_argument("--gemm", action="store_true")
    options = parser.parse_args()
    parts = [(f"NCCL_PASS_SM={value}", children.DEFAULT, Trial(options, value).run) for value in "01"]
    return program.run(parts, 300, "rounds")


class Partitioned:
    """A `hawserPartitioned_t`."""

    def __init__(self, library, comm, collective, buffers, counts, datatype=FLOAT):
        self.library, self.handle = library, P()
        lengths = (SIZE * len(counts))(*counts)
        config = Config(ctypes.sizeof(Config), MAGIC, 1, collective.encode(), *buffers, sum(counts))
        config.datatype, config.root, config.partitions = datatype, ROOT, len(counts)
        config.counts, config.arrivals = ctypes.cast(lengths, P), 1
        self.call("Init", ctypes.byref(config), comm, ctypes.byref(self.handle))

    def call(self, name, *arguments):
        self.library.check(getattr(self.library.lib, f"hawserPartitioned{name}")(*arguments))

    def start(self, stream):
        self.call("Start", self.handle, P(stream))

    def ready(self, partition, stream):
        self.call("Ready", self.handle, UINT(partition), P(stream))

    def wait(self, partition, stream):
        self.call("Wait", self.handle, UINT(partition), P(stream))

    def finish(self, stream):
        self.call("Finish", self.handle, P(stream))

    def words(self):
        """From the next round on streams wait for words, as where kernels mark partitions."""
        self.call("Words", self.handle, ctypes.create_string_buffer(64))

    def free(self):
        self.call("Free", self.handle)


class Trial:
    """One process: a thread for each rank."""

    def __init__(self, options, pass_sm):
        self.options, self.pass_sm, self.wrong, self.done = options, pass_sm, [], 0
        self.refused = None

    def run(self):
        os.environ["NCCL_PASS_SM"] = self.pass_sm
        # Ranks that share a GPU have more streams than the eight queues of the driver's default.
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
        self.layer, reason = layers.open_layer(self.options.ranks, self.options.host)
        if self.layer is None:
            return {"skipped": reason}
        self.ranks = max(2, self.options.ranks or self.layer.default_ranks())
        # Ranks are threads of this process, so their graphs, and copy engines, could wait for each other.
        self.shares_gpus = not self.layer.on_host and program.count_gpus() < self.ranks
        self.watchdog = nccl.Watchdog(120)
        # Where ranks share a GPU, nobody may load kernels or make graphs while another rank waits for it.
        self.barrier = threading.Barrier(self.ranks, timeout=100)
        self.library = nccl.Library(self.options.library)
        self.world = nccl.world(self.library, self.layer, self.ranks)
        self.times = {}
        threads = [threading.Thread(target=self.of_rank, args=(rank,)) for rank in range(self.ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.world.destroy()
        times = "".join(f"; {name} {us:.0f} us" for name, us in self.times.items())
        text = self.refused or f"{self.done} rounds{times}"
        return {"done": self.done, "wrong": self.wrong, "text": text}

    def of_rank(self, rank):
        try:
            self.layer.use(rank)
            streams = [self.layer.stream(rank) for _ in range(3)]
            # The first, and the only one, on which memory is taken.
            if not self.layer.on_host:
                self.layer.reserve(rank, streams[0], 1 << 30)
            for collective in BLOCKS:
                for counts in COUNTS:
                    self.watchdog.step(lambda: f"{collective} in {counts}")
                    RankTrial(self, rank, collective, counts, streams).run()
            if self.options.gemm and not self.layer.on_host:
                self.watchdog.step(lambda: "GEMM and reduce-scatter")
                self.times |= Gemm(self, rank).run()
        except nccl.NcclError as error:
            is_meant = "ranks of one process share a GPU" in error.text and self.pass_sm == "1"
            is_meant = is_meant and self.shares_gpus
            self.refused = "refused, since ranks share a GPU"
            if not is_meant:
                self.fail(rank, error)
        except BaseException as error:
            self.fail(rank, error)

    def fail(self, rank, error):
        """Ends the process: the other ranks would wait for this one."""
        print(f"rank {rank}: {error}", flush=True)
        os._exit(1)


class RankTrial:
    """The rounds of one rank with one partitioned collective."""

    def __init__(self, trial, rank, collective, counts, streams):
        self.trial, self.layer, self.rank, self.ranks = trial, trial.layer, rank, trial.ranks
        self.collective, self.counts, self.count = collective, counts, sum(counts)
        self.random = random.Random(f"{rank} {collective} {counts}")
        many_in, many_out = BLOCKS[collective]
        self.blocks_in, self.blocks_out = (self.ranks if many else 1 for many in (many_in, many_out))
        self.main, self.producer, self.consumer = streams
        with self.layer.on(self.main):
            self.source = self.layer.filled(rank, 4 * self.count * self.blocks_in, 0)
            self.input = self.layer.filled(rank, 4 * self.count * self.blocks_in, GARBAGE)
            self.output = self.layer.filled(rank, 4 * self.count * self.blocks_out, 0)
            self.got = self.layer.filled(rank, 4 * self.count * self.blocks_out, 0)
            # Kernels are loaded now, since a stream that waits for a partition may keep them from it.
            self.input[:] = GARBAGE
            self.layer.delay(self.main, 1)
        self.settle()
        buffers = (self.layer.address(self.input), self.layer.address(self.output))
        self.partitioned = Partitioned(trial.library, trial.world.handles[rank], collective, buffers, counts)

    def run(self):
        for number in range(ROUNDS):
            if number == ROUNDS // 2:
                self.partitioned.words()
            self.fill_source(number)
            self.round()
            self.check(number, f"round {number}")
        if not self.layer.on_host and not self.trial.shares_gpus:
            [graph] = self.layer.capture([(self.rank, self.main)], self.captured)
            self.trial.barrier.wait()
            for number in range(ROUNDS, ROUNDS + REPLAYS):
                self.fill_source(number)
                self.layer.replay(self.rank, graph, self.main)
                self.check(number, f"replay {number}")
            self.layer.drop([graph])
        self.partitioned.free()

    def round(self):
        """A round on three streams: marked by the host, the last ones of a trial by words."""
        handle = self.layer.handle
        with self.layer.on(self.main):
            self.input[:] = GARBAGE
        self.partitioned.start(handle(self.main))
        self.layer.after(self.producer, self.main)
        self.layer.after(self.consumer, self.main)
        for partition in self.shuffled():
            if self.random.random() < 0.3:
                self.layer.delay(self.producer, self.random.randrange(100_000))
            self.copy(self.producer, self.input, self.source, self.blocks_in, partition)
            self.partitioned.ready(partition, handle(self.producer))
        for partition in self.shuffled():
            self.partitioned.wait(partition, handle(self.consumer))
            self.copy(self.consumer, self.got, self.output, self.blocks_out, partition)
        self.layer.after(self.main, self.consumer)
        self.partitioned.finish(handle(self.main))

    def captured(self):
        """A round on one stream."""
        stream = self.layer.handle(self.main)
        with self.layer.on(self.main):
            self.input[:] = GARBAGE
        self.partitioned.start(stream)
        for partition in self.shuffled():
            self.copy(self.main, self.input, self.source, self.blocks_in, partition)
            self.partitioned.ready(partition, stream)
        for partition in self.shuffled():
            self.partitioned.wait(partition, stream)
            self.copy(self.main, self.got, self.output, self.blocks_out, partition)
        self.partitioned.finish(stream)

    def shuffled(self):
        return self.random.sample(range(len(self.counts)), len(self.counts))

    def copy(self, stream, to, source, blocks, partition):
        first = sum(self.counts[:partition])
        with self.layer.on(stream):
            for block in range(blocks):
                start = 4 * (block * self.count + first)
                end = start + 4 * self.counts[partition]
                to[start:end] = source[start:end]

    def fill_source(self, number):
        data = self.input_of(self.rank, number)
        with self.layer.on(self.main):
            self.source[:] = self.layer.upload(self.rank, data.tobytes())

    def input_of(self, rank, number):
        return self.joined([[(rank, block)] for block in range(self.blocks_in)], number)

    def joined(self, blocks, number):
        """Blocks of sums of such blocks of inputs, each named by its rank and number."""
        joined = array.array("f")
        for terms in blocks:
            period = [sum(value(*term, i, number) for term in terms) for i in range(PERIOD)]
            joined.extend((array.array("f", period) * (self.count // PERIOD + 1))[: self.count])
        return joined

    def expected(self, number):
        """What arrives; None where nothing does."""
        ranks, own = range(self.ranks), self.rank
        sums = {
            "all_reduce": 0,
            "reduce": 0 if own == ROOT else None,
            "reduce_scatter": own,
        }
        if self.collective in sums:
            block = sums[self.collective]
            if block is None:
                return None
            return self.joined([[(rank, block) for rank in ranks]], number)
        parts = {
            "broadcast": [(ROOT, 0)],
            "all_gather": [(rank, 0) for rank in ranks],
            "alltoall": [(rank, own) for rank in ranks],
            "gather": [(rank, 0) for rank in ranks] if own == ROOT else None,
            "scatter": [(ROOT, own)],
        }[self.collective]
        if parts is None:
            return None
        return self.joined([[part] for part in parts], number)

    def settle(self):
        """Waits for this rank's streams only: others may wait for it on the same GPU."""
        for stream in (self.main, self.producer, self.consumer):
            self.layer.finish(stream)

    def check(self, number, what):
        self.settle()
        self.compare(number, what)
        self.trial.barrier.wait()

    def compare(self, number, what):
        self.trial.done += 1
        want = self.expected(number)
        if want is None:
            return
        with self.layer.on(self.main):
            wrong = self.layer.number((self.got != self.layer.upload(self.rank, want.tobytes())).sum())
        if wrong:
            text = f"{self.collective} in {self.counts}, rank {self.rank}, {what}: {wrong} bytes are wrong"
            self.trial.wrong.append(text)


def value(rank, block, index, number):
    """An element of a rank's input: an integer, so that sums are exact."""
    return (index * 7 + rank * 13 + block * 101 + number * 17) % PERIOD


class Gemm:
    """A GEMM whose partial sums a reduce-scatter adds up: tensor parallelism's second half of an MLP, as
    large as that of a model of 70 billion parameters on eight GPUs. Graphs of eight rounds, so that the
    host's time does not count, nor that of one rank's Python for another's."""

    ROWS, INNER, COLUMNS, PARTS, REPEATS, IN_A_GRAPH = 8192, 3584, 8192, 8, 11, 8

    def __init__(self, trial, rank):
        self.trial, self.layer, self.rank, self.ranks = trial, trial.layer, rank, trial.ranks
        torch, device = self.layer.torch, f"cuda:{rank % self.layer.gpus}"
        half = {"dtype": torch.bfloat16, "device": device}
        self.block = self.ROWS // self.ranks
        # A row of blocks: the part of each block that is one partition is a batch of one multiplication.
        self.a = torch.randn(self.ranks, self.block, self.INNER, **half)
        self.b = torch.randn(self.INNER, self.COLUMNS, **half)
        self.weights = self.b.expand(self.ranks, self.INNER, self.COLUMNS)
        self.partial = torch.zeros(self.ranks, self.block, self.COLUMNS, **half)
        self.mine = torch.zeros(self.block, self.COLUMNS, **half)
        self.stream = self.layer.stream(rank)
        self.layer.synchronize()

    def run(self):
        count = self.block * self.COLUMNS
        buffers = (self.partial.data_ptr(), self.mine.data_ptr())
        comm, library = self.trial.world.handles[self.rank], self.trial.library
        counts = [count // self.PARTS] * self.PARTS
        partitioned = Partitioned(library, comm, "reduce_scatter", buffers, counts, BFLOAT16)
        ways = {
            "GEMM alone": self.gemm,
            "GEMM in parts alone": lambda: [self.gemm_of(part) for part in range(self.PARTS)],
            "reduce-scatter alone": lambda: self.reduce_scatter(buffers, count),
            "reduce-scatter in parts alone": lambda: self.in_parts(partitioned, lambda part: None),
            "one after the other": lambda: (self.gemm(), self.reduce_scatter(buffers, count)),
            "in parts": lambda: self.in_parts(partitioned, self.gemm_of),
        }
        graphs = {name: self.captured(way) for name, way in ways.items()}
        times = {name: [] for name in ways}
        for _ in range(self.REPEATS):
            for name, graph in graphs.items():
                times[name].append(self.timed(graph))
        self.layer.drop(graphs.values())
        partitioned.free()
        return {name: statistics.median(of_way) * 1e6 for name, of_way in times.items()}

    def captured(self, way):
        def rounds():
            for _ in range(self.IN_A_GRAPH):
                with self.layer.on(self.stream):
                    way()

        # Libraries load their kernels and take their memory before.
        with self.layer.on(self.stream):
            self.gemm()
            self.gemm_of(0)
        self.layer.finish(self.stream)
        [graph] = self.layer.capture([(self.rank, self.stream)], rounds)
        self.trial.barrier.wait()
        return graph

    def timed(self, graph):
        self.trial.barrier.wait()
        self.layer.replay(self.rank, graph, self.stream)
        start = self.layer.mark(self.rank, self.stream)
        self.layer.replay(self.rank, graph, self.stream)
        end = self.layer.mark(self.rank, self.stream)
        return self.layer.seconds(start, end) / self.IN_A_GRAPH

    def gemm(self):
        flat = (self.ROWS, self.INNER)
        self.layer.torch.mm(self.a.view(flat), self.b, out=self.partial.view(self.ROWS, self.COLUMNS))

    def gemm_of(self, part):
        rows = self.block // self.PARTS
        own = slice(part * rows, part * rows + rows)
        self.layer.torch.bmm(self.a[:, own], self.weights, out=self.partial[:, own])

    def reduce_scatter(self, buffers, count):
        stream = self.layer.handle(self.stream)
        self.trial.world.call("reduce_scatter", self.rank, buffers, count, BFLOAT16, SUM, 0, stream)

    def in_parts(self, partitioned, gemm_of):
        stream = self.layer.handle(self.stream)
        partitioned.start(stream)
        for part in range(self.PARTS):
            gemm_of(part)
            partitioned.ready(part, stream)
        partitioned.finish(stream)


if __name__ == "__main__":
    sys.exit(main())
