#!/usr/bin/env python3
"""One-sided transfers on GPUs: tests/gpu/rma.py libnccl.so.2 [ranks] [--only PHASE]

`put`: every rank puts into every window, little and much, alone and in groups, and checks what came.
`places`: puts into several windows of one allocation, and of small ones that share a block of the driver.
`order`: what a stream does behind a wait sees what was put. `counters`: signals and contexts count for
themselves. `graph`: puts and waits in a graph that is replayed with new data, between calls outside of it.
`revoke` and `kill`: what ends a wait. These have a process for each rank, as ranks of one host and of a host
each; `thread` has all ranks in one thread. All with windows of memory that other processes can map
(`ncclMemAlloc`, and `cudaMalloc` by IPC handles), where streams put by themselves, and of memory that they
cannot (`cudaMallocAsync`); `mixed` has one of the first and one of the last. Logs must say which of this is
so. The ranks share the GPUs that there are. Prints a line for each; the exit code is 1 if anything was wrong.
Needs a GPU, no framework.
"""

import array
import ctypes
import os
import signal
import struct
import sys
import tempfile
import time

sys.dont_write_bytecode = True

import processes
from nccl import SIZE, P, UniqueId
from processes import PLACES, ended_badly, has_gpu, log, log_to, said
from rank import Failed, Rank

PHASES = ["put", "places", "order", "counters", "graph", "revoke", "kill"]
# The kinds of the two windows, and what the log says of a window of each kind.
MEMORY = {
    "ncclMemAlloc": ["ncclMemAlloc"] * 2,
    "cudaMalloc": ["cudaMalloc"] * 2,
    "cudaMallocAsync": ["cudaMallocAsync"] * 2,
    "mixed": ["ncclMemAlloc", "cudaMallocAsync"],
}
MAPPED = {
    "ncclMemAlloc": "kernels have a window of",
    "cudaMalloc": "calls and puts reach a window of",
    "cudaMallocAsync": "the window is one for the host alone",
}
SIGNALS, CONTEXTS = 3, 2
UINT32, SYMMETRIC, UNSET = 3, 1, -(1 << 31)
# Elements: nothing, little, odd, more than a message of the control connection holds.
COUNTS = [0, 1, 1000, 65537, 1 << 20]
PART = 1 << 20


def main():
    options = parsed()
    if options.child is not None:
        return Putter(options).run()
    if not has_gpu():
        print("skipped: needs a GPU")
        return 0
    bad = 0
    for phase in PHASES + ["thread"] if options.only is None else [options.only]:
        for place in PLACES if phase != "thread" else ["one process"]:
            for memory in [options.memory] if options.memory else MEMORY:
                wrong = carry_out(options, phase, place, memory)
                print(f"{phase:9} {place:20} {memory:12} {wrong or 'ok'}", flush=True)
                bad += wrong is not None
    return 1 if bad else 0


def parsed():
    parser = processes.parser(__doc__)
    parser.add_argument("--only", choices=[*PHASES, "thread"])
    parser.add_argument("--memory", choices=list(MEMORY))
    return parser.parse_args()


def carry_out(options, phase, place, memory):
    """What is wrong, or None."""
    count = 1 if phase == "thread" else options.ranks
    with tempfile.TemporaryDirectory() as folder:
        words = [str(options.ranks), "--memory", memory]
        ranks = []
        for rank in range(count):
            env = log_to(folder, rank, "REG")
            ranks.append(processes.start(options, rank, phase, folder, place, words, env))
        try:
            victim = count - 1 if phase == "kill" else -1
            if phase == "kill":
                if not all(said(rank, b"ready", 60) for rank in ranks):
                    return "a rank did not get ready"
                os.kill(ranks[victim].pid, signal.SIGKILL)
            problems = [ended_badly(child, rank) for rank, child in enumerate(ranks) if rank != victim]
            wrong = "; ".join(filter(None, problems)) or None
            if wrong or place == PLACES[1]:
                return wrong
            logs = [log(folder, rank) for rank in range(count) if rank != victim]
            return next(filter(None, (misplaced(text, memory) for text in logs)), None)
        finally:
            processes.end_all(ranks)


