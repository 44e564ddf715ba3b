#!/usr/bin/env python3
"""Ranks that are killed on GPUs: tests/gpu/deaths.py libnccl.so.2 [ranks] [--kills N] [--seed S]

Every rank is a process, and they share the GPUs that there are. One is killed (SIGKILL) at a random moment:
during init, each collective, called and in a graph, messages, splits, shrinks, growths and destroys, with no
settings for deadlines; in half of the kills the dying rank has a forked child that lives on. Every survivor
must end with an error that names the killed rank (in the phases `init` and `destroy` it may also end well);
after that it shrinks its communicator with ABORT, or goes on with it if the newcomer of a growth is the dead
one, and sums must be right. Prints a line for each kill with the time until the last survivor had its error,
until it had gone on, and until its process ended, which takes the driver a while; the exit code is 1 if one
hung, blamed another rank, could not go on or left a process behind, or if files in /dev/shm or memory of the
device are gone at the end. Then a forked child calls the library: it must get an error, and its parent's
results must stay right. Last, all ranks have closed their descriptors 0 to 2 before init, and log with INFO:
results must stay right, though connections might have had these numbers. Needs a GPU, no framework.
"""

import argparse
import ctypes
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import typing

sys.dont_write_bytecode = True

import processes
from nccl import CALLS, SIZE, P
from processes import ONE_HOST, PLACES, SLOWEST, has_gpu, said
from rank import FLOAT, SHRINK_ABORT, SUM, Failed, Rank

GRAPH = "graph-"
FIRST = ["init", "all_reduce", "large", "copy", "graph-all_reduce", "messages"]
PHASES = [*FIRST, "split", "shrink", "grow", "destroy"]
PHASES += [f"{graph}{name}" for name in CALLS if name != "all_reduce" for graph in ("", GRAPH)]
LEAVING = ["leave-small", "leave-large", "leave-messages"]


def main():
    options = parsed()
    if options.child is not None:
        return Mortal(options).run()
    if not has_gpu():
        print("skipped: needs a GPU")
        return 0
    if options.leave:
        wrong = {f"{phase}, {place}": leave(options, phase, place) for phase in LEAVING for place in PLACES}
        for case, what in wrong.items():
            print(f"rank 0 left in peace, {case}: {what or 'ok'}")
        return 1 if any(wrong.values()) else 0
    before, bad = traces(), kills(options)
    for phase, what in (("fork", "forked child that calls"), ("closed", "descriptors 0 to 2 closed")):
        wrong = all_end_well(options, phase)
        print(f"{what}: {wrong or 'ok'}")
        bad += wrong is not None
    wrong = lasting(before)
    print(f"/dev/shm and memory of the device as before: {wrong or 'ok'}")
    return 1 if bad or wrong else 0


def kills(options):
    """Kills a rank so many times; the number of kills after which something was wrong."""
    dice, bad, slowest = random.Random(options.seed), 0, Times(0.0, 0.0, 0.0)
    for number in range(options.kills):
        phase, victim = PHASES[number % len(PHASES)], dice.randrange(options.ranks)
        # Another half of the phases in each round through them.
        forked = (number + number // len(PHASES)) % 2 == 1
        text, times = kill(options, dice, phase, victim, forked)
        bad += text is not None
        slowest = Times(*map(max, slowest, times))
        print(f"kill {number:3} {phase:20} rank {victim}  {times}  {text or 'ok'}", flush=True)
    print(f"{options.kills} kills, {bad} wrong, the slowest survivors: {slowest}")
    return bad


class Times(typing.NamedTuple):
    """Seconds from a kill until the last survivor had its error, had gone on, and had ended."""

    failed: float
    went_on: float
    ended: float

    def __str__(self):
        return f"error {self.failed:5.2f} s, went on {self.went_on:5.2f} s, ended {self.ended:5.2f} s"


def parsed():
    parser = processes.parser(__doc__)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--victim", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--leave", action="store_true", help="only: rank 0 leaves in peace, others call")
    return parser.parse_args()


def start(options, phase, victim, forked, folder, place=ONE_HOST):
    """The processes of all ranks."""
    env = {"NCCL_DEBUG": "INFO"} if phase == "closed" else {}
    ranks = []
    for rank in range(options.ranks):
        words = [str(options.ranks), "--victim", str(victim)]
        words += ["--forked"] if forked and rank == victim else []
        ranks.append(processes.start(options, rank, phase, folder, place, words, env))
    return ranks


