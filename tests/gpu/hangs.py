#!/usr/bin/env python3
"""Hangs staged on GPUs: tests/gpu/hangs.py libnccl.so.2 --tool hawser [--only CASE]

Three ranks, each a process, share the GPUs that there are. In each case rank 1 does something wrong, and
`hawser trace hang` has to name it with the right reason, as ranks of one host and of a host each. Prints a
line for each case with the time until the verdict came; the exit code is 1 if one is wrong. Needs a GPU, no
framework.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True

import processes
from nccl import SIZE, P
from processes import PLACES, has_gpu, said
from rank import FLOAT, SUM, Failed, Rank

# The case, the cause that is expected, and who is to blame. Two causes where it depends on whether anybody
# has looked if the operations before are over.
CASES = {
    "late": ("not_called", [1]),
    "late-large": ("not_called", [1]),
    "count": ("mismatch", [1]),
    "collective": ("mismatch", [1]),
    "root": ("mismatch", [1]),
    "stopped": ("stopped", [1]),
    "group": ("group_open", [1]),
    "message": ("not_called", [1]),
    "crossed": ("messages_cross", [0, 1]),
    "stream": ("kernel_silent", [1]),
    "graph": (("not_called", "kernel_silent"), [1]),
    "graph-late": ("not_called", [1]),
    "graph-stopped": ("stopped", [1]),
    "graph-stream": (("not_called", "kernel_silent"), [1]),
    "full": ("kernel_silent", [1]),
    "order": ("other_order", [0, 1]),
}
# A kernel that waits for a word.
SPIN = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 word)
{
    .reg .u64 %address;
    .reg .u32 %value;
    .reg .pred %waits;
    ld.param.u64 %address, [word];
AGAIN:
    ld.volatile.global.u32 %value, [%address];
    setp.eq.u32 %waits, %value, 0;
    @%waits bra AGAIN;
    ret;
}
"""
RANKS = 3
LARGE = 8 << 20
PATIENCE = 20


def main():
    options = parsed()
    if options.child is not None:
        return Hanging(options).run()
    if not has_gpu():
        print("skipped: needs a GPU")
        return 0
    bad = 0
    for case in CASES if options.only is None else [options.only]:
        for place in PLACES:
            wrong, seconds = stage(options, case, place)
            print(f"{case:11} {place:20} {seconds:5.2f} s  {wrong or 'ok'}", flush=True)
            bad += wrong is not None
    print(f"{bad} wrong")
    return 1 if bad else 0


def parsed():
    parser = processes.parser(__doc__, ranks=False)
    parser.add_argument("--tool", required=True, type=os.path.abspath)
    parser.add_argument("--only", choices=CASES)
    options = parser.parse_args()
    options.ranks = RANKS
    return options


def stage(options, case, place):
    """(what is wrong or None, seconds that the right verdict took to come)."""
    with tempfile.TemporaryDirectory() as folder:
        words, env = ["--tool", options.tool], {"HAWSER_HANG_AFTER": "0"}
        ranks = [processes.start(options, r, case, folder, place, words, env) for r in range(RANKS)]
        try:
            if not all(said(rank, b"hangs", 60) for rank in ranks):
                return "a rank did not get ready", 0.0
            return wait_for_verdict(options, case, ranks[0].pid)
        finally:
            processes.end_all(ranks)


def wait_for_verdict(options, case, pid):
    """Asks until the verdict on the first communicator is right: ranks need a moment to get stuck."""
    causes, guilty = CASES[case]
    causes = causes if isinstance(causes, tuple) else (causes,)
    end, found, seconds = time.monotonic() + PATIENCE, "no verdict", 0.0
    while time.monotonic() < end:
        began = time.monotonic()
        words = [options.tool, "trace", "hang", "--pid", str(pid), "--json"]
        told = subprocess.run(
            words, capture_output=True, text=True, timeout=30, check=False
        )
        seconds = time.monotonic() - began
        if told.returncode != 0:
            found = told.stderr.strip()
            continue
        verdicts = json.loads(told.stdout)
        if any(v["cause"] in causes and sorted(v["guilty"]) == guilty for v in verdicts):
            return None, seconds
        found = "; ".join(
            f"{v['cause']} {v['guilty']}: {v['sentence']}" for v in verdicts
        )
        time.sleep(0.2)
    return f"expected {' or '.join(causes)} {guilty}, found {found}", seconds


