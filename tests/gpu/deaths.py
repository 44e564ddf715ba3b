#!/usr/bin/env python3
"""Ranks that are killed on GPUs: tests/gpu/deaths.py libnccl.so.2 [ranks] [--kills N] [--seed S]

Every rank is a process, and they share the GPUs that there are. One is killed (SIGKILL) at a random moment,
with no settings for deadlines; with every second kill the dying rank has a forked child that lives on.
Every survivor must end with an error that names the killed rank (in the phase `destroy` it may also end
well). Prints a line for each kill with the time until the last survivor had its error, and until its process
ended, which takes the driver a while; the exit code is 1 if one hung or blamed another rank. Then a forked
child calls the library: it must get an error, and its parent's results must stay right. Last, all ranks have
closed their descriptors 0 to 2 before init, and log with INFO: results must stay right, though connections
might have had these numbers. Needs a GPU, no framework.
"""

import ctypes
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True

import processes
from processes import ONE_HOST, PLACES, SLOWEST, has_gpu, said

P, SIZE = ctypes.c_void_p, ctypes.c_size_t
PHASES = ["init", "small", "large", "copy", "graph", "messages", "split", "destroy"]
LEAVING = ["leave-small", "leave-large", "leave-messages"]
FLOAT, SUM = 7, 0


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


def main():
    options = parsed()
    if options.child is not None:
        return Rank(options).run()
    if not has_gpu():
        print("skipped: needs a GPU")
        return 0
    if options.leave:
        wrong = {f"{phase}, {place}": leave(options, phase, place) for phase in LEAVING for place in PLACES}
        for case, what in wrong.items():
            print(f"rank 0 left in peace, {case}: {what or 'ok'}")
        return 1 if any(wrong.values()) else 0
    dice, bad, slowest, last_end = random.Random(options.seed), 0, 0.0, 0.0
    for number in range(options.kills):
        phase, victim = PHASES[number % len(PHASES)], dice.randrange(options.ranks)
        text, failed, ended = kill(options, dice, phase, victim, forked=number % 2 == 1)
        bad += text is not None
        slowest, last_end = max(slowest, failed), max(last_end, ended)
        times = f"{failed:5.2f} s, ended {ended:5.2f} s"
        print(f"kill {number:3} {phase:9} rank {victim}  {times}  {text or 'ok'}", flush=True)
    for phase, what in (("fork", "forked child that calls"), ("closed", "descriptors 0 to 2 closed")):
        wrong = all_end_well(options, phase)
        print(f"{what}: {wrong or 'ok'}")
        bad += wrong is not None
    times = f"had its error after {slowest:.2f} s, the last one ended after {last_end:.2f} s"
    print(f"{options.kills} kills, {bad} wrong, the slowest survivor {times}")
    return 1 if bad else 0


def parsed():
    parser = processes.parser(__doc__)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--leave", action="store_true", help="only: rank 0 leaves in peace, others call")
    return parser.parse_args()


def start(options, phase, victim, forked, folder, place=ONE_HOST):
    """The processes of all ranks."""
    env = {"NCCL_DEBUG": "INFO"} if phase == "closed" else {}
    ranks = []
    for rank in range(options.ranks):
        words = [str(options.ranks), *(["--forked"] if forked and rank == victim else [])]
        ranks.append(processes.start(options, rank, phase, folder, place, words, env))
    return ranks


