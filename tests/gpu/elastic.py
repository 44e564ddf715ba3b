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
import sys
import tempfile
import time

sys.dont_write_bytecode = True

import processes
from nccl import INVALID_USAGE, SIZE, P, UniqueId
from processes import PLACES, SLOWEST, ended_badly, has_gpu, said
from rank import FLOAT, SHRINK_ABORT, SUM, Failed, Rank

PHASES = ["suspend", "shrink", "grow", "revoke"]
WORK = ["small", "large", "graph", "messages"]
SUSPEND_MEM = 1
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
                self.check_sum()
            if phase.startswith("kill-"):
                print("ready", flush=True)
                self.survive(phase.removeprefix("kill-"))
            else:
                getattr(self, phase)()
        except Failed as error:
            print(f"error: {error}", flush=True)
            os._exit(3)
        os._exit(0)

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
            self.check_result(self.options.ranks, COUNT)
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
            self.check_result(self.options.ranks, COUNT)
            for count in (1, 1000, COUNT):
                self.check_sum(count=count)
            if number == 2 and self.stats(0) > 0 and min(given) < self.stats(0):
                raise Failed(f"{given} bytes were given back, of {self.stats(0)} of this rank alone")
        print(f"given back {given}, of this rank {self.stats(0)}, kept {self.stats(2)}", flush=True)
        self.check(self.nccl.ncclCommSuspend(self.comm, SUSPEND_MEM))
        self.check(self.nccl.ncclCommDestroy(self.comm))

    def shrink(self):
        for excluded in range(self.options.ranks):
            if self.rank != excluded:
                part = self.shrunk(excluded)
                self.check_sum(part)
                self.check(self.nccl.ncclCommDestroy(part))
            self.check_sum()

    def grow(self):
        """The last rank is new: the others make a communicator, which then grows."""
        ranks, made, last = self.options.ranks, P(), self.options.ranks - 1
        if self.rank != last:
            self.options.ranks = last
            self.join()
            self.check_sum()
        identity = self.shared_identity(f"{self.options.identity}.grown", self.comm)
        given = ctypes.byref(identity) if self.rank in (0, last) else None
        number = last if self.rank == last else -1
        self.check(self.nccl.ncclCommGrow(self.comm, ranks, given, number, ctypes.byref(made), None))
        self.check_sum(made)
        if self.comm:
            self.check_sum()
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
        self.check_sum(part)
        self.destroy(self.comm)
        self.check_sum(part)
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
        part = self.shrunk(self.options.victim, SHRINK_ABORT)
        self.check_sum(part)
        self.destroy(self.comm)
        self.check_sum(part)
        self.destroy(part)


if __name__ == "__main__":
    sys.exit(main())