def misplaced(text, memory):
    """What is wrong with how a log says that windows of such memory are mapped, or None."""
    for kind, words in MAPPED.items():
        if (words in text) != (kind in MEMORY[memory]):
            lines = [line for line in text.splitlines() if "window" in line]
            return f"\"{words}\" is {'said' if words in text else 'not said'}: {lines[:2]}"
    return None


class WaitFor(ctypes.Structure):
    """`ncclWaitSignalDesc_t`."""

    _fields_ = [(name, ctypes.c_int) for name in ("count", "peer", "index", "context")]


def config():
    """`ncclConfig_t` with signals and contexts, and nothing else set."""
    words = array.array("i", [UNSET] * 30)
    words[0:4] = array.array("i", [120, 0, struct.unpack("i", b"\xef\xbe\xfe\xca")[0], 23203])
    for pointer in (8, 9, 12, 13):
        words[pointer] = 0
    words[21], words[25] = CONTEXTS, SIGNALS
    return words.tobytes()


def word(source, target, tag):
    """What a rank puts to another one."""
    return (tag * 1009 + source * 37 + target * 11 + 1) & 0x7FFFFFFF


class Putter(Rank):
    """A rank that puts into windows of others."""

    def run(self):
        try:
            self.declare()
            self.open_gpu()
            if self.options.phase == "thread":
                self.thread()
            else:
                self.join()
                self.register()
                getattr(self, self.options.phase)()
        except Failed as error:
            print(f"error: {error}", flush=True)
            os._exit(3)
        os._exit(0)

    def declare(self):
        i, lib = ctypes.c_int, self.nccl
        lib.ncclPutSignal.argtypes = [P, SIZE, i, i, P, SIZE, i, i, ctypes.c_uint, P, P]
        lib.ncclSignal.argtypes = [i, i, i, ctypes.c_uint, P, P]
        lib.ncclWaitSignal.argtypes = [i, P, P, P]
        lib.ncclCommWindowRegister.argtypes = [P, P, SIZE, P, i]
        lib.ncclCommWindowDeregister.argtypes = [P, P]
        lib.ncclCommInitRankConfig.argtypes = [P, i, UniqueId, i, ctypes.c_char_p]
        lib.ncclCommInitRank = lambda comm, ranks, identity, rank: lib.ncclCommInitRankConfig(
            comm, ranks, identity, rank, config()
        )

    def open_gpu(self):
        super().open_gpu()
        for at, kind in enumerate(MEMORY[self.options.memory]):
            self.cuda("cuMemFree_v2", ctypes.c_uint64(self.memory[at]))
            self.memory[at] = self.allocate(kind, 64 << 20)

    def allocate(self, kind, size):
        address = P()
        if kind == "ncclMemAlloc":
            self.check(self.nccl.ncclMemAlloc(ctypes.byref(address), SIZE(size)))
        elif kind == "cudaMalloc":
            self.cuda("cuMemAlloc_v2", ctypes.byref(address), SIZE(size))
        else:
            self.cuda("cuMemAllocAsync", ctypes.byref(address), SIZE(size), self.stream)
            self.cuda("cuStreamSynchronize", self.stream)
        return address.value

    def register(self):
        self.windows = [self.window_of(memory, 64 << 20) for memory in self.memory]

    def window_of(self, memory, size):
        window = P()
        made = ctypes.byref(window)
        self.check(self.nccl.ncclCommWindowRegister(self.comm, P(memory), SIZE(size), made, SYMMETRIC))
        return window

    def put_to(self, peer, count, index=0, context=0, window=None, at=None):
        """From the part of the peer in the first window into the part of this rank in the second, or to a
        place in another one."""
        source = self.memory[0] + 4 * PART * peer
        window, at = (self.windows[1], 4 * PART * self.rank) if window is None else (window, at)
        self.check(
            self.nccl.ncclPutSignal(
                source, count, UINT32, peer, window, at, index, context, 0, self.comm, self.stream
            )
        )

    def signal(self, peer, index=0, context=0):
        self.check(self.nccl.ncclSignal(peer, index, context, 0, self.comm, self.stream))

    def wait_for(self, peers, count=1, index=0, context=0):
        wanted = (WaitFor * len(peers))(*[WaitFor(count, peer, index, context) for peer in peers])
        self.check(self.nccl.ncclWaitSignal(len(peers), wanted, self.comm, self.stream))

    def fill(self, peer, count, tag):
        """On the stream, so that what is put has to wait for it."""
        if count:
            where = ctypes.c_uint64(self.memory[0] + 4 * PART * peer)
            value = ctypes.c_uint(word(self.rank, peer, tag))
            self.cuda("cuMemsetD32Async", where, value, SIZE(count), self.stream)

    def expect(self, source, count, tag, at=None):
        host = ctypes.create_string_buffer(4 * max(count, 1))
        where = self.memory[1] + 4 * PART * source if at is None else at
        self.cuda("cuMemcpyDtoH_v2", host, ctypes.c_uint64(where), SIZE(4 * count))
        if host.raw[: 4 * count] != struct.pack("i", word(source, self.rank, tag)) * count:
            raise Failed(f"{count} elements from rank {source}, {tag}: wrong")

    def everybody(self):
        return list(range(self.options.ranks))

    def meet(self):
        """All ranks have come here, with what they put before."""
        for peer in self.everybody():
            self.signal(peer, index=2)
        self.wait_for(self.everybody(), index=2)
        self.settle()

    def put(self):
        for tag, count in enumerate(COUNTS * 2):
            for peer in self.everybody():
                self.fill(peer, count, tag)
            if tag % 2:
                self.check(self.nccl.ncclGroupStart())
                self.wait_for(self.everybody())
            for peer in self.everybody():
                self.put_to(peer, count)
            if tag % 2:
                self.check(self.nccl.ncclGroupEnd())
            else:
                self.wait_for(self.everybody()[::-1])
            self.settle()
            for peer in self.everybody():
                self.expect(peer, count, tag)
            self.meet()

    def places(self):
        """Small allocations lie in one block of the driver, whose IPC handle is that of all of it."""
        ranks, count = self.options.ranks, 1003
        kind = MEMORY[self.options.memory][1]
        size = 4 * count * ranks
        places = [self.memory[1] + at for at in (0, 1 << 20, (8 << 20) + 4096, (16 << 20) + 512)]
        places += [self.allocate(kind, size) for _ in range(5)]
        windows = [self.window_of(place, size) for place in places]
        self.meet()
        for tag, window in enumerate(windows):
            for peer in self.everybody():
                self.fill(peer, count, tag)
                self.put_to(peer, count, window=window, at=4 * count * self.rank)
            self.wait_for(self.everybody())
            self.settle()
        # What came later has not overwritten what came before.
        for tag, place in enumerate(places):
            for peer in self.everybody():
                self.expect(peer, count, tag, place + 4 * count * peer)
        self.meet()
        for window in windows:
            self.check(self.nccl.ncclCommWindowDeregister(self.comm, window))
        self.meet()

    def order(self):
        """A copy behind the wait, which is on its way long before the put."""
        ranks, count = self.options.ranks, PART
        after, before = (self.rank + 1) % ranks, (self.rank - 1) % ranks
        copied = ctypes.c_uint64()
        self.cuda("cuMemAlloc_v2", ctypes.byref(copied), SIZE(4 * count))
        other = P()
        self.cuda("cuStreamCreate", ctypes.byref(other), 1)
        for tag in range(10):
            self.meet()
            if self.rank % 2 == 0:
                self.fill(after, count, tag)
                self.put_to(after, count)
            self.wait_for([before])
            came = ctypes.c_uint64(self.memory[1] + 4 * PART * before)
            self.cuda("cuMemcpyDtoDAsync_v2", copied, came, SIZE(4 * count), self.stream)
            if self.rank % 2 == 1:
                time.sleep(0.02)
                self.fill(after, count, tag)
                self.put_to(after, count)
            self.settle()
            self.expect(before, count, tag, copied.value)

    def counters(self):
        ranks = self.options.ranks
        for peer in range(ranks):
            for index in range(SIGNALS - 1):
                for context in range(CONTEXTS):
                    for _ in range(1 + self.rank + index + 2 * context):
                        self.signal(peer, index, context)
        for peer in range(ranks):
            for index in range(SIGNALS - 1):
                for context in range(CONTEXTS):
                    for _ in range(peer + index + 2 * context):
                        self.wait_for([peer], 1, index, context)
                    self.wait_for([peer], 1, index, context)
        self.settle()
        self.meet()

    def graph(self):
        ranks, count = self.options.ranks, 70001
        after, before = (self.rank + 1) % ranks, (self.rank - 1) % ranks
        graph, replay = P(), P()
        self.cuda("cuStreamBeginCapture_v2", self.stream, 1)
        self.put_to(after, count)
        self.wait_for([before])
        self.cuda("cuStreamEndCapture", self.stream, ctypes.byref(graph))
        self.cuda("cuGraphInstantiateWithFlags", ctypes.byref(replay), graph, ctypes.c_uint64(0))
        for tag in range(30):
            self.fill(after, count, tag)
            if tag % 3 == 2:
                self.put_to(after, count)
                self.wait_for([before])
            else:
                self.cuda("cuGraphLaunch", replay, self.stream)
            self.settle()
            self.expect(before, count, tag)
            self.meet()

    def revoke(self):
        if self.rank == 0:
            self.wait_for([self.options.ranks - 1])
            time.sleep(0.3)
            if self.driver.cuStreamQuery(self.stream) != 600:
                raise Failed("the wait has ended by itself")
            self.check(self.nccl.ncclCommRevoke(self.comm, 0))
            end = time.monotonic() + 5
            while self.driver.cuStreamQuery(self.stream) == 600:
                if time.monotonic() > end:
                    raise Failed("the wait goes on after the communicator was revoked")
                time.sleep(0.001)
        else:
            time.sleep(1)

    def kill(self):
        """The last rank is killed while the others wait for it."""
        victim = self.options.ranks - 1
        if self.rank == victim:
            self.meet()
            print("ready", flush=True)
            time.sleep(60)
            return
        self.meet()
        self.wait_for([victim])
        print("ready", flush=True)
        try:
            self.settle()
        except Failed as error:
            if f"rank {victim}" in str(error):
                return
            raise Failed(f"blames another: {error}") from error
        raise Failed("a wait for a rank that was killed has ended well")

    def thread(self):
        """All ranks in this thread, each with a stream and windows of its own."""
        all_ranks, identity = [], UniqueId()
        self.check(self.nccl.ncclGetUniqueId(ctypes.byref(identity)))
        for rank in self.everybody():
            one = Putter(self.options)
            one.nccl, one.rank = self.nccl, rank
            one.open_gpu()
            all_ranks.append(one)
        self.grouped(all_ranks, lambda one: one.check(
            one.nccl.ncclCommInitRank(ctypes.byref(one.comm), one.options.ranks, identity, one.rank)
        ))  # fmt: skip
        self.grouped(all_ranks, Putter.register)
        for tag, count in enumerate(COUNTS):
            for one in all_ranks:
                for peer in self.everybody():
                    one.fill(peer, count, tag)
            self.grouped(all_ranks, lambda one: [one.put_to(peer, count) for peer in self.everybody()])
            self.grouped(all_ranks, lambda one: one.wait_for(self.everybody()))
            for one in all_ranks:
                # Memory of cudaMallocAsync is read by its own GPU.
                self.cuda("cuCtxSetCurrent", one.context)
                one.settle()
                for peer in self.everybody():
                    one.expect(peer, count, tag)
        for one in all_ranks:
            one.check(one.nccl.ncclCommDestroy(one.comm))

    def grouped(self, all_ranks, work):
        self.check(self.nccl.ncclGroupStart())
        for one in all_ranks:
            # A communicator is made on the GPU whose context is current.
            self.cuda("cuCtxSetCurrent", one.context)
            work(one)
        self.check(self.nccl.ncclGroupEnd())


if __name__ == "__main__":
    sys.exit(main())
