#!/usr/bin/env python3
"""Buffers that each rank registers for itself, between processes: tests/gpu/lent.py libnccl.so.2 [ranks]

`collectives`: each collective with both buffers registered by `ncclCommRegister`, whose data then move
without staging; the last lines are a table that says so, or why not. `outside`: on one rank a buffer is
not registered, so all stage. `alone`: one rank alone registers, and calls go on as before. `plain`: so
they do with memory of `cudaMalloc`. `messages`: sends and receives of every place in registered buffers
and others, also in graphs. `graph`: a call in a graph that is replayed with new data between calls.
`rounds`: registrations that come and go between calls, on one rank more often than on others, while their
memory is freed at once and allocated again; the GPU's memory is as before in the end. `during`: a
registration is taken back while a call uses the buffer. `lifetimes`: memory that is freed before its
registration is taken back, registrations that outlive their communicator. `kill`: a rank dies while
others use its buffer. `time`: calls before anything is registered, then on registered buffers and on
others in turns, which says something under MPS alone where ranks share a GPU. `--only PHASE` runs one.
Memory is of `ncclMemAlloc`, but for `plain`. There is a process for each rank; the ranks share the GPUs
that there are. Prints a line for each; the exit code is 1 if anything was wrong. Needs a GPU, no
framework. `kill` not under MPS, whose clients a killed one takes with it.
"""

import ctypes
import os
import re
import signal
import statistics
import sys
import tempfile
import time

sys.dont_write_bytecode = True

import nccl
import processes
from nccl import SIZE, P
from processes import ended_badly, log, log_to, said
from rank import Failed
from windows import BLOCKS, INT32, MANY, MESSAGES, STAGED, WINDOW, Windowed, table

PHASES = ["collectives", "outside", "alone", "plain", "messages", "graph", "rounds", "during", "lifetimes"]
PHASES += ["kill", "time"]
MEMORY = ["ncclMemAlloc"]
# The log says these when all ranks have mapped a buffer, and when calls begin to count on it.
MAPPED = "that it has registered are mapped by"
IN_USE = "registered buffers are used where they are from here on"


def main():
    return processes.of_phases(__doc__, PHASES, MEMORY, carry_out, Lent)


