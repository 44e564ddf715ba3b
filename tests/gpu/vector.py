#!/usr/bin/env python3
"""hawser.h on GPUs: tests/gpu/vector.py libnccl.so.2 [ranks]

Collectives with parts of different lengths (uneven, empty, one large), alone, in one group with a collective,
and as a CUDA graph that is replayed with new data, plain and with NCCL_PASS_SM=1 (a process each); then what
the query of the last operation says. Needs PyTorch and a GPU, or `--host` with numpy and ml_dtypes (no graphs
there); says so and ends with 0 otherwise. The exit code is 1 if something is wrong."""

import os
import sys

sys.dont_write_bytecode = True

import cases
import children
import layer as layers
import nccl
import program
from nccl import INT, P, SIZE

LENGTHS = {
    "equal": lambda a, b: 1000,
    "none": lambda a, b: 0,
    "uneven": lambda a, b: (a * 5 + b * 3) % 4 * (a + 1000 * b),
    "one large": lambda a, b: 5_000_000 if (a, b) == (0, 1) else b,
}
INT32, REPLAYS = 2, 50


def main():
    options = program.parser(__doc__).parse_args()
    parts = [(f"NCCL_PASS_SM={value}", children.DEFAULT, Trial(options, value).run) for value in "01"]
    return program.run(parts, 240, "cases")


def array(values):
    return (SIZE * len(values))(*values)