def kill(options, dice, phase, victim, forked):
    """(what is wrong or None, the times)."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = start(options, phase, victim, forked, folder)
        try:
            if not all(said(rank, b"ready", 40) for rank in ranks):
                return "a rank did not get ready", Times(0.0, 0.0, 0.0)
            time.sleep(dice.random() * (0.6 if phase == "init" else 0.3))
            os.kill(ranks[victim].pid, signal.SIGKILL)
            began, problems = time.monotonic(), []
            note_kill(folder, began)
            for rank, child in enumerate(ranks):
                if rank != victim:
                    problem = judged(child, rank, victim, phase, began + SLOWEST)
                    problems += [problem] if problem else []
            ended, texts = time.monotonic() - began, [getattr(child, "text", "") for child in ranks]
            left = processes.in_sessions(child.pid for rank, child in enumerate(ranks) if rank != victim)
            problems += [f"processes {left} are left"] if left else []
            failed, went_on = (latest(word, texts, began) for word in ("failed", "went on"))
            return "; ".join(problems) or None, Times(failed, went_on, ended)
        finally:
            processes.end_all_sessions(ranks)


def latest(word, texts, began):
    """Seconds until the last process said that it did something."""
    times = [float(at) for text in texts for at in re.findall(rf"^{word} at ([\d.]+)", text, re.MULTILINE)]
    return max(times, default=began) - began


def note_kill(folder, time_killed):
    """Tells all ranks when a rank was killed."""
    with open(os.path.join(folder, "killed.new"), "w") as file:
        file.write(str(time_killed))
    os.rename(os.path.join(folder, "killed.new"), os.path.join(folder, "killed"))


def killed_at(identity):
    """When a rank was killed, if so; `identity` is a file of the ranks' folder."""
    try:
        with open(os.path.join(os.path.dirname(identity), "killed")) as file:
            return float(file.read())
    except FileNotFoundError:
        return None


def traces():
    """The files in /dev/shm (a folder of each user stays there), and the free memory of the GPU."""
    files = {os.path.join(folder, name) for folder, _, names in os.walk("/dev/shm") for name in names}
    return files, processes.free_memory()


def lasting(before):
    """What is not as it was before, or None. The driver frees the memory of dead processes by and by."""
    for _ in range(20):
        files, free = traces()
        wrong = [f"files {sorted(files - before[0])}"] if files - before[0] else []
        wrong += [f"{(before[1] - free) >> 20} MiB of the device"] if free < before[1] else []
        if not wrong:
            return None
        time.sleep(0.5)
    return "; ".join(wrong)


