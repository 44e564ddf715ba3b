#!/usr/bin/env python3
"""Buffers of captured calls, which nobody registers: tests/gpu/graph_buffers.py libnccl.so.2 [ranks]

`replays`: graphs of all-reduce, all-gather, reduce-scatter and all-to-all, in place, so on rank 0 alone,
and not, replayed with new data between calls outside of graphs; the logs must say that each kind goes
without staging (sums only of two ranks). `rounds`: graphs that come and go while their memory is freed
and allocated again; the GPU's memory is as before in the end. `pools`: memory of pools, which cannot be
mapped, is staged. `off`: so is everything with NCCL_GRAPH_REGISTER=0 on one rank. `kill`: a rank dies
before it captures what the others capture. `time`: replays with and without, in turns, for 4 to 64 MiB,
which says something under MPS alone where ranks share a GPU. `--only PHASE` runs one. Memory is of
`cudaMalloc`, then of `ncclMemAlloc`. There is a process for each rank; the ranks share the GPUs that
there are. Prints a line for each; the exit code is 1 if anything was wrong. Needs a GPU, no framework.
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
from rank import SUM, Failed
from windows import INT32, MANY, WINDOW, Windowed

PHASES = ["replays", "rounds", "pools", "off", "kill", "time"]
CAPTURED = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
# Bytes of a block: small ones are staged, as that is predicted to be faster; the last are not.
BLOCKS = [512 << 10, 8 << 20, (16 << 20) + 16]
MEMORY = ["cudaMalloc", "ncclMemAlloc"]
MAPPED = re.compile(r"are mapped for a graph")
DIRECT = re.compile(r"op \d+: (\w+) \d+ x \w+: \S+/zero_copy")


def main():
    return processes.of_phases(__doc__, PHASES, MEMORY, carry_out, OfGraphs)


def carry_out(options, phase, memory):
    """What is wrong, or None, and lines with figures."""
    with tempfile.TemporaryDirectory() as folder:
        if phase == "time":
            return timed(options, memory, folder)
        ranks = started(options, phase, memory, folder)
        victim = options.ranks - 1 if phase == "kill" else -1
        try:
            if victim >= 0:
                if not all(said(rank, b"ready", 60) for rank in ranks):
                    return "a rank did not get ready", []
                time.sleep(0.3)
                os.kill(ranks[victim].pid, signal.SIGKILL)
            problems = [ended_badly(child, rank) for rank, child in enumerate(ranks) if rank != victim]
            wrong = "; ".join(filter(None, problems)) or None
            return wrong or unlike(phase, [log(folder, rank) for rank in range(options.ranks)]), []
        finally:
            processes.end_all(ranks)


def started(options, phase, memory, folder, env=None):
    """The processes of all ranks."""
    words = [str(options.ranks), "--memory", memory]
    ranks = []
    for rank in range(options.ranks):
        own = log_to(folder, rank, "COLL,REG") | (env or {})
        if phase == "off" and rank == options.ranks - 1:
            own["NCCL_GRAPH_REGISTER"] = "0"
        ranks.append(processes.start(options, rank, phase, folder, words=words, env=own))
    return ranks


def unlike(phase, logs):
    """What the logs say that should not be so, or None."""
    direct = [len(DIRECT.findall(text)) for text in logs]
    mapped = [len(MAPPED.findall(text)) for text in logs]
    if phase in ("pools", "off"):
        return None if not any(direct + mapped) else f"zero-copy {direct}, mapped {mapped}: all are staged"
    if phase == "kill":
        return None
    if phase == "replays":
        refused = sorted(set(re.findall(r"a graph's buffer is not mapped: .*", logs[0])))
        if refused:
            return "; ".join(refused)
        collectives = set(DIRECT.findall(logs[0]))
        # Sums of more ranks are predicted to be faster through staging.
        sums = {"all_reduce", "reduce_scatter"} if len(logs) == 2 else set()
        if not collectives >= {"all_gather", "alltoall"} | sums:
            return f"only {collectives} went without staging"
    return None if all(mapped) else f"mapped for graphs: {mapped}"


def timed(options, memory, folder):
    """Replays with lent buffers and without, in turns: what is wrong, or None, and a line for each size."""
    times = {}
    for turn in range(6):
        of_turn = os.path.join(folder, str(turn))
        os.mkdir(of_turn)
        env = {"NCCL_GRAPH_REGISTER": str(turn % 2), "NCCL_DEBUG": "WARN"}
        ranks = started(options, "time", memory, of_turn, env)
        try:
            outputs = [rank.communicate(timeout=60)[0].decode() for rank in ranks]
            if any(rank.returncode for rank in ranks):
                return "a rank ended badly: " + outputs[0][-300:], []
        finally:
            processes.end_all(ranks)
        for name, size, us in re.findall(r"time (\w+) (\d+) ([\d.]+)", outputs[0]):
            times.setdefault((name, int(size)), ([], []))[turn % 2].append(float(us))
    lines = []
    for (name, size), (without, lent) in times.items():
        before, now = statistics.median(without), statistics.median(lent)
        spread = f"{min(without):.1f} to {max(without):.1f}, {min(lent):.1f} to {max(lent):.1f}"
        lines.append(f"{name:14} {size:>10} {before:9.1f} {now:9.1f} us  {now / before:.2f}  ({spread})")
    return None if lines else "no times", lines


class OfGraphs(Windowed):
    """A rank whose calls are captured, with buffers that nobody registers."""

    def run(self):
        try:
            lib = self.nccl
            lib.ncclMemAlloc.argtypes, lib.ncclMemFree.argtypes = [P, SIZE], [P]
            for name, parameters in nccl.CALLS.values():
                rest = [ctypes.c_int] * len(parameters.split())
                getattr(lib, name).argtypes = [P, P, SIZE, *rest, P, P]
            self.open_gpu()
            self.join()
            self.buffers = [self.allocate(), self.allocate()]
            getattr(self, self.options.phase)()
        except Failed as error:
            print(f"error: {error}", flush=True)
            os._exit(3)
        os._exit(0)

    def captured(self, collective, block_bytes, send, recv):
        """A graph of one call, ready to be launched."""
        name, parameters = nccl.CALLS[collective]
        values = {"type": INT32, "op": SUM, "root": 0}
        words = [values[word] for word in parameters.split()]
        graph, replay = P(), P()
        self.cuda("cuStreamBeginCapture_v2", self.stream, 1)
        function = getattr(self.nccl, name)
        self.check(function(send, recv, block_bytes // 4, *words, self.comm, self.stream))
        self.cuda("cuStreamEndCapture", self.stream, ctypes.byref(graph))
        self.cuda("cuGraphInstantiateWithFlags", ctypes.byref(replay), graph, ctypes.c_uint64(0))
        self.cuda("cuGraphDestroy", graph)
        return replay

    def replayed(self, replay, collective, block_bytes, tag, send, recv):
        """A replay with new data and checked results."""
        ranks, everybody = self.options.ranks, range(self.options.ranks)
        outputs, inputs = MANY.get(collective, (0, 0))
        self.fill(send, ranks if inputs else 1, block_bytes, tag)
        self.cuda("cuGraphLaunch", replay, self.stream)
        self.settle()
        mine = self.rank if inputs else 0
        if collective in ("all_reduce", "reduce_scatter"):
            wanted = [sum(self.value(source, mine, tag) for source in everybody)]
        else:
            wanted = [self.value(source, mine, tag) for source in everybody]
        for block, value in enumerate(wanted):
            what = f"replay {tag} of {collective} of {block_bytes}, block {block}"
            self.expect(recv + block * block_bytes, block_bytes, value, what)

    def places(self, collective, block_bytes):
        """Input and output: apart, in place, and in place on rank 0 alone."""
        outputs, inputs = MANY.get(collective, (0, 0))
        apart = self.buffers
        own = self.rank * block_bytes
        in_place = apart[0] + (own if outputs > inputs else 0), apart[0] + (own if inputs > outputs else 0)
        yield apart[0], apart[1]
        yield in_place
        yield in_place if self.rank == 0 else (apart[0], apart[1])

    def replays(self):
        for number, block_bytes in enumerate(BLOCKS):
            for collective in CAPTURED:
                for send, recv in self.places(collective, block_bytes):
                    replay = self.captured(collective, block_bytes, send, recv)
                    for tag in range(3):
                        self.replayed(replay, collective, block_bytes, 10 * number + tag, send, recv)
                        # Outside of the graph, in between.
                        self.call(collective, block_bytes, 10 * number + tag + 3)
                    self.cuda("cuGraphExecDestroy", replay)

    def rounds(self):
        self.one_round(0)
        before = self.free_bytes()
        for tag in range(1, 60):
            self.one_round(tag)
            if tag % 5 == 0:
                # All have destroyed their graphs, and let go of what they had.
                self.call("all_reduce", 4096, tag)
                self.call("all_reduce", 4096, tag)
                for buffer in self.buffers:
                    self.free(buffer)
                self.buffers = [self.allocate(), self.allocate()]
        lost = before - self.free_bytes()
        if lost > 8 << 20:
            raise Failed(f"{lost >> 20} MiB of the GPU are gone after 60 graphs")

    def one_round(self, tag):
        collective = CAPTURED[tag % len(CAPTURED)]
        replay = self.captured(collective, BLOCKS[1], *self.buffers)
        self.replayed(replay, collective, BLOCKS[1], tag, *self.buffers)
        self.cuda("cuGraphExecDestroy", replay)

    def free_bytes(self):
        self.call("all_reduce", 4096, 1)
        free, total = SIZE(), SIZE()
        self.cuda("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def pools(self):
        self.buffers = [P(), P()]
        for buffer in self.buffers:
            self.cuda("cuMemAllocAsync", ctypes.byref(buffer), SIZE(WINDOW), self.stream)
        self.settle()
        self.buffers = [buffer.value for buffer in self.buffers]
        self.one_round(1)
        self.one_round(2)

    def off(self):
        self.one_round(1)
        self.one_round(2)

    def kill(self):
        """The last rank is killed; the others capture a call."""
        self.one_round(0)
        print("ready", flush=True)
        victim = self.options.ranks - 1
        if self.rank == victim:
            time.sleep(60)
        try:
            for tag in range(1, 60):
                self.one_round(tag)
        except Failed as error:
            if f"rank {victim}" in str(error):
                return
            raise Failed(f"blames another: {error}") from error
        raise Failed("captured calls with a rank that was killed have ended well")

    def time(self):
        for collective in CAPTURED:
            outputs, inputs = MANY.get(collective, (0, 0))
            blocks = self.options.ranks if outputs or inputs else 1
            for size in (4 << 20, 16 << 20, 32 << 20, 64 << 20):
                replay = self.captured(collective, size // blocks, *self.buffers)
                for _ in range(3):
                    self.cuda("cuGraphLaunch", replay, self.stream)
                self.settle()
                began, times = time.perf_counter(), 10
                for _ in range(times):
                    self.cuda("cuGraphLaunch", replay, self.stream)
                self.settle()
                us = (time.perf_counter() - began) / times * 1e6
                print(f"time {collective} {size} {us:.1f}", flush=True)
                self.cuda("cuGraphExecDestroy", replay)


if __name__ == "__main__":
    sys.exit(main())