class Trial:
    """One process: all lengths, all functions."""

    def __init__(self, options, pass_sm):
        self.options, self.pass_sm, self.wrong = options, pass_sm, []

    def run(self):
        os.environ["NCCL_PASS_SM"] = self.pass_sm
        self.layer, reason = layers.open_layer(self.options.ranks, self.options.host)
        if self.layer is None:
            return {"skipped": reason}
        self.ranks = max(2, self.options.ranks or self.layer.default_ranks())
        self.watchdog = nccl.Watchdog(60)
        self.library = nccl.Library(self.options.library)
        self.lib = self.library.lib
        self.lib.hawserAlltoAllv.argtypes = [P, P, P, P, P, P, INT, P, P]
        self.lib.hawserAllGatherv.argtypes = [P, SIZE, P, P, P, INT, P, P]
        self.lib.hawserGatherv.argtypes = [P, SIZE, P, P, P, INT, INT, P, P]
        self.lib.hawserScatterv.argtypes = [P, P, P, P, SIZE, INT, INT, P, P]
        self.world = nccl.world(self.library, self.layer, self.ranks)
        self.streams = [self.layer.stream(place) for place in range(self.ranks)]
        tried = 0
        for name, length in LENGTHS.items():
            for function in ("alltoallv", "all_gatherv", "gatherv", "scatterv"):
                self.watchdog.step(lambda: f"{function}, {name}")
                self.one(function, name, length)
                tried += 1
        text = self.decision()
        self.world.destroy()
        return {"done": tried, "wrong": self.wrong, "text": f"{tried} cases; {text}"}

    def one(self, function, name, length):
        root = self.ranks - 1
        if function != "alltoallv":
            fixed = length
            length = {
                "all_gatherv": lambda a, b: fixed(a, 0),
                "gatherv": lambda a, b: fixed(a, 0) if b == root else 0,
                "scatterv": lambda a, b: fixed(0, b) if a == root else 0,
            }[function]
        buffers = [self.buffers(function, rank, length, root) for rank in range(self.ranks)]
        self.fill(buffers, length, function, 1)
        self.issue(function, buffers, length, root)
        self.check(f"{function}, {name}", buffers, length, function, 1)
        if self.layer.on_host:
            return
        graphs = self.layer.capture(
            list(enumerate(self.streams)), lambda: self.issue(function, buffers, length, root)
        )
        for tag in range(2, 2 + REPLAYS):
            self.fill(buffers, length, function, tag)
            for rank, stream in enumerate(self.streams):
                self.layer.replay(rank, graphs[rank], stream)
            if tag % 10 == 0 or tag == 1 + REPLAYS:
                self.check(f"{function}, {name}, replay {tag}", buffers, length, function, tag)
        self.layer.synchronize()
        self.layer.drop(graphs)

    def buffers(self, function, rank, length, root):
        """(input, send counts, output, receive counts)."""
        sends = [length(rank, peer) for peer in range(self.ranks)]
        recvs = [length(peer, rank) for peer in range(self.ranks)]
        same = function in ("all_gatherv", "gatherv")
        given = (sends[0] if function == "all_gatherv" else sends[root]) if same else sum(sends)
        self.layer.use(rank)
        with self.layer.on(self.streams[rank]):
            return (
                cases.Buffer(self.layer, rank, 4 * given, 0),
                sends,
                cases.Buffer(self.layer, rank, 4 * sum(recvs), 0),
                recvs,
            )

    def data(self, rank, source, target, count, function, tag):
        """Bytes that go from one rank to another; a gather sends the same to all."""
        target = 0 if function in ("all_gatherv", "gatherv") else target
        return self.layer.raw(cases.seeded(self.layer, rank, 0, count, tag, source, target), 4)

    def joined(self, rank, parts):
        parts = [part for part in parts if len(part)]
        if not parts:
            return None
        return self.layer.xp.concatenate(parts)

    def fill(self, buffers, length, function, tag):
        for rank, (given, sends, output, _) in enumerate(buffers):
            self.layer.use(rank)
            with self.layer.on(self.streams[rank]):
                output.bytes[:] = cases.FILL
                if function in ("all_gatherv", "gatherv"):
                    data = (
                        self.data(rank, rank, 0, given.length // 4, function, tag) if given.length else None
                    )
                else:
                    data = self.joined(
                        rank, [self.data(rank, rank, p, n, function, tag) for p, n in enumerate(sends) if n]
                    )
                if data is not None:
                    given.bytes[:] = data

    def issue(self, function, buffers, length, root):
        with self.library.group():
            for rank, (given, sends, output, recvs) in enumerate(buffers):
                handle, stream = self.world.handles[rank], self.layer.handle(self.streams[rank])
                to, at, own = given.address, output.address, given.length // 4
                calls = {
                    "alltoallv": lambda: self.lib.hawserAlltoAllv(
                        to, array(sends), None, at, array(recvs), None, INT32, handle, stream
                    ),
                    "all_gatherv": lambda: self.lib.hawserAllGatherv(
                        to, own, at, array(recvs), None, INT32, handle, stream
                    ),
                    "gatherv": lambda: self.lib.hawserGatherv(
                        to, own, at, array(recvs), None, INT32, root, handle, stream
                    ),
                    "scatterv": lambda: self.lib.hawserScatterv(
                        to, array(sends), None, at, recvs[root], INT32, root, handle, stream
                    ),
                }
                self.library.check(calls[function]())

    def check(self, what, buffers, length, function, tag):
        for rank, (_, _, output, recvs) in enumerate(buffers):
            self.layer.use(rank)
            with self.layer.on(self.streams[rank]):
                want = self.joined(
                    rank, [self.data(rank, p, rank, n, function, tag) for p, n in enumerate(recvs) if n]
                )
                wrong = int(output.guards_wrong()) + (
                    int((output.bytes != want).sum()) if want is not None else 0
                )
            if wrong:
                self.wrong.append(f"{what}, rank {rank}: {wrong} bytes wrong")

    def decision(self):
        last = self.library.decision(self.world.handles[0])
        executor = last.executor.decode()
        expected = "copy_engine" if self.pass_sm == "1" else "host" if self.layer.on_host else "interpreter"
        if not last.known or last.collective != b"sendrecv" or executor != expected:
            self.wrong.append(
                f"the last decision is {last.collective} by {executor}, not sendrecv by {expected}"
            )
        return f"{last.collective.decode()} of {last.bytes} bytes by {executor}, {last.protocol.decode()} x {last.channels}"


if __name__ == "__main__":
    sys.exit(main())
