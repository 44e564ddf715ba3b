#!/usr/bin/env python3
"""What puts between two hosts take: one process for each rank, both on this machine, CPU as device.

    bench/puts.py LIBRARY [--rounds 9] [--sizes 8,4K,16K,64K,1M,64M]

LIBRARY is the built `libnccl.so.2`. Each round runs every setting of `HAWSER_PUT_NET` once, in alternating
order: all puts as messages (0), and over the net plugin from a byte on (1). Rank 0 calls `ncclPutSignal` and
waits for the signal by which rank 1 answers. Printed are medians of the rounds in µs for half of that."""

import argparse
import ctypes
import os
import statistics
import subprocess
import sys
import time

UNITS = {"K": 1 << 10, "M": 1 << 20}
MOST = 64 << 20


class Id(ctypes.Structure):
    """`ncclUniqueId`."""

    _fields_ = [("bytes", ctypes.c_char * 128)]


class Awaited(ctypes.Structure):
    """`ncclWaitSignalDesc_t`."""

    _fields_ = [(name, ctypes.c_int) for name in ("count", "peer", "index", "context")]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("library")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sizes", default="8,4K,8K,16K,32K,64K,256K,1M,4M,64M")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    sizes = [int(size.rstrip("KM")) * UNITS.get(size[-1], 1) for size in args.sizes.split(",")]
    if args.rank is not None:
        return rank(args, sizes)
    times = {setting: {size: [] for size in sizes} for setting in ("0", "1")}
    for number in range(args.rounds):
        for setting in sorted(times, reverse=number % 2 == 1):
            for size, us in zip(sizes, run(args, setting)):
                times[setting][size].append(us)
    print("| bytes | messages, µs | net, µs | net to messages | net, GB/s |\n|---|---|---|---|---|")
    for size in sizes:
        old, new = (statistics.median(times[setting][size]) for setting in ("0", "1"))
        print(f"| {size} | {old:.1f} | {new:.1f} | {new / old:.2f} | {size / new / 1000:.2f} |")
    return 0


def run(args, setting):
    """The times of one run."""
    env = {**os.environ, "HAWSER_DEVICE": "host", "HAWSER_PUT_NET": setting, "NCCL_SOCKET_IFNAME": "lo"}
    command = [sys.executable, __file__, args.library, "--sizes", args.sizes, "--rank"]
    ranks = [start([*command, str(number)], {**env, "NCCL_HOSTID": f"host{number}"}) for number in (0, 1)]
    ranks[1].stdin.write(ranks[0].stdout.read(128))
    ranks[1].stdin.close()
    text = ranks[0].stdout.read().decode()
    if any(process.wait() for process in ranks):
        sys.exit("a rank failed")
    return [float(us) for us in text.split()]


def start(command, env):
    """A process that is written to and read."""
    return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def rank(args, sizes):
    """One rank: rank 0 writes the identity, then its times."""
    library = ctypes.CDLL(args.library)

    def call(name, *words):
        code = getattr(library, name)(*words)
        if code:
            library.ncclGetLastError.restype = ctypes.c_char_p
            sys.exit(f"{name}: {code}, {library.ncclGetLastError(None)}")

    identity, comm, window = Id(), ctypes.c_void_p(), ctypes.c_void_p()
    if args.rank == 0:
        call("ncclGetUniqueId", ctypes.byref(identity))
        sys.stdout.buffer.write(bytes(identity))
        sys.stdout.flush()
    else:
        ctypes.memmove(ctypes.byref(identity), sys.stdin.buffer.read(128), 128)
    call("ncclCommInitRank", ctypes.byref(comm), 2, identity, args.rank)
    memory = ctypes.create_string_buffer(MOST)
    call("ncclCommWindowRegister", comm, memory, ctypes.c_size_t(MOST), ctypes.byref(window), 1)
    peer, answer = 1 - args.rank, Awaited(1, 1 - args.rank, 0, 0)
    for size in sizes:
        for number in range(-3, max(3, min(300, (256 << 20) // max(size, 1 << 17)))):
            begin = time.perf_counter() if number == 0 else begin if number > 0 else 0
            if args.rank == 1:
                call("ncclWaitSignal", 1, ctypes.byref(answer), comm, None)
            put = [memory, ctypes.c_size_t(size), 1, peer, window, ctypes.c_size_t(0), 0, 0, 0, comm, None]
            call("ncclPutSignal", *put)
            if args.rank == 0:
                call("ncclWaitSignal", 1, ctypes.byref(answer), comm, None)
        if args.rank == 0:
            print((time.perf_counter() - begin) / (number + 1) / 2 * 1e6)
    call("ncclCommDestroy", comm)
    return 0


if __name__ == "__main__":
    sys.exit(main())