class Hanging(Rank):
    """A rank that gets stuck, or makes others stuck."""

    def run(self):
        try:
            self.open_gpu()
            self.join()
            self.collective(1 << 10)
            print("hangs", flush=True)
            getattr(self, "hang_" + self.options.phase.replace("-", "_"))(
                self.rank == 1
            )
        except Failed as error:
            print(f"error: {error}", flush=True)
        time.sleep(120)
        os._exit(0)

    def sum(self, count=1 << 10, comm=None):
        send, recv = self.memory
        comm = comm or self.comm
        self.check(
            self.nccl.ncclAllReduce(
                P(send), P(recv), SIZE(count), FLOAT, SUM, comm, self.stream
            )
        )

    def broadcast(self, root):
        send, recv = self.memory
        words = (P(send), P(recv), SIZE(1 << 20), FLOAT, root, self.comm, self.stream)
        self.check(self.nccl.ncclBroadcast(*words))

    def hang_late(self, is_wrong):
        if not is_wrong:
            self.sum()

    def hang_late_large(self, is_wrong):
        if not is_wrong:
            self.sum(LARGE)

    def hang_count(self, is_wrong):
        self.sum(LARGE if is_wrong else 1 << 10)
        self.sum()

    def hang_collective(self, is_wrong):
        self.broadcast(0) if is_wrong else self.sum()

    def hang_root(self, is_wrong):
        self.broadcast(1 if is_wrong else 0)
        self.sum()

    def hang_stopped(self, is_wrong):
        os.kill(os.getpid(), signal.SIGSTOP) if is_wrong else self.sum()

    def hang_group(self, is_wrong):
        if is_wrong:
            self.check(self.nccl.ncclGroupStart())
        self.sum()

    def send(self, peer):
        words = (P(self.memory[0]), SIZE(LARGE), FLOAT, peer, self.comm, self.stream)
        self.check(self.nccl.ncclSend(*words))

    def recv(self, peer):
        words = (P(self.memory[1]), SIZE(LARGE), FLOAT, peer, self.comm, self.stream)
        self.check(self.nccl.ncclRecv(*words))

    def hang_message(self, _):
        if self.rank == 0:
            self.recv(1)

    def hang_crossed(self, _):
        if self.rank < 2:
            self.recv(1 - self.rank)
            self.send(1 - self.rank)

    def hang_stream(self, is_wrong):
        if is_wrong:
            self.wait_for_ever()
        self.sum()

    def word(self):
        """A word of memory that is 0 for ever."""
        word = ctypes.c_uint64()
        self.cuda("cuMemAlloc_v2", ctypes.byref(word), SIZE(4))
        self.cuda("cuMemsetD32_v2", word, ctypes.c_uint(0), SIZE(1))
        return word

    def hang_full(self, is_wrong):
        if is_wrong:
            self.fill()
        self.sum()

    def fill(self):
        """Kernels of another stream take all of the GPU: the library's has no place."""
        module, kernel, stream, word = P(), P(), P(), self.word()
        self.cuda("cuModuleLoadData", ctypes.byref(module), SPIN)
        self.cuda("cuModuleGetFunction", ctypes.byref(kernel), module, b"spin")
        self.cuda("cuStreamCreate", ctypes.byref(stream), 1)
        grid, block = (4096, 1, 1), (1024, 1, 1)
        words = (P * 1)(ctypes.cast(ctypes.byref(word), P))
        self.cuda("cuLaunchKernel", kernel, *grid, *block, 0, stream, words, None)
        # What is launched next on another stream could begin first.
        time.sleep(0.3)
        self.filled = module, word

    def wait_for_ever(self):
        """Nothing later on the stream begins."""
        word = self.word()
        self.cuda(
            "cuStreamWaitValue32_v2",
            self.stream,
            word,
            ctypes.c_uint(1),
            ctypes.c_uint(0),
        )

    def captured_sum(self):
        graph, executable = P(), P()
        self.cuda("cuStreamBeginCapture_v2", self.stream, 1)
        self.sum()
        self.cuda("cuStreamEndCapture", self.stream, ctypes.byref(graph))
        self.cuda(
            "cuGraphInstantiateWithFlags",
            ctypes.byref(executable),
            graph,
            ctypes.c_uint64(0),
        )
        self.cuda("cuGraphLaunch", executable, self.stream)
        self.cuda("cuStreamSynchronize", self.stream)
        return executable

    def hang_graph(self, is_wrong):
        executable = self.captured_sum()
        if not is_wrong:
            self.cuda("cuGraphLaunch", executable, self.stream)

    def hang_graph_late(self, is_wrong):
        self.captured_sum()
        if not is_wrong:
            self.sum()

    def hang_graph_stopped(self, is_wrong):
        executable = self.captured_sum()
        if is_wrong:
            os.kill(os.getpid(), signal.SIGSTOP)
        self.cuda("cuGraphLaunch", executable, self.stream)

    def hang_graph_stream(self, is_wrong):
        executable = self.captured_sum()
        if is_wrong:
            self.wait_for_ever()
        self.cuda("cuGraphLaunch", executable, self.stream)

    def hang_order(self, is_wrong):
        part = P()
        self.check(
            self.nccl.ncclCommSplit(self.comm, 0, self.rank, ctypes.byref(part), None)
        )
        for comm in (part, self.comm) if is_wrong else (self.comm, part):
            self.sum(comm=comm)


if __name__ == "__main__":
    sys.exit(main())