def judged(child, rank, victim, phase, deadline):
    """What is wrong with the end of a survivor."""
    try:
        text = child.communicate(timeout=max(0.1, deadline - time.monotonic()))[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        return f"rank {rank} HANGS"
    child.text = text
    if child.returncode == 0 and phase in ("destroy", "init"):
        return None
    last = ([line for line in text.splitlines() if line.startswith("error: ")] or [text[-300:]])[-1]
    if child.returncode != 3:
        return f"rank {rank} ended with {child.returncode}: {last}"
    if not re.search(rf"\brank {victim}\b", last):
        return f"rank {rank} blames another: {last}"
    return None


def leave(options, phase, place):
    """Rank 0 destroys its communicator: the others, which call once more, must end with an error that names
    it."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = start(options, phase, -1, False, folder, place)
        try:
            end = time.monotonic() + SLOWEST
            problems = [judged(child, rank, 0, phase, end) for rank, child in enumerate(ranks) if rank]
            if ranks[0].wait(timeout=SLOWEST) != 0:
                problems.append(f"rank 0 ended with {ranks[0].returncode}")
        except subprocess.TimeoutExpired:
            problems.append("rank 0 HANGS")
        finally:
            processes.end_all(ranks)
    return "; ".join(problem for problem in problems if problem) or None


def all_end_well(options, phase):
    """What is wrong with a phase in which no rank fails, or None."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = start(options, phase, -1, False, folder)
        try:
            for rank, child in enumerate(ranks):
                text = child.communicate(timeout=SLOWEST)[0].decode(errors="replace")
                if child.returncode != 0:
                    return f"rank {rank}: exit code {child.returncode}: {text[-300:]}"
        except subprocess.TimeoutExpired:
            return "a rank hangs"
        finally:
            processes.end_all(ranks)
    return None


class Mortal(Rank):
    """A rank that works until another one is killed."""

    def __init__(self, options):
        super().__init__(options)
        # Communicators made on the way, which a failure leaves.
        self.parts = []
        self.newcomer = options.phase == "grow" and self.rank == options.ranks - 1

    def run(self):
        phase = self.options.phase
        try:
            self.open_gpu()
            if phase == "closed":
                # After the driver has its descriptors; nobody can read what is printed, the exit code tells.
                os.closerange(0, 3)
            if phase == "init":
                print("ready", flush=True)
            self.begin()
            if phase == "fork":
                return self.fork()
            if phase == "closed":
                return self.check_sums(200)
            if self.options.forked and os.fork() == 0:
                time.sleep(90)
                os._exit(0)
            if phase != "init":
                print("ready", flush=True)
            self.work()
        except Failed as error:
            # The clock is the same in all processes.
            print(f"error: {error}\nfailed at {time.monotonic()}", flush=True)
            self.go_on()
            os._exit(3)
        os._exit(0)

    def begin(self):
        """Joins the communicator, which is one rank smaller if it is to grow."""
        if self.newcomer:
            return
        if self.options.phase == "grow":
            self.options.ranks -= 1
        self.join()
        if self.options.phase != "init":
            self.collective(1 << 10)

    def work(self):
        """The phase, until something fails."""
        end, phase = time.monotonic() + SLOWEST, self.options.phase
        graph = self.captured(1 << 10, phase.removeprefix(GRAPH)) if phase.startswith(GRAPH) else None
        number = 0
        while time.monotonic() < end:
            number += 1
            if phase in LEAVING and number > 100 and self.rank == 0:
                self.destroy(self.comm)
                return
            if phase == "destroy" and number > 100:
                # All have done the same: nobody waits for one that has left.
                time.sleep(0.1 * self.rank)
                self.destroy(self.comm)
                return
            if graph is not None:
                self.replay(graph)
            elif phase in CALLS:
                self.collective(1 << 10, phase, root=number % self.options.ranks)
            elif phase in ("large", "leave-large"):
                self.collective(16 << 20)
            elif phase in ("shrink", "grow"):
                getattr(self, phase)(number)
            elif phase in ("copy", "split"):
                getattr(self, phase)()
            elif phase in ("messages", "leave-messages"):
                self.ring()
            else:
                self.collective(1 << 10)

    def copy(self):
        """Copies a result to memory that is not pinned: the driver waits in the call for what is before
        it."""
        count = 1 << 10
        host = ctypes.create_string_buffer(4 * count)
        self.launch("all_reduce", count)
        self.cuda("cuMemcpyDtoHAsync_v2", host, ctypes.c_uint64(self.memory[1]), SIZE(4 * count), self.stream)
        self.settle()

    def split(self):
        part = P()
        self.check(self.nccl.ncclCommSplit(self.comm, 0, self.rank, ctypes.byref(part), None))
        self.use(part)

    def shrink(self, number):
        excluded = number % self.options.ranks
        if self.rank != excluded:
            self.use(self.shrunk(excluded))
        self.collective(1 << 10)

    def grow(self, number):
        """The newcomer joins the others once more, for a communicator that is used once."""
        path, made = f"{self.options.identity}.{number}", P()
        here = f"{path}.here"
        if self.newcomer:
            open(here, "wb").close()
        while not os.path.exists(here):
            self.watch_killed()
            time.sleep(0.001)
        identity = self.shared_identity(path, self.comm, over=self.watch_killed)
        if identity is None:
            raise Failed("rank 0 does not ask anybody to join")
        given = ctypes.byref(identity) if self.newcomer or self.rank == 0 else None
        ranks = self.options.ranks + (not self.newcomer)
        number = self.rank if self.newcomer else -1
        self.check(self.nccl.ncclCommGrow(self.comm, ranks, given, number, ctypes.byref(made), None))
        self.use(made)

    def use(self, part):
        """Calls once on a communicator, and destroys it."""
        self.parts.append(part)
        self.collective(1 << 10, comm=part)
        self.parts.pop()
        self.destroy(part)

    def watch_killed(self):
        """While this process waits for others outside of the library: ends that if one of them is dead."""
        time_killed = killed_at(self.options.identity)
        if time_killed is not None and time.monotonic() > time_killed + 0.3:
            raise Failed(f"rank {self.options.victim} is dead, and this rank was in no call")

    def go_on(self):
        """What survivors do after the error: without the dead rank, sums must be right."""
        phase, victim = self.options.phase, self.options.victim
        if victim < 0 or phase in ("init", "destroy") or self.newcomer:
            return
        try:
            for part in self.parts:
                self.check(self.nccl.ncclCommAbort(part))
            if phase == "grow" and victim == self.options.ranks:
                # The newcomer: those that asked it are complete.
                self.check_sum()
            else:
                part = self.shrunk(victim, SHRINK_ABORT)
                self.check_sum(part)
                self.destroy(self.comm)
                self.check_sum(part)
                self.destroy(part)
            print(f"went on at {time.monotonic()}", flush=True)
        except Failed as error:
            print(f"error: {error} (when it went on without rank {victim})", flush=True)
            os._exit(5)

    def fork(self):
        """A child calls, which must be refused; then the parent's sum must be right."""
        child = os.fork()
        if child == 0:
            send, recv = self.memory
            code = self.nccl.ncclAllReduce(P(send), P(recv), SIZE(1024), FLOAT, SUM, self.comm, self.stream)
            os._exit(0 if code != 0 else 1)
        if os.waitpid(child, 0)[1] != 0:
            raise Failed("a forked child's call was not refused")
        self.check_sums(1)

    def check_sums(self, times):
        """Ends this rank: well if so many sums are right."""
        for _ in range(times):
            self.check_sum(count=1024)
        # A process that ends without that leaves a socket in /dev/shm, until the next one removes it.
        self.destroy(self.comm)
        os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