def kill(options, dice, phase, victim, forked):
    """(what is wrong or None, seconds from the kill to the last survivor's error, and to its end)."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = start(options, phase, victim, forked, folder)
        try:
            if not all(said(rank, b"ready", 40) for rank in ranks):
                return "a rank did not get ready", 0.0, 0.0
            time.sleep(dice.random() * (0.6 if phase == "init" else 0.3))
            os.kill(ranks[victim].pid, signal.SIGKILL)
            began, problems = time.monotonic(), []
            for rank, child in enumerate(ranks):
                if rank != victim:
                    problem = judged(child, rank, victim, phase, began + SLOWEST)
                    problems += [problem] if problem else []
            ended, texts = time.monotonic() - began, [getattr(child, "text", "") for child in ranks]
            failed = [float(at) - began for text in texts for at in re.findall(r"failed at ([\d.]+)", text)]
            return "; ".join(problems) or None, max(failed, default=0.0), ended
        finally:
            processes.end_all_sessions(ranks)


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


class Failed(Exception):
    """The library returned an error."""


class Rank:
    """One rank: a process with the driver, without any framework."""

    def __init__(self, options):
        self.options, self.rank = options, options.child
        self.driver, self.nccl = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(options.library)
        self.nccl.ncclGetLastError.restype = ctypes.c_char_p
        self.nccl.ncclCommInitRank.argtypes = [P, ctypes.c_int, UniqueId, ctypes.c_int]
        self.comm = P()

    def run(self):
        try:
            self.open_gpu()
            if self.options.phase == "closed":
                # After the driver has its descriptors; nobody can read what is printed, the exit code tells.
                os.closerange(0, 3)
            if self.options.phase == "init":
                print("ready", flush=True)
            self.join()
            if self.options.phase == "fork":
                return self.fork()
            if self.options.phase == "closed":
                return self.check_sums(200)
            if self.options.forked and os.fork() == 0:
                time.sleep(90)
                os._exit(0)
            if self.options.phase != "init":
                self.collective(1 << 10)
                print("ready", flush=True)
            self.work()
        except Failed as error:
            # The clock is the same in all processes.
            print(f"error: {error}\nfailed at {time.monotonic()}", flush=True)
            os._exit(3)
        os._exit(0)

    def open_gpu(self):
        count, device, context, self.stream = ctypes.c_int(), ctypes.c_int(), P(), P()
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
        path, identity = self.options.identity, UniqueId()
        if self.rank == 0:
            self.check(self.nccl.ncclGetUniqueId(ctypes.byref(identity)))
            with open(f"{path}.new", "wb") as file:
                file.write(bytes(identity))
            os.rename(f"{path}.new", path)
        end = time.monotonic() + 30
        while not os.path.exists(path):
            if time.monotonic() > end:
                os._exit(0 if self.options.phase == "init" else 4)
            time.sleep(0.01)
        with open(path, "rb") as file:
            identity = UniqueId.from_buffer_copy(file.read())
        comm, ranks = ctypes.byref(self.comm), self.options.ranks
        self.check(self.nccl.ncclCommInitRank(comm, ranks, identity, self.rank))

    def work(self):
        """The phase, until something fails."""
        end = time.monotonic() + SLOWEST
        number = 0
        graph = self.captured(1 << 10) if self.options.phase == "graph" else None
        while time.monotonic() < end:
            number += 1
            phase = self.options.phase
            if phase in LEAVING and number > 100 and self.rank == 0:
                self.check(self.nccl.ncclCommDestroy(self.comm))
                return
            if phase in ("large", "leave-large"):
                self.collective(16 << 20)
            elif phase == "copy":
                self.all_reduce(1 << 10)
                self.copy_out(1 << 10)
            elif phase == "graph":
                self.replay(graph)
            elif phase in ("messages", "leave-messages"):
                self.ring()
            elif phase == "split":
                self.split()
            elif phase == "destroy" and number > 100:
                # All have done the same: nobody waits for one that has left.
                time.sleep(0.1 * self.rank)
                self.check(self.nccl.ncclCommDestroy(self.comm))
                return
            else:
                self.collective(1 << 10)

    def collective(self, count):
        self.all_reduce(count)
        self.settle()

    def all_reduce(self, count):
        send, recv = self.memory
        self.check(self.nccl.ncclAllReduce(P(send), P(recv), SIZE(count), FLOAT, SUM, self.comm, self.stream))

    def copy_out(self, count):
        """Copies a result to memory that is not pinned: the driver waits in the call for what is before
        it."""
        host = ctypes.create_string_buffer(4 * count)
        self.cuda("cuMemcpyDtoHAsync_v2", host, ctypes.c_uint64(self.memory[1]), SIZE(4 * count), self.stream)
        self.settle()

    def captured(self, count):
        """A graph of an all-reduce, ready to be launched."""
        graph, ready = P(), P()
        self.cuda("cuStreamBeginCapture_v2", self.stream, 1)
        self.all_reduce(count)
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

    def split(self):
        part = P()
        self.check(self.nccl.ncclCommSplit(self.comm, 0, self.rank, ctypes.byref(part), None))
        whole, self.comm = self.comm, part
        self.collective(1 << 10)
        self.check(self.nccl.ncclCommDestroy(part))
        self.comm = whole

    def settle(self):
        """Waits for the stream as programs with a watchdog do."""
        while self.driver.cuStreamQuery(self.stream) == 600:
            self.watch()
        self.watch()

    def watch(self):
        state = ctypes.c_int()
        self.check(self.nccl.ncclCommGetAsyncError(self.comm, ctypes.byref(state)))
        self.check(state.value)

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
            self.collective(1024)
            result = (ctypes.c_float * 1024)()
            self.cuda("cuMemcpyDtoH_v2", result, ctypes.c_uint64(self.memory[1]), SIZE(4096))
            if any(value != self.options.ranks for value in result):
                raise Failed(f"the sum is {result[0]}, not {self.options.ranks}")
        os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
