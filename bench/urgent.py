#!/usr/bin/env python3
"""An urgent all-reduce beside a large best-effort one, between processes of the host device or of one GPU.

    cargo build --release -p hawser-capi
    bench/urgent.py --library target/release/libnccl.so --ways shm tcp --rounds 5
    bench/urgent.py --library target/release/libnccl.so --gpu --large 1073741824        (needs PyTorch)
    bench/urgent.py --library target/release/libnccl.so --gpu --gpus 4 --ranks 4 --ways shm --large 1073741824

Each process has two communicators and a thread for each: one carries large all-reduces without end, the other
a small one now and then. Over tcp and ib each process counts as a host; ib takes the HCAs of this machine
(`tests/lab/lab.py --run urgent` has it run over soft-RoCE in a guest). Rounds take turns between four cases:
the large ones alone, the small ones alone, both without classes, and both with them (hawserCommSetClass on
the same communicators). The time of a small one is from the moment at which the last rank has called it to
that at which the last one has it; all processes have one clock. What the large ones lose is told without the
time in which small ones would have had the machine anyway. Prints us, ratios to the small ones alone, and the
bars: median 1.5, p99 2, loss 5 %."""

import argparse
import ctypes
import json
import multiprocessing
import os
import statistics
import threading
import time

FLOAT, SUM, MAX = 7, 0, 2
CASES = ("large alone", "small alone", "without classes", "with classes")


class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_byte * 128)]


class Library:
    """The functions of the library that are used here."""

    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        self.lib.ncclCommInitRank.argtypes = [pointer, ctypes.c_int, Id, ctypes.c_int]
        self.lib.ncclAllReduce.argtypes = [
            pointer,
            pointer,
            size,
            ctypes.c_int,
            ctypes.c_int,
            pointer,
            pointer,
        ]
        self.lib.hawserCommSetClass.argtypes = [pointer, ctypes.c_char_p]
        self.lib.ncclCommDestroy.argtypes = [pointer]
        self.lib.ncclGetLastError.argtypes = [pointer]
        self.lib.ncclGetLastError.restype = ctypes.c_char_p

    def check(self, code):
        if code:
            raise RuntimeError(self.lib.ncclGetLastError(None).decode())

    def unique_id(self):
        made = Id()
        self.check(self.lib.ncclGetUniqueId(ctypes.byref(made)))
        return bytes(made)

    def communicator(self, ranks, made, rank):
        comm = ctypes.c_void_p()
        self.check(self.lib.ncclCommInitRank(ctypes.byref(comm), ranks, Id.from_buffer_copy(made), rank))
        return comm


