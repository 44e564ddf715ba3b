#!/usr/bin/env python3
"""Collectives on symmetric windows between processes: tests/gpu/windows.py libnccl.so.2 [ranks]

`collectives`: each collective with both buffers in windows, whose data then move without staging; the last
lines are a table that says so, or why not. `outside`: on one rank a buffer lies outside, so all stage.
`messages`: sends and receives of every place in and outside of windows, also in graphs. `graph`: a call in a
graph that is replayed with new data. `rounds`: windows that come and go, of memory that is used again.
`during`: windows that are taken back while a call uses them, a misuse after which all goes on.
`lifetimes`: memory that is freed before its window is taken back (`ncclMemAlloc`), windows that outlive their
communicator. `kill`, `kill_messages`: a rank dies while others use its window. `--only PHASE` runs one. Each
phase has windows of `ncclMemAlloc`, which are mapped side by side, then of `cudaMalloc`, which other
processes open by IPC handles, then such whose second half lies in the memory of the host, by CUDA's VMM
(`--memory`); logs must say that all ranks have mapped them. There is a process
for each rank; the ranks share the GPUs that there are. Prints a line for each; the exit code is 1 if anything
was wrong. Needs a GPU, no framework. Not under MPS, whose clients a killed one takes with it.
"""

import ctypes
import os
import random
import re
import signal
import struct
import sys
import tempfile
import time

sys.dont_write_bytecode = True

import nccl
import processes
from nccl import SIZE, P
from processes import ended_badly, log, log_to, said
from rank import SUM, Failed, Rank

PHASES = ["collectives", "outside", "messages", "graph", "rounds", "during", "lifetimes", "kill"]
PHASES += ["kill_messages"]
# An attribute of devices, and a kind of location, in the driver's numbers.
HOST_NUMA_ID, HOST_NUMA = 134, 3
SYMMETRIC, UINT8, INT32, WINDOW = 1, 1, 2, 64 << 20
# By memory: what the log says of a window that all ranks have mapped.
SIDE_BY_SIDE, APART = "kernels have a window of ", "calls and puts reach a window of "
MAPPED = {"ncclMemAlloc": SIDE_BY_SIDE, "cudaMalloc": APART, "half of host": SIDE_BY_SIDE}
HOST_ONLY = "the window is one for the host alone"
# Bytes of a block: what the least part for zero_copy needs for all numbers of ranks, odd, and much.
BLOCKS = [512 << 10, (1 << 20) + 16, 4 << 20]
# Messages: bytes, where they begin in the buffer that is sent and in the one that is received, and whether
# the receiver's lies in a window. Those that begin at odd places in the receiver's buffer are staged, and the
# last one as well: it is too small to be told of.
MESSAGES = [
    (8 << 20, 0, 0, True),
    ((12 << 20) + 21, 16, 4096, True),
    (30 << 20, 5, 48, True),
    ((9 << 20) + 8, 8, 4, True),
    (16 << 20, 0, 0, False),
    ((10 << 20) + 3, 3, 0, True),
    ((4 << 20) + 8, 0, 4, True),
]
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
    return processes.of_phases(__doc__, PHASES, MAPPED, carry_out, Windowed)


