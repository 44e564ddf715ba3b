#!/usr/bin/env python3
"""Communicators that outlive their members, and those that sleep, on GPUs:
tests/gpu/elastic.py libnccl.so.2 [ranks] [--kills N] [--seed S] [--only PHASE]

Every rank is a process, and they share the GPUs that there are. `suspend`: memory goes back to the device and
comes again, and results and a captured graph are right afterwards. `shrink`, `grow` and `revoke` make other
communicators of the ranks and check sums on them. `kill` kills a rank in a loop of calls, N times: the others
end with an error, shrink, and go on. Prints a line for each; the exit code is 1 if anything was wrong. Needs
a GPU, no framework.
"""

import argparse
import ctypes
import os
import random
import signal
import struct
import sys
import tempfile
import time

sys.dont_write_bytecode = True

import processes
from deaths import FLOAT, SIZE, SUM, Failed, P, Rank, UniqueId
from processes import PLACES, SLOWEST, ended_badly, has_gpu, said

PHASES = ["suspend", "shrink", "grow", "revoke"]
WORK = ["small", "large", "graph", "messages"]
ABORT, SUSPEND_MEM = 1, 1
INVALID_USAGE = 5
COUNT = 1 << 20


def main():
    options = parsed()
    if options.child is not None:
        return Elastic(options).run()
    if not has_gpu():
        print("skipped: needs a GPU")
        return 0
    bad = 0
    for phase in PHASES if options.only is None else [options.only] if options.only != "kill" else []:
        for place in PLACES:
            wrong, _ = carry_out(options, phase, place, None)
            print(f"{phase:9} {place:20} {wrong or 'ok'}", flush=True)
            bad += wrong is not None
    dice, slowest = random.Random(options.seed), 0.0
    for number in range(options.kills if options.only in (None, "kill") else 0):
        victim, place = dice.randrange(options.ranks), PLACES[number % 2]
        phase = f"kill-{WORK[number % len(WORK)]}"
        wrong, seconds = carry_out(options, phase, place, victim, dice.random() * 0.3)
        slowest = max(slowest, seconds)
        bad += wrong is not None
        print(f"{phase:13} rank {victim} {place:20} {seconds:5.2f} s  {wrong or 'ok'}", flush=True)
    print(f"{bad} wrong, the slowest survivors went on after {slowest:.2f} s")
    return 1 if bad else 0


def parsed():
    parser = processes.parser(__doc__)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=[*PHASES, "kill"])
    parser.add_argument("--victim", type=int, default=-1, help=argparse.SUPPRESS)
    return parser.parse_args()


def carry_out(options, phase, place, victim, after=0.0):
    """(what is wrong or None, seconds until the last rank ended)."""
    with tempfile.TemporaryDirectory() as folder:
        words = [str(options.ranks), *(["--victim", str(victim)] if victim is not None else [])]
        ranks = [processes.start(options, r, phase, folder, place, words) for r in range(options.ranks)]
        try:
            began = time.monotonic()
            if victim is not None:
                if not all(said(rank, b"ready", 40) for rank in ranks):
                    return "a rank did not get ready", 0.0
                time.sleep(after)
                began = time.monotonic()
                os.kill(ranks[victim].pid, signal.SIGKILL)
            problems = [ended_badly(child, rank) for rank, child in enumerate(ranks) if rank != victim]
            return "; ".join(filter(None, problems)) or None, time.monotonic() - began
        finally:
            processes.end_all(ranks)