class Buffer:
    """Floats that are combined out of place, in memory of the host, whose calls return when they are over."""

    def __init__(self, library, comm, nbytes):
        self.library, self.comm, self.count = library, comm, max(nbytes // 4, 1)
        self.input, self.output = self.floats(), self.floats()
        self.set(1.0)

    def floats(self):
        return (ctypes.c_float * self.count)()

    def set(self, value):
        self.input[0] = self.input[self.count - 1] = value

    def get(self):
        return {self.output[0], self.output[self.count - 1]}

    def all_reduce(self, op=SUM):
        arguments = (self.input, self.output, self.count, FLOAT, op, self.comm, None)
        self.library.check(self.library.lib.ncclAllReduce(*arguments))


class GpuBuffer(Buffer):
    """The same on a GPU, with a stream of its own."""

    def floats(self):
        import torch

        self.stream = torch.cuda.Stream()
        return torch.zeros(self.count, device="cuda")

    def get(self):
        return {self.output[0].item(), self.output[-1].item()}

    def all_reduce(self, op=SUM):
        addresses = (self.input.data_ptr(), self.output.data_ptr())
        arguments = (*addresses, self.count, FLOAT, op, self.comm, self.stream.cuda_stream)
        self.library.check(self.library.lib.ncclAllReduce(*arguments))
        self.stream.synchronize()


def prepare(options):
    """Settings of the process, before the library is loaded."""
    if options.gpu:
        os.environ.update(NCCL_MULTI_RANK_GPU_ENABLE="1", CUDA_DEVICE_MAX_CONNECTIONS="32")
    else:
        os.environ["HAWSER_DEVICE"] = "host"


def rank(options, way, number, ids, results):
    """The work of a process: (case, seconds, large operations, [(begin, end) of small ones]) by round."""
    prepare(options)
    os.environ["NCCL_HOSTID"] = f"host {0 if way == 'shm' else number}"
    if way == "ib":
        os.environ["NCCL_NET"] = "IB"
    if options.gpu:
        import torch

        torch.cuda.set_device(number % options.gpus)
    library = Library(options.library)
    comms = [library.communicator(options.ranks, made, number) for made in ids]
    buffer = GpuBuffer if options.gpu else Buffer
    large, small = buffer(library, comms[0], options.large), buffer(library, comms[1], options.small)
    stop = buffer(library, comms[0], 4)
    is_over = threading.Event()

    def carry(told):
        begin, count = time.monotonic(), 0
        while True:
            large.all_reduce(MAX)
            count += 1
            stop.set(float(is_over.is_set()))
            stop.all_reduce(MAX)
            if stop.get() != {0.0}:
                break
        assert large.get() == {1.0}, "a large result is wrong"
        told.append((time.monotonic() - begin, count))

    def hurry():
        times = []
        for _ in range(options.count):
            time.sleep(options.pause / 1e3)
            begin = time.monotonic_ns()
            small.all_reduce()
            times.append((begin, time.monotonic_ns()))
        assert small.get() == {float(options.ranks)}, "a small result is wrong"
        return times

    for warm in (large, small):
        warm.all_reduce(MAX)
    rows = []
    for _ in range(options.rounds):
        for case in CASES:
            classes = (b"best_effort", b"urgent") if case == "with classes" else (b"normal", b"normal")
            for comm, name in zip(comms, classes):
                library.check(library.lib.hawserCommSetClass(comm, name))
            small.all_reduce(MAX)
            is_over.clear()
            told, times = [(0.0, 0)], []
            carrying = threading.Thread(target=carry, args=(told,))
            if case != "small alone":
                carrying.start()
            if case != "large alone":
                times = hurry()
            else:
                time.sleep(options.count * options.pause / 1e3)
            is_over.set()
            if case != "small alone":
                carrying.join()
            rows.append((case, *told[-1], times))
    results.put((number, rows))
    for comm in comms:
        library.lib.ncclCommDestroy(comm)


def measure(options, way):
    """Runs the ranks; by case the us of all small operations and, for the large ones, seconds of each."""
    prepare(options)
    ids = [Library(options.library).unique_id() for _ in range(2)]
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    ranks = [
        context.Process(target=rank, args=(options, way, number, ids, results))
        for number in range(options.ranks)
    ]
    for process in ranks:
        process.start()
    told = dict(results.get(timeout=options.limit) for _ in ranks)
    for process in ranks:
        process.join()
    rounds = []
    for rows in zip(*(told[number] for number in range(options.ranks))):
        case, seconds, count, _ = rows[0]
        pairs = zip(*(row[3] for row in rows))
        us = [(max(end for _, end in of) - max(begin for begin, _ in of)) / 1e3 for of in pairs]
        rounds.append({"case": case, "us": us, "seconds": seconds, "large": count})
    return rounds


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def summary(options, way, rounds):
    def of(case):
        return [round for round in rounds if round["case"] == case]

    def rate(case):
        return sum(round["large"] for round in of(case)) / sum(round["seconds"] for round in of(case))

    by_case = {}
    alone = [us for round in of("small alone") for us in round["us"]]
    print(f"{way}, {options.ranks} ranks, {options.small >> 10} KiB beside {options.large >> 20} MiB")
    for case in CASES[1:]:
        us = [us for round in of(case) for us in round["us"]]
        middle, late = statistics.median(us), percentile(us, 0.99)
        medians = [statistics.median(round["us"]) for round in of(case)]
        row = {
            "median us": middle,
            "p99 us": late,
            "medians of rounds": [min(medians), max(medians)],
            "median ratio": middle / statistics.median(alone),
            "p99 ratio": late / percentile(alone, 0.99),
        }
        if case != "small alone":
            seconds = sum(round["seconds"] for round in of(case))
            share = len(us) * statistics.median(alone) / 1e6 / seconds
            row["loss"] = 1 - rate(case) / rate("large alone")
            row["loss beyond the bytes"] = row["loss"] - share
        by_case[case] = row
        cells = [f"{name} {value:.3f}" for name, value in row.items() if isinstance(value, float)]
        print(f"  {case:16} " + "  ".join(cells), flush=True)
    return by_case


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--library", required=True, help="the built libnccl.so")
    parser.add_argument("--ways", nargs="+", choices=("shm", "tcp", "ib"), default=["shm", "tcp"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--small", type=int, default=64 << 10, help="bytes of the urgent all-reduce")
    parser.add_argument("--large", type=int, default=256 << 20, help="bytes of the best-effort one")
    parser.add_argument("--count", type=int, default=300, help="urgent ones in a case of a round")
    parser.add_argument("--pause", type=float, default=5.0, help="milliseconds between two urgent ones")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds that all of it may take")
    parser.add_argument("--gpu", action="store_true", help="all ranks on GPU 0 instead of the host device")
    parser.add_argument("--gpus", type=int, default=1, help="with --gpu: GPUs that the ranks are spread over")
    parser.add_argument("--json")
    options = parser.parse_args()
    results = {}
    for way in options.ways:
        results[way] = summary(options, way, measure(options, way))
    if options.json:
        with open(options.json, "w") as file:
            told = {"args": vars(options), "processors": os.cpu_count(), "results": results}
            json.dump(told, file, indent=1)
    return results


if __name__ == "__main__":
    main()
