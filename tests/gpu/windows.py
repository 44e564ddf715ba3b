#!/usr/bin/env python3
"""Collectives on symmetric windows between processes: tests/gpu/windows.py libnccl.so.2 [ranks]

`collectives`: each collective with both buffers in windows of ncclMemAlloc, whose data then move without
staging; the last lines are a table that says so, or why not. `outside`: on one rank a buffer lies outside, so
all stage. `graph`: a call in a graph that is replayed with new data. `rounds`: windows that come and go, of
memory that is used again. `lifetimes`: memory that is freed before its window is taken back, windows that
outlive their communicator. `kill`: a rank dies while others read its window. `--only PHASE` runs one of these.
There is a process for each rank; the ranks share the GPUs that there are. Prints a line for each; the exit code
is 1 if anything was wrong. Needs a GPU, no framework. Not under MPS, whose clients a killed one takes with it.
"""

import ctypes
import os
import re
import signal
import struct
import sys
import tempfile
import time

sys.dont_write_bytecode = True

import nccl
import processes
from deaths import SIZE, SUM, Failed, P, Rank
from processes import ended_badly, has_gpu, said

PHASES = ["collectives", "outside", "graph", "rounds", "lifetimes", "kill"]
SYMMETRIC, INT32, WINDOW = 1, 2, 64 << 20
# Bytes of a block: what the least part for zero_copy needs for all numbers of ranks, odd, and much.
BLOCKS = [512 << 10, (1 << 20) + 16, 4 << 20]
# By collective: whether the output and the input have a block for each rank; others have one.
MANY = {
    "all_gather": (1, 0),
    "reduce_scatter": (0, 1),
    "all_to_all": (1, 1),
    "gather": (1, 0),
    "scatter": (0, 1),
}
STAGED = re.compile(r"staged, as the (\w+)")
SINGLE = re.compile(r"; staged: (.*)")


def main():
    options = parsed()
    if options.child is not None:
        return Windowed(options).run()
    if not has_gpu():
        print("skipped: needs a GPU")
        return 0
    bad = 0
    for phase in PHASES if options.only is None else [options.only]:
        wrong, table = carry_out(options, phase)
        print(f"{phase:12} {wrong or 'ok'}", flush=True)
        for line in table:
            print(f"  {line}")
        bad += wrong is not None
    print(f"{bad} phases wrong")
    return 1 if bad else 0


def parsed():
    parser = processes.parser(__doc__)
    parser.add_argument("--only", choices=PHASES)
    return parser.parse_args()


def carry_out(options, phase):
    """What is wrong, or None, and the lines of a table."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(options.ranks):
            file = os.path.join(folder, f"log{rank}")
            env = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "COLL", "NCCL_DEBUG_FILE": file}
            words = [str(options.ranks)]
            ranks.append(processes.start(options, rank, phase, folder, words=words, env=env))
        try:
            victim = options.ranks - 1 if phase == "kill" else -1
            if phase == "kill":
                if not all(said(rank, b"ready", 60) for rank in ranks):
                    return "a rank did not get ready", []
                time.sleep(0.3)
                os.kill(ranks[victim].pid, signal.SIGKILL)
            problems = [ended_badly(child, rank) for rank, child in enumerate(ranks) if rank != victim]
            wrong = "; ".join(filter(None, problems)) or None
            lines = list(table(folder)) if phase == "collectives" else []
            return wrong or staging(folder, phase, options.ranks), lines
        finally:
            processes.end_all(ranks)


def log(folder, rank):
    try:
        with open(os.path.join(folder, f"log{rank}"), errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def staging(folder, phase, ranks):
    """What the logs say of staging that should not be so, or None."""
    logs = [log(folder, rank) for rank in range(ranks)]
    staged = [len(STAGED.findall(text)) for text in logs]
    if phase == "outside":
        return None if staged[0] > 0 and not any(staged[1:]) else f"lines about buffers outside: {staged}"
    if phase != "kill" and any(staged):
        return f"buffers in windows were staged: {staged} times"
    if phase in ("graph", "rounds") and not all("zero_copy" in text for text in logs):
        return "no call went without staging"
    return None


def table(folder):
    """For each collective and size whether rank 0's log says that it went without staging, or why not."""
    for line in log(folder, 0).splitlines():
        found = re.search(r"op \d+: (\w+) (\d+) x \w+: (\S+) x \d+", line)
        if found:
            why = SINGLE.search(line)
            yield f"{found[1]:16} {found[2]:>9}  {found[3]:32} {'staged: ' + why[1] if why else 'zero-copy'}"