def carry_out(options, phase, memory):
    """What is wrong, or None, and the lines of a table."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(options.ranks):
            env, words = log_to(folder, rank, "COLL,REG"), [str(options.ranks), "--memory", memory]
            ranks.append(processes.start(options, rank, phase, folder, words=words, env=env))
        try:
            victim = options.ranks - 1 if phase.startswith("kill") else -1
            if victim >= 0:
                if not all(said(rank, b"ready", 60) for rank in ranks):
                    return "a rank did not get ready", []
                time.sleep(0.3)
                os.kill(ranks[victim].pid, signal.SIGKILL)
            problems = [ended_badly(child, rank) for rank, child in enumerate(ranks) if rank != victim]
            wrong = "; ".join(filter(None, problems)) or None
            lines = list(table(folder)) if phase == "collectives" else []
            wrong = wrong or unmapped(folder, options.ranks, memory)
            return wrong or staging(folder, phase, options.ranks), lines
        finally:
            processes.end_all(ranks)


def unmapped(folder, ranks, memory):
    """What the logs say of windows that are not mapped, or None."""
    for rank in range(ranks):
        text = log(folder, rank)
        if HOST_ONLY in text or text.count(f"{MAPPED[memory]}64 MiB of {ranks} ranks") < 2:
            lines = [line for line in text.splitlines() if "window" in line]
            return f"rank {rank} has not mapped the windows of {memory}: {lines[:1] or 'no line about it'}"
    return None


def staging(folder, phase, ranks):
    """What the logs say of staging that should not be so, or None."""
    logs = [log(folder, rank) for rank in range(ranks)]
    staged = [len(STAGED.findall(text)) for text in logs]
    if phase == "outside":
        return None if staged[0] > 0 and not any(staged[1:]) else f"lines about buffers outside: {staged}"
    if phase == "messages":
        # Twice by themselves, and once in a graph.
        wanted = 3 * sum(not inside or at % 16 != 0 for _, _, at, inside in MESSAGES[:-1])
        return None if staged == [wanted] * ranks else f"staged: {staged} instead of {wanted} of each rank"
    if not phase.startswith("kill") and any(staged):
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


class MemoryProperties(ctypes.Structure):
    """`CUmemAllocationProp`: pinned memory at a location, shared by descriptors."""

    _fields_ = [
        ("kind", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", ctypes.c_int * 2),
        ("metadata", P),
        ("flags", ctypes.c_ubyte * 8),
    ]


class Access(ctypes.Structure):
    """`CUmemAccessDesc`."""

    _fields_ = [("location", ctypes.c_int * 2), ("flags", ctypes.c_int)]


class Windowed(Rank):
    """A rank whose buffers lie in windows."""

    def run(self):
        try:
            lib = self.nccl
            lib.ncclCommWindowRegister.argtypes = [P, P, SIZE, P, ctypes.c_int]
            lib.ncclCommWindowDeregister.argtypes = [P, P]
            lib.ncclMemAlloc.argtypes, lib.ncclMemFree.argtypes = [P, SIZE], [P]
            lib.ncclSend.argtypes = lib.ncclRecv.argtypes = [P, SIZE, ctypes.c_int, ctypes.c_int, P, P]
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
        if self.options.memory == "half of host":
            return self.reserved()
        if self.is_plain():
            self.cuda("cuMemAlloc_v2", ctypes.byref(memory), SIZE(WINDOW))
        else:
            self.check(self.nccl.ncclMemAlloc(ctypes.byref(memory), WINDOW))
        return memory.value

    def reserved(self):
        """A range of addresses whose first half is memory of the GPU, the second of the host."""
        device, node, range_at = ctypes.c_int(), ctypes.c_int(), ctypes.c_uint64()
        self.cuda("cuCtxGetDevice", ctypes.byref(device))
        self.cuda("cuDeviceGetAttribute", ctypes.byref(node), HOST_NUMA_ID, device)
        words = (SIZE(WINDOW), SIZE(0), ctypes.c_uint64(0), ctypes.c_ulonglong(0))
        self.cuda("cuMemAddressReserve", ctypes.byref(range_at), *words)
        places = [(1, device.value), (HOST_NUMA, max(node.value, 0))]
        for half, place in enumerate(places):
            properties = MemoryProperties(kind=1, handles=1, location=place)
            handle, length = ctypes.c_uint64(), SIZE(WINDOW // 2)
            at = ctypes.c_uint64(range_at.value + half * WINDOW // 2)
            flags = ctypes.c_ulonglong(0)
            self.cuda("cuMemCreate", ctypes.byref(handle), length, ctypes.byref(properties), flags)
            self.cuda("cuMemMap", at, length, SIZE(0), handle, flags)
            access = Access(location=places[0], flags=3)
            self.cuda("cuMemSetAccess", at, length, ctypes.byref(access), SIZE(1))
            self.cuda("cuMemRelease", handle)
        return range_at.value

    def free(self, memory):
        if self.options.memory == "half of host":
            for half in range(2):
                at = ctypes.c_uint64(memory + half * WINDOW // 2)
                self.cuda("cuMemUnmap", at, SIZE(WINDOW // 2))
            self.cuda("cuMemAddressFree", ctypes.c_uint64(memory), SIZE(WINDOW))
        elif self.is_plain():
            self.cuda("cuMemFree_v2", ctypes.c_uint64(memory))
        else:
            self.check(self.nccl.ncclMemFree(memory))

    def is_plain(self):
        return self.options.memory == "cudaMalloc"

    def all_have_taken_back(self):
        """Returns when all ranks have taken their windows back: before that, memory of cudaMalloc is not
        freed."""
        self.call("all_gather", 4096, 0, send=self.memory[0], recv=self.memory[1])

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

    def bytes_of(self, source, number, size):
        return random.Random(1000 * number + source).randbytes(size)

    def exchange(self, message):
        """Sends a message to the next rank and receives one from the rank before."""
        size, send_at, recv_at, inside = message
        ranks = self.options.ranks
        to, frm = (self.rank + 1) % ranks, (self.rank - 1) % ranks
        recv = (self.buffers[1] if inside else self.memory[1]) + recv_at
        self.check(self.nccl.ncclGroupStart())
        self.check(self.nccl.ncclSend(self.buffers[0] + send_at, size, UINT8, to, self.comm, self.stream))
        self.check(self.nccl.ncclRecv(recv, size, UINT8, frm, self.comm, self.stream))
        self.check(self.nccl.ncclGroupEnd())
        return recv

    def checked(self, message, number, exchange):
        """Data in, `exchange`, data out, and what lies around them is as before."""
        size, send_at, _, _ = message
        data = self.bytes_of(self.rank, number, size)
        self.cuda("cuMemcpyHtoD_v2", ctypes.c_uint64(self.buffers[0] + send_at), data, SIZE(size))
        for memory in (self.buffers[1], self.memory[1]):
            # On the stream of the calls: others do not wait for it.
            what = (ctypes.c_uint64(memory), ctypes.c_uint(0x5A5A5A5A), SIZE(WINDOW // 4), self.stream)
            self.cuda("cuMemsetD32Async", *what)
        recv = exchange(message)
        self.settle()
        before = recv % 4096
        host = ctypes.create_string_buffer(before + size + 64)
        self.cuda("cuMemcpyDtoH_v2", host, ctypes.c_uint64(recv - before), SIZE(len(host.raw)))
        wanted = self.bytes_of((self.rank - 1) % self.options.ranks, number, size)
        whole = b"Z" * before + wanted + b"Z" * 64
        if host.raw != whole:
            wrong = [at for at in range(len(whole)) if host.raw[at] != whole[at]]
            there = host.raw[wrong[0] : wrong[0] + 16].hex()
            raise Failed(
                f"message {message} brought something else: {len(wrong)} bytes from {wrong[0] - before} to "
                f"{wrong[-1] - before}, {there} instead of {whole[wrong[0] : wrong[0] + 16].hex()} first"
            )

    def messages(self):
        for number, message in enumerate(MESSAGES * 2):
            self.checked(message, number, self.exchange)
        for number, message in enumerate(MESSAGES):
            graph, replay = P(), P()
            self.cuda("cuStreamBeginCapture_v2", self.stream, 1)
            recv = self.exchange(message)
            self.cuda("cuStreamEndCapture", self.stream, ctypes.byref(graph))
            self.cuda("cuGraphInstantiateWithFlags", ctypes.byref(replay), graph, ctypes.c_uint64(0))

            def launched(_):
                self.cuda("cuGraphLaunch", replay, self.stream)
                return recv

            for tag in range(3):
                self.checked(message, 100 * tag + number, launched)

    def graph(self):
        graph, replay = P(), P()
        send, recv = self.buffers
        self.cuda("cuStreamBeginCapture_v2", self.stream, 1)
        self.check(self.nccl.ncclAlltoAll(send, recv, BLOCKS[2] // 4, INT32, self.comm, self.stream))
        self.cuda("cuStreamEndCapture", self.stream, ctypes.byref(graph))
        self.cuda("cuGraphInstantiateWithFlags", ctypes.byref(replay), graph, ctypes.c_uint64(0))
        for tag in range(30):
            self.fill(send, self.options.ranks, BLOCKS[2], tag)
            if tag % 3 == 2:
                self.call("all_to_all", BLOCKS[2], tag)
                continue
            self.cuda("cuGraphLaunch", replay, self.stream)
            self.settle()
            for source in range(self.options.ranks):
                value = self.value(source, self.rank, tag)
                self.expect(recv + source * BLOCKS[2], BLOCKS[2], value, f"replay {tag} of rank {source}")

    def rounds(self):
        for tag in range(200):
            for window in self.windows:
                self.check(self.nccl.ncclCommWindowDeregister(self.comm, window))
            if tag % 20 == 0:
                self.all_have_taken_back()
                for buffer in self.buffers:
                    self.free(buffer)
                self.buffers = [self.allocate(), self.allocate()]
            self.windows = [self.register(buffer) for buffer in self.buffers]
            self.call("all_gather", BLOCKS[2], tag)

    def during(self):
        for tag in range(20):
            words = (*self.buffers, WINDOW // 4, INT32, SUM, self.comm, self.stream)
            self.check(self.nccl.ncclAllReduce(*words))
            for window in self.windows:
                self.check(self.nccl.ncclCommWindowDeregister(self.comm, window))
            self.settle()
            self.windows = [self.register(buffer) for buffer in self.buffers]
            self.call("all_reduce", BLOCKS[2], tag)

    def lifetimes(self):
        self.call("all_reduce", BLOCKS[2], 1)
        if not self.is_plain():
            self.free(self.buffers[1])
        self.check(self.nccl.ncclCommWindowDeregister(self.comm, self.windows[1]))
        if self.is_plain():
            self.all_have_taken_back()
            self.free(self.buffers[1])
        other = self.allocate()
        window = self.register(other)
        self.call("all_reduce", BLOCKS[2], 2, recv=other)
        self.check(self.nccl.ncclCommDestroy(self.comm))
        if self.nccl.ncclCommWindowDeregister(self.comm, window) == 0:
            raise Failed("a window of a communicator that is gone was taken back")
        self.free(other)

    def kill(self):
        """The last rank is killed while calls go on."""
        send, recv = self.buffers
        words = (send, recv, WINDOW // 4, INT32, SUM, self.comm, self.stream)
        self.until_a_death(lambda: self.check(self.nccl.ncclAllReduce(*words)))

    def kill_messages(self):
        self.until_a_death(lambda: self.exchange((WINDOW, 0, 0, True)))

    def until_a_death(self, call):
        victim, end = self.options.ranks - 1, time.monotonic() + 30
        self.call("all_reduce", BLOCKS[2], 0)
        print("ready", flush=True)
        try:
            while time.monotonic() < end:
                call()
                self.settle()
        except Failed as error:
            if f"rank {victim}" in str(error):
                return
            raise Failed(f"blames another: {error}") from error
        raise Failed("calls with a rank that was killed have ended well")


if __name__ == "__main__":
    sys.exit(main())
