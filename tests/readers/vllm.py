#!/usr/bin/env python3
"""A rank that calls the library as vLLM does, on the host device: vllm.py FILE LIBRARY ID RANK RANKS

FILE is vLLM's `pynccl_wrapper.py` (`vllm/distributed/device_communicators`, in its wheel), through which all
calls go; PyTorch and the rest of vLLM are replaced by stand-ins. Rank 0 writes the unique id into the file
ID. Fails with what was wrong; the exit code is 1 then.
"""

import ctypes
import os
import sys
import time

sys.dont_write_bytecode = True

from stand_ins import load

COUNT, FLOAT, SUM, MAX, MEMORY = 1000, 7, 0, 2, 1


class Buffer:
    """Floats, all with one value at first."""

    def __init__(self, count, value):
        self.floats = (ctypes.c_float * count)(*[value] * count)
        self.address = ctypes.addressof(self.floats)

    def expect(self, what, values):
        """All floats of each part have the value of that part."""
        each = len(self.floats) // len(values)
        wanted = [value for value in values for _ in range(each)]
        if list(self.floats) != wanted:
            sys.exit(f"{what}: {self.floats[0]} ... {self.floats[-1]} instead of {values}")


class Rank:
    def __init__(self, wrapper, library, path, rank, ranks):
        self.nccl, self.rank, self.ranks = wrapper.NCCLLibrary(library), rank, ranks
        major, minor, _ = self.nccl.ncclGetVersion().split(".")
        if (int(major), int(minor)) < (2, 29) or not self.nccl.has_symbol("ncclCommSuspend"):
            sys.exit(f"version {major}.{minor}, or no ncclCommSuspend: vLLM would not use all of it")
        self.comm = self.nccl.ncclCommInitRank(ranks, self.unique_id(path), rank)

    def unique_id(self, path):
        if self.rank == 0:
            made = self.nccl.ncclGetUniqueId()
            with open(f"{path}.new", "wb") as file:
                file.write(bytes(made))
            os.rename(f"{path}.new", path)
            return made
        end = time.monotonic() + 60
        while not os.path.exists(path):
            if time.monotonic() > end:
                sys.exit("rank 0 makes no unique id")
            time.sleep(0.01)
        with open(path, "rb") as file:
            return self.nccl.unique_id_from_bytes(file.read())

    def collectives(self):
        nccl, comm, rank, ranks = self.nccl, self.comm, self.rank, self.ranks
        one, many = Buffer(COUNT, rank + 1), Buffer(COUNT * ranks, rank + 1)
        every = list(range(1, ranks + 1))
        out = Buffer(COUNT, 0)
        nccl.ncclAllReduce(one.address, out.address, COUNT, FLOAT, SUM, comm, None)
        out.expect("all_reduce", [sum(every)])
        out = Buffer(COUNT, 0)
        nccl.ncclReduce(one.address, out.address, COUNT, FLOAT, MAX, ranks - 1, comm, None)
        out.expect("reduce", [ranks if rank == ranks - 1 else 0])
        gathered = Buffer(COUNT * ranks, 0)
        nccl.ncclAllGather(one.address, gathered.address, COUNT, FLOAT, comm, None)
        gathered.expect("all_gather", every)
        out = Buffer(COUNT, 0)
        nccl.ncclReduceScatter(many.address, out.address, COUNT, FLOAT, SUM, comm, None)
        out.expect("reduce_scatter", [sum(every)])
        # vLLM's all_gatherv: a broadcast from each rank, in one group.
        nccl.ncclGroupStart()
        parts = [Buffer(COUNT, 0) for _ in every]
        for root, part in enumerate(parts):
            source = one.address if root == rank else part.address
            nccl.ncclBroadcast(source, part.address, COUNT, FLOAT, root, comm, None)
        nccl.ncclGroupEnd()
        for root, part in enumerate(parts):
            part.expect(f"broadcast of rank {root}", [root + 1])

    def messages(self):
        nccl, comm, rank, ranks = self.nccl, self.comm, self.rank, self.ranks
        sent, received = Buffer(COUNT, rank + 1), Buffer(COUNT, 0)
        nccl.ncclGroupStart()
        nccl.ncclSend(sent.address, COUNT, FLOAT, (rank + 1) % ranks, comm, None)
        nccl.ncclRecv(received.address, COUNT, FLOAT, (rank - 1) % ranks, comm, None)
        nccl.ncclGroupEnd()
        received.expect("a message", [(rank - 1) % ranks + 1])

    def run(self):
        self.collectives()
        self.messages()
        memory = Buffer(1 << 16, 0)
        window = self.nccl.ncclCommWindowRegister(self.comm, memory.address, 4 << 16, 1)
        self.collectives()
        self.nccl.ncclCommWindowDeregister(self.comm, window)
        # What vLLM's sleep mode does.
        self.nccl.ncclCommSuspend(self.comm, MEMORY)
        self.nccl.ncclCommResume(self.comm)
        self.collectives()
        self.messages()
        self.nccl.ncclCommDestroy(self.comm)
        print("right")


def main():
    file, library, path, rank, ranks = sys.argv[1:]
    wrapper = load(file, ["torch", "vllm"])
    Rank(wrapper, library, path, int(rank), int(ranks)).run()


main()