class Windowed(Rank):
    """A rank whose buffers lie in windows."""

    def run(self):
        try:
            lib = self.nccl
            lib.ncclCommWindowRegister.argtypes = [P, P, SIZE, P, ctypes.c_int]
            lib.ncclCommWindowDeregister.argtypes = [P, P]
            lib.ncclMemAlloc.argtypes, lib.ncclMemFree.argtypes = [P, SIZE], [P]
            for name, parameters in nccl.CALLS.values():
                rest = [ctypes.c_int] * len(parameters.split())
                getattr(lib, name).argtypes = [P, P, SIZE, *rest, P, P]
            self.open_gpu()
            self.join()
            self.buffers = [self.allocate(), self.allocate()]
            self.windows = [self.register(buffer) for buffer in self.buffers]
            getattr(self, self.options.phase)()
        except Failed as error:
            print(f"error: {error}", flush=True)
            os._exit(3)
        os._exit(0)

    def allocate(self):
        memory = P()
        self.check(self.nccl.ncclMemAlloc(ctypes.byref(memory), WINDOW))
        return memory.value

    def register(self, memory):
        window = P()
        made = ctypes.byref(window)
        self.check(self.nccl.ncclCommWindowRegister(self.comm, memory, WINDOW, made, SYMMETRIC))
        return window

    def value(self, source, block, tag):
        return (tag * 1009 + source * 37 + block * 11 + 1) & 0xFFFF

    def fill(self, memory, blocks, block_bytes, tag):
        for block in range(blocks):
            at = ctypes.c_uint64(memory + block * block_bytes)
            value = ctypes.c_uint(self.value(self.rank, block, tag))
            self.cuda("cuMemsetD32Async", at, value, SIZE(block_bytes // 4), self.stream)

    def expect(self, memory, block_bytes, value, what):
        host = ctypes.create_string_buffer(block_bytes)
        self.cuda("cuMemcpyDtoH_v2", host, ctypes.c_uint64(memory), SIZE(block_bytes))
        if host.raw != struct.pack("i", value) * (block_bytes // 4):
            raise Failed(f"{what}: {struct.unpack('i', host.raw[:4])[0]} instead of {value}")

    def call(self, collective, block_bytes, tag, root=0, send=None, recv=None):
        """One call with checked results. Blocks of the input differ, so do ranks."""
        ranks, rank = self.options.ranks, self.rank
        send, recv = send or self.buffers[0], recv or self.buffers[1]
        outputs, inputs = MANY.get(collective, (0, 0))
        name, parameters = nccl.CALLS[collective]
        has_input = collective not in ("broadcast", "scatter") or rank == root
        has_output = collective not in ("reduce", "gather") or rank == root
        if has_input:
            self.fill(send, ranks if inputs else 1, block_bytes, tag)
        values = {"type": INT32, "op": SUM, "root": root}
        words = [values[word] for word in parameters.split()]
        function = getattr(self.nccl, name)
        self.check(function(send, recv, block_bytes // 4, *words, self.comm, self.stream))
        self.settle()
        if not has_output:
            return
        everybody = range(ranks)
        mine = rank if inputs else 0
        if collective in ("all_reduce", "reduce", "reduce_scatter"):
            wanted = [sum(self.value(source, mine, tag) for source in everybody)]
        elif outputs:
            wanted = [self.value(source, mine, tag) for source in everybody]
        else:
            wanted = [self.value(root, mine, tag)]
        for block, value in enumerate(wanted):
            what = f"{collective} of {block_bytes}, block {block}, root {root}"
            self.expect(recv + block * block_bytes, block_bytes, value, what)

    def collectives(self):
        for number, block_bytes in enumerate(BLOCKS):
            for place, collective in enumerate(nccl.CALLS):
                root = (number + place) % self.options.ranks
                self.call(collective, block_bytes, 8 * number + place, root)
        self.call("all_reduce", BLOCKS[2], 99, send=self.buffers[0] + 4096, recv=self.buffers[0] + 4096)

    def outside(self):
        for tag, collective in enumerate(nccl.CALLS):
            send, recv = (self.memory if self.rank == 0 else (None, None))
            self.call(collective, BLOCKS[2], tag, send=send, recv=recv)

    def graph(self):
        graph, replay = P(), P()
        send, recv = self.buffers
        self.cuda("cuStreamBeginCapture_v2", self.stream, 1)
        self.check(self.nccl.ncclAllGather(send, recv, BLOCKS[2] // 4, INT32, self.comm, self.stream))
        self.cuda("cuStreamEndCapture", self.stream, ctypes.byref(graph))
        self.cuda("cuGraphInstantiateWithFlags", ctypes.byref(replay), graph, ctypes.c_uint64(0))
        for tag in range(30):
            self.fill(send, 1, BLOCKS[2], tag)
            if tag % 3 == 2:
                self.call("all_gather", BLOCKS[2], tag)
                continue
            self.cuda("cuGraphLaunch", replay, self.stream)
            self.settle()
            for source in range(self.options.ranks):
                value = self.value(source, 0, tag)
                self.expect(recv + source * BLOCKS[2], BLOCKS[2], value, f"replay {tag} of rank {source}")

    def rounds(self):
        for tag in range(200):
            for window in self.windows:
                self.check(self.nccl.ncclCommWindowDeregister(self.comm, window))
            if tag % 20 == 0:
                for buffer in self.buffers:
                    self.check(self.nccl.ncclMemFree(buffer))
                self.buffers = [self.allocate(), self.allocate()]
            self.windows = [self.register(buffer) for buffer in self.buffers]
            self.call("all_gather", BLOCKS[2], tag)

    def lifetimes(self):
        self.call("all_reduce", BLOCKS[2], 1)
        self.check(self.nccl.ncclMemFree(self.buffers[1]))
        self.check(self.nccl.ncclCommWindowDeregister(self.comm, self.windows[1]))
        other = self.allocate()
        window = self.register(other)
        self.call("all_reduce", BLOCKS[2], 2, recv=other)
        self.check(self.nccl.ncclCommDestroy(self.comm))
        if self.nccl.ncclCommWindowDeregister(self.comm, window) == 0:
            raise Failed("a window of a communicator that is gone was taken back")
        self.check(self.nccl.ncclMemFree(other))

    def kill(self):
        """The last rank is killed while calls go on."""
        victim, end, count = self.options.ranks - 1, time.monotonic() + 30, WINDOW // 4
        self.call("all_reduce", BLOCKS[2], 0)
        print("ready", flush=True)
        try:
            while time.monotonic() < end:
                send, recv = self.buffers
                self.check(self.nccl.ncclAllReduce(send, recv, count, INT32, SUM, self.comm, self.stream))
                self.settle()
        except Failed as error:
            if f"rank {victim}" in str(error):
                return
            raise Failed(f"blames another: {error}") from error
        raise Failed("calls with a rank that was killed have ended well")


if __name__ == "__main__":
    sys.exit(main())