class Elastic(Rank):
    """A rank whose communicator changes."""

    def run(self):
        try:
            phase = self.options.phase
            self.open_gpu()
            if phase != "grow":
                self.join()
                self.sum()
            if phase.startswith("kill-"):
                print("ready", flush=True)
                self.survive(phase.removeprefix("kill-"))
            else:
                getattr(self, phase)()
        except Failed as error:
            print(f"error: {error}", flush=True)
            os._exit(3)
        os._exit(0)

    def sum(self, comm=None, count=COUNT):
        """An all-reduce of ones, checked."""
        comm, ranks = comm or self.comm, ctypes.c_int()
        send, recv = self.memory
        self.check(self.nccl.ncclCommCount(comm, ctypes.byref(ranks)))
        self.cuda("cuMemsetD32_v2", ctypes.c_uint64(recv), ctypes.c_uint(0), SIZE(count))
        self.check(self.nccl.ncclAllReduce(P(send), P(recv), SIZE(count), FLOAT, SUM, comm, self.stream))
        self.expect(ranks.value, count)

    def expect(self, value, count=COUNT):
        self.cuda("cuStreamSynchronize", self.stream)
        host = ctypes.create_string_buffer(4 * count)
        self.cuda("cuMemcpyDtoH_v2", host, ctypes.c_uint64(self.memory[1]), SIZE(4 * count))
        if host.raw != struct.pack("f", value) * count:
            raise Failed(f"a sum of {count} elements is not {value} everywhere")

    def free_memory(self):
        free, total = SIZE(), SIZE()
        self.cuda("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def stats(self, which):
        value = ctypes.c_uint64()
        self.check(self.nccl.ncclCommMemStats(self.comm, which, ctypes.byref(value)))
        return value.value

    def suspend(self):
        send, recv = self.memory
        replay, given = self.captured(COUNT), []
        for number in range(3):
            self.cuda("cuGraphLaunch", replay, self.stream)
            self.expect(self.options.ranks)
            before = self.free_memory()
            self.check(self.nccl.ncclCommSuspend(self.comm, SUSPEND_MEM))
            # All ranks of the device have given theirs when all have passed it.
            time.sleep(0.3)
            given.append(self.free_memory() - before)
            if self.stats(1) != 1:
                raise Failed("ncclCommMemStats does not say that it is suspended")
            code = self.nccl.ncclAllReduce(P(send), P(recv), SIZE(COUNT), FLOAT, SUM, self.comm, self.stream)
            if code != INVALID_USAGE:
                raise Failed(f"a call while it is suspended returned {code}")
            time.sleep(0.3)
            self.check(self.nccl.ncclCommResume(self.comm))
            self.cuda("cuGraphLaunch", replay, self.stream)
            self.expect(self.options.ranks)
            for count in (1, 1000, COUNT):
                self.sum(count=count)
            if number == 2 and self.stats(0) > 0 and min(given) < self.stats(0):
                raise Failed(f"{given} bytes were given back, of {self.stats(0)} of this rank alone")
        print(f"given back {given}, of this rank {self.stats(0)}, kept {self.stats(2)}", flush=True)
        self.check(self.nccl.ncclCommSuspend(self.comm, SUSPEND_MEM))
        self.check(self.nccl.ncclCommDestroy(self.comm))

    def destroy(self, comm):
        """Before the process ends: what others wait for may be on its way still."""
        self.check(self.nccl.ncclCommDestroy(comm))

    def shrunk(self, excluded, flags=0):
        made, ranks = P(), (ctypes.c_int * 1)(excluded)
        self.check(self.nccl.ncclCommShrink(self.comm, ranks, 1, ctypes.byref(made), None, flags))
        return made

    def shrink(self):
        for excluded in range(self.options.ranks):
            if self.rank != excluded:
                part = self.shrunk(excluded)
                self.sum(part)
                self.check(self.nccl.ncclCommDestroy(part))
            self.sum()

    def grow(self):
        """The last rank is new: the others make a communicator, which then grows."""
        ranks, path, made, last = self.options.ranks, self.options.identity, P(), self.options.ranks - 1
        self.nccl.ncclCommGrow.argtypes = [P, ctypes.c_int, P, ctypes.c_int, P, P]
        grown = f"{path}.grown"
        if self.rank == last:
            end = time.monotonic() + 30
            while not os.path.exists(grown) and time.monotonic() < end:
                time.sleep(0.01)
            with open(grown, "rb") as file:
                identity = UniqueId.from_buffer_copy(file.read())
            given = ctypes.byref(identity)
            self.check(self.nccl.ncclCommGrow(None, ranks, given, last, ctypes.byref(made), None))
        else:
            self.options.ranks = last
            self.join()
            self.sum()
            given = None
            if self.rank == 0:
                identity = UniqueId()
                self.check(self.nccl.ncclCommGetUniqueId(self.comm, ctypes.byref(identity)))
                with open(f"{grown}.new", "wb") as file:
                    file.write(bytes(identity))
                os.rename(f"{grown}.new", grown)
                given = ctypes.byref(identity)
            self.check(self.nccl.ncclCommGrow(self.comm, ranks, given, -1, ctypes.byref(made), None))
        self.sum(made)
        if self.comm:
            self.sum()
        self.destroy(made)

    def revoke(self):
        """The last rank revokes, the others wait for it in an all-reduce; then all but it go on."""
        last = self.options.ranks - 1
        if self.rank == last:
            time.sleep(0.2)
            self.check(self.nccl.ncclCommRevoke(self.comm, 0))
            time.sleep(3)
            return
        try:
            self.collective(COUNT)
            raise RuntimeError("an all-reduce without a rank has succeeded")
        except Failed as error:
            print(error, flush=True)
        self.check(self.nccl.ncclCommRevoke(self.comm, 0))
        part = self.shrunk(last)
        self.sum(part)
        self.destroy(self.comm)
        self.sum(part)
        self.destroy(part)

    def survive(self, work):
        """Calls until one fails; then the others go on."""
        end = time.monotonic() + SLOWEST
        graph = self.captured(1 << 10) if work == "graph" else None
        try:
            while time.monotonic() < end:
                if work == "messages":
                    self.ring()
                elif work == "graph":
                    self.replay(graph)
                else:
                    self.collective(16 << 20 if work == "large" else 1 << 10)
        except Failed as error:
            if f"rank {self.options.victim}" not in str(error):
                raise Failed(f"blames another: {error}") from error
        part = self.shrunk(self.options.victim, ABORT)
        self.sum(part)
        self.destroy(self.comm)
        self.sum(part)
        self.destroy(part)


if __name__ == "__main__":
    sys.exit(main())