def carry_out(options, phase, memory):
    """What is wrong, or None, and the lines of a table."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(options.ranks):
            env, words = log_to(folder, rank, "COLL,REG"), [str(options.ranks), "--memory", memory]
            ranks.append(processes.start(options, rank, phase, folder, words=words, env=env))
        try:
            victim = options.ranks - 1 if phase == "kill" else -1
            if victim >= 0:
                if not all(said(rank, b"ready", 60) for rank in ranks):
                    return "a rank did not get ready", []
                time.sleep(0.3)
                os.kill(ranks[victim].pid, signal.SIGKILL)
            problems = [ended_badly(child, rank) for rank, child in enumerate(ranks) if rank != victim]
            wrong = "; ".join(filter(None, problems)) or None
            logs = [log(folder, rank) for rank in range(options.ranks)]
            lines = {"collectives": table, "time": times}.get(phase, lambda _: [])(folder)
            return wrong or unexpected(phase, logs), list(lines)
        finally:
            processes.end_all(ranks)


def unexpected(phase, logs):
    """What the logs say that should not be so, or None."""
    uses, staged = [IN_USE in text for text in logs], [len(STAGED.findall(text)) for text in logs]
    if phase in ("alone", "plain"):
        return "registered buffers are used, though not all can be" if any(uses) or any(staged) else None
    if not all(uses):
        return f"registered buffers are used: {uses}"
    if phase == "messages":
        wanted = 3 * sum(not inside or at % 16 != 0 for _, _, at, inside in MESSAGES[:-1])
        wrong = f"staged: {staged} instead of {wanted} of each rank"
        return None if staged == [wanted] * len(logs) else wrong
    if phase == "outside":
        return None if staged[0] > 0 and not any(staged[1:]) else f"lines about buffers outside: {staged}"
    if phase in ("collectives", "graph", "kill") and any(staged):
        return f"registered buffers were staged: {staged} times"
    return None if all("zero_copy" in text for text in logs) else "no call went without staging"


def times(folder):
    """A line for each collective and size, with the times that rank 0 has left."""
    with open(os.path.join(folder, "times")) as file:
        found = re.findall(r"(\w+) (\d+) (\w+) ([\d.]+)", file.read())
    all_of = {}
    for name, size, kind, us in found:
        all_of.setdefault((name, int(size)), {}).setdefault(kind, []).append(float(us))
    yield f"{'':14} {'bytes':>10} {'staged':>9} {'registered':>11} {'others':>9}  ratios (least to most)"
    for (name, size), kinds in all_of.items():
        staged, lent, others = (statistics.median(kinds[kind]) for kind in ("staged", "registered", "others"))
        spread = ", ".join(f"{min(us):.1f} to {max(us):.1f}" for us in kinds.values())
        ratios = f"{lent / staged:.2f} {others / staged:.2f}"
        yield f"{name:14} {size:>10} {staged:9.1f} {lent:11.1f} {others:9.1f}  {ratios} ({spread})"


class Lent(Windowed):
    """A rank whose buffers are registered by itself."""

    # False while nothing is to be registered yet.
    may = False

    def register(self, memory):
        self.nccl.ncclCommRegister.argtypes = [P, P, SIZE, P]
        self.nccl.ncclCommDeregister.argtypes = [P, P]
        if self.options.phase == "alone" and self.rank != 0 or self.options.phase == "time" and not self.may:
            return None
        handle = P()
        self.check(self.nccl.ncclCommRegister(self.comm, memory, WINDOW, ctypes.byref(handle)))
        return handle

    def deregister(self, handle):
        self.check(self.nccl.ncclCommDeregister(self.comm, handle))

    def log_has(self, text):
        with open(os.environ["NCCL_DEBUG_FILE"], errors="replace") as file:
            return file.read().count(text)

    def begin(self):
        """Returns when the ranks have mapped each other's buffers, and use them: all after the same call."""
        end = time.monotonic() + 60
        while self.log_has(MAPPED) < 2:
            if time.monotonic() > end:
                raise Failed("the other ranks have not mapped the buffers")
            time.sleep(0.01)
        while not self.log_has(IN_USE):
            if time.monotonic() > end:
                raise Failed("registered buffers are not used")
            self.small()

    def small(self):
        self.call("all_gather", 4096, 0, send=self.memory[0], recv=self.memory[1])

    def collectives(self):
        self.begin()
        super().collectives()

    def outside(self):
        self.begin()
        super().outside()

    def alone(self):
        for tag in range(60):
            self.call("all_gather", BLOCKS[tag % 3], tag)

    plain = alone

    def is_plain(self):
        return self.options.phase == "plain"

    def messages(self):
        self.begin()
        super().messages()

    def graph(self):
        self.begin()
        super().graph()

    def rounds(self):
        self.begin()
        self.again(20)
        before = self.free_bytes()
        self.again(200)
        # Others may still be about to let the last ones go.
        end = time.monotonic() + 20
        while self.free_bytes() < before - (16 << 20):
            if time.monotonic() > end:
                raise Failed(f"{before - self.free_bytes()} bytes of the GPU's memory are gone")
            time.sleep(0.1)

    def again(self, rounds):
        for tag in range(rounds):
            for handle in self.windows:
                self.deregister(handle)
            if tag % 4 == 0 or self.rank == 0 and tag % 2 == 0:
                for buffer in self.buffers:
                    self.free(buffer)
                self.buffers = [self.allocate(), self.allocate()]
            self.windows = [self.register(buffer) for buffer in self.buffers]
            self.call("all_gather", BLOCKS[2], tag)
            if tag % 10 == 0:
                time.sleep(0.02)
                self.call("all_gather", BLOCKS[2], tag + 1)

    def free_bytes(self):
        free, total = SIZE(), SIZE()
        self.small()
        self.cuda("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def during(self):
        """A misuse: the result is not looked at, but all goes on."""
        self.begin()
        for tag in range(20):
            words = (*self.buffers, WINDOW // 4, INT32, 0, self.comm, self.stream)
            self.check(self.nccl.ncclAllReduce(*words))
            self.deregister(self.windows[tag % 2])
            self.settle()
            self.windows[tag % 2] = self.register(self.buffers[tag % 2])
            self.call("all_reduce", BLOCKS[2], tag)

    def lifetimes(self):
        self.begin()
        self.call("all_reduce", BLOCKS[2], 1)
        self.free(self.buffers[1])
        self.deregister(self.windows[1])
        other = self.allocate()
        handle = self.register(other)
        self.call("all_reduce", BLOCKS[2], 2, recv=other)
        self.check(self.nccl.ncclCommDestroy(self.comm))
        if self.nccl.ncclCommDeregister(self.comm, handle) == 0:
            raise Failed("a registration of a communicator that is gone was taken back")
        self.free(other)

    def kill(self):
        self.begin()
        super().kill()

    def time(self):
        others = [self.allocate(), self.allocate()]
        for _ in range(3):
            self.time_all("staged", self.buffers)
        self.may = True
        self.windows = [self.register(buffer) for buffer in self.buffers]
        self.begin()
        for _ in range(3):
            self.time_all("registered", self.buffers)
            self.time_all("others", others)

    def time_all(self, kind, buffers):
        for collective in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"):
            outputs, inputs = MANY.get(collective, (0, 0))
            blocks = self.options.ranks if outputs or inputs else 1
            for size in (1 << 20, 4 << 20, 16 << 20, 64 << 20):
                name, parameters = nccl.CALLS[collective]
                values = {"type": INT32, "op": 0, "root": 0}
                words = [values[word] for word in parameters.split()]
                function, count = getattr(self.nccl, name), size // blocks // 4

                def calls(times):
                    for _ in range(times):
                        self.check(function(*buffers, count, *words, self.comm, self.stream))
                    self.settle()

                calls(3)
                began = time.perf_counter()
                calls(20)
                us = (time.perf_counter() - began) / 20 * 1e6
                if self.rank == 0:
                    with open(os.path.join(os.path.dirname(self.options.identity), "times"), "a") as file:
                        file.write(f"{collective} {size} {kind} {us:.1f}\n")


if __name__ == "__main__":
    sys.exit(main())
