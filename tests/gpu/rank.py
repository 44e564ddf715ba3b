"""One rank of a communicator: a process with CUDA's driver and a library, by ctypes, without a framework."""

import ctypes
import os
import struct
import time

from nccl import CALLS, INT, SIZE, P, UniqueId

FLOAT, SUM = 7, 0
SHRINK_ABORT = 1


class Failed(Exception):
    """The library returned an error."""


class Rank:
    """One rank: a process with the driver, without any framework."""

    def __init__(self, options):
        self.options, self.rank = options, options.child
        self.driver, self.nccl = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(options.library)
        self.nccl.ncclGetLastError.restype = ctypes.c_char_p
        self.nccl.ncclCommInitRank.argtypes = [P, INT, UniqueId, INT]
        self.nccl.ncclCommGrow.argtypes = [P, INT, P, INT, P, P]
        self.comm = P()

    def open_gpu(self):
        count, device, context, self.stream = INT(), INT(), P(), P()
        self.cuda("cuInit", 0)
        self.cuda("cuDeviceGetCount", ctypes.byref(count))
        self.cuda("cuDeviceGet", ctypes.byref(device), self.rank % count.value)
        self.cuda("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.cuda("cuCtxSetCurrent", context)
        self.context = context
        self.cuda("cuStreamCreate", ctypes.byref(self.stream), 1)
        self.memory = []
        for _ in range(2):
            address = ctypes.c_uint64()
            self.cuda("cuMemAlloc_v2", ctypes.byref(address), SIZE(64 << 20))
            self.cuda("cuMemsetD32_v2", address, ctypes.c_uint(0x3F800000), SIZE(16 << 20))
            self.memory.append(address.value)

    def cuda(self, name, *words):
        code = getattr(self.driver, name)(*words)
        if code != 0:
            raise Failed(f"{name} returned {code}")

    def check(self, code):
        if code != 0:
            text = (self.nccl.ncclGetLastError(self.comm) or b"").decode().replace("\n", " ")
            raise Failed(text or f"code {code}")

    def join(self):
        identity = self.shared_identity(self.options.identity)
        if identity is None:
            os._exit(0 if self.options.phase == "init" else 4)
        comm, ranks = ctypes.byref(self.comm), self.options.ranks
        self.check(self.nccl.ncclCommInitRank(comm, ranks, identity, self.rank))

    def shared_identity(self, path, comm=None, over=lambda: None):
        """The identity that rank 0 leaves in a file, of a new communicator or of one that `comm` grows into.
        None if it does not come in time; `over` is asked while this waits, and may raise."""
        identity = UniqueId()
        if self.rank == 0:
            if comm is None:
                self.check(self.nccl.ncclGetUniqueId(ctypes.byref(identity)))
            else:
                self.check(self.nccl.ncclCommGetUniqueId(comm, ctypes.byref(identity)))
            with open(f"{path}.new", "wb") as file:
                file.write(bytes(identity))
            os.rename(f"{path}.new", path)
        end = time.monotonic() + 30
        while not os.path.exists(path):
            if time.monotonic() > end:
                return None
            over()
            time.sleep(0.01)
        with open(path, "rb") as file:
            return UniqueId.from_buffer_copy(file.read())

    def launch(self, what, count, comm=None, root=0):
        """Calls one of `nccl.CALLS`, with `count` elements for each rank where it is of blocks."""
        send, recv = self.memory
        name, parameters = CALLS[what]
        values = {"type": FLOAT, "op": SUM, "root": root}
        words = [INT(values[word]) for word in parameters.split()]
        call = getattr(self.nccl, name)
        self.check(call(P(send), P(recv), SIZE(count), *words, comm or self.comm, self.stream))

    def collective(self, count, what="all_reduce", comm=None, root=0):
        self.launch(what, count, comm, root)
        self.settle(comm)

    def captured(self, count, what="all_reduce"):
        """A graph of a collective, ready to be launched."""
        graph, ready = P(), P()
        self.cuda("cuStreamBeginCapture_v2", self.stream, 1)
        self.launch(what, count)
        self.cuda("cuStreamEndCapture", self.stream, ctypes.byref(graph))
        self.cuda("cuGraphInstantiateWithFlags", ctypes.byref(ready), graph, ctypes.c_uint64(0))
        return ready

    def replay(self, graph):
        self.cuda("cuGraphLaunch", graph, self.stream)
        self.settle()

    def ring(self):
        send, recv = self.memory
        ranks = self.options.ranks
        self.check(self.nccl.ncclGroupStart())
        to, source = (self.rank + 1) % ranks, (self.rank - 1) % ranks
        self.check(self.nccl.ncclSend(P(send), SIZE(1 << 16), FLOAT, to, self.comm, self.stream))
        self.check(self.nccl.ncclRecv(P(recv), SIZE(1 << 16), FLOAT, source, self.comm, self.stream))
        self.check(self.nccl.ncclGroupEnd())
        self.settle()

    def settle(self, comm=None):
        """Waits for the stream as programs with a watchdog do."""
        while self.driver.cuStreamQuery(self.stream) == 600:
            self.watch(comm)
        self.watch(comm)

    def watch(self, comm=None):
        state = INT()
        self.check(self.nccl.ncclCommGetAsyncError(comm or self.comm, ctypes.byref(state)))
        self.check(state.value)

    def check_sum(self, comm=None, count=1 << 20):
        """An all-reduce of ones, checked."""
        ranks = INT()
        self.check(self.nccl.ncclCommCount(comm or self.comm, ctypes.byref(ranks)))
        self.cuda("cuMemsetD32_v2", ctypes.c_uint64(self.memory[1]), ctypes.c_uint(0), SIZE(count))
        self.collective(count, comm=comm)
        self.check_result(ranks.value, count)

    def check_result(self, value, count):
        self.cuda("cuStreamSynchronize", self.stream)
        host = ctypes.create_string_buffer(4 * count)
        self.cuda("cuMemcpyDtoH_v2", host, ctypes.c_uint64(self.memory[1]), SIZE(4 * count))
        if host.raw != struct.pack("f", value) * count:
            raise Failed(f"a sum of {count} elements is not {value} everywhere")

    def shrunk(self, excluded, flags=0):
        made, ranks = P(), (INT * 1)(excluded)
        self.check(self.nccl.ncclCommShrink(self.comm, ranks, 1, ctypes.byref(made), None, flags))
        return made

    def destroy(self, comm):
        self.check(self.nccl.ncclCommDestroy(comm))
