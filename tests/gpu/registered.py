#!/usr/bin/env python3
"""Registered buffers go between hosts unstaged where the net reaches GPU memory: tests/gpu/registered.py hawser

`hawser perf` moves and compares data between processes that count as ranks of two or three hosts, by copy
engines and a net plugin that reaches GPU memory (gpu_net.c, built here), from buffers that are registered
and from such that are not, called and in graphs. The log must say which transfers were staged. Ranks share
GPU 0. The plugin blocks while it copies, so times say nothing. Prints a line for each; the exit code is 1
if anything was wrong. Needs a GPU and a C compiler.
"""

import argparse
import glob
import os
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True

from processes import has_gpu

HERE = os.path.dirname(os.path.abspath(__file__))
NET = os.path.join(HERE, "gpu_net.c")
# Ranks, hosts and launches of a graph.
SHAPES = [(2, 2, 0), (3, 3, 0), (4, 2, 0), (2, 2, 2), (4, 2, 2)]
TESTS = "all_gather,alltoall,broadcast,gather,scatter,sendrecv,all_reduce"
TOLD = re.compile(r"(\d+) of (\d+) transfers with other hosts unstaged")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("hawser", help="the program, built with kernels")
    parser.add_argument("--net", help="the net plugin, if it was built already")
    options = parser.parse_args()
    if not has_gpu():
        print("skipped: needs a GPU")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        net = options.net or built(folder)
        bad = sum(not compared(options.hawser, net, folder, shape) for shape in SHAPES)
    print(f"{len(SHAPES)} shapes, {bad} wrong")
    return bad > 0


def built(folder):
    net = os.path.join(folder, "libgpu-net.so")
    flags = ["-std=gnu11", "-O1", "-shared", "-fPIC", "-DVERSION=11"]
    subprocess.run([os.environ.get("CC", "cc"), *flags, NET, "-o", net, "-ldl"], check=True)
    return net


def compared(hawser, net, folder, shape):
    """Runs a shape with and without registered buffers; true if all was right."""
    ranks, hosts, graph = shape
    name = f"{ranks} ranks on {hosts} hosts{', in graphs' if graph else ''}"
    for registered in (0, 1):
        log = os.path.join(folder, f"log-{ranks}-{hosts}-{graph}-{registered}")
        wrong = run(hawser, net, log, shape, registered) or staged(log, registered)
        if wrong:
            print(f"{name}, registered {registered}: WRONG: {wrong}", flush=True)
            return False
    print(f"{name}: right", flush=True)
    return True


def run(hawser, net, log, shape, registered):
    """What went wrong, if anything."""
    ranks, hosts, graph = shape
    settings = {
        "NCCL_NET_PLUGIN": net,
        "NCCL_NET": "GpuQueue",
        "NCCL_PASS_SM": "1",
        "NCCL_MULTI_RANK_GPU_ENABLE": "1",
        "CUDA_DEVICE_MAX_CONNECTIONS": "32",
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET,REG,COLL",
        "NCCL_DEBUG_FILE": log + ".%p",
    }
    sizes = ["-b", "1M", "-e", "64M", "-f", "8", "-n", "3", "-T", "60", "-G", str(graph)]
    command = [hawser, "perf", TESTS, "-p", str(ranks), "--hosts", str(hosts), *sizes]
    command += ["-R", str(registered)]
    ended = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, timeout=300)
    return None if ended.returncode == 0 else f"exit {ended.returncode}: {(ended.stdout + ended.stderr)[-2000:]}"


def staged(log, registered):
    """What is wrong with what the log says of transfers between hosts."""
    told = []
    for path in glob.glob(log + ".*"):
        with open(path, encoding="utf-8", errors="replace") as lines:
            told += [tuple(map(int, pair)) for pair in TOLD.findall(lines.read())]
    whole = sum(some == all for some, all in told)
    if not told:
        return "no transfer with another host is in the log"
    if registered == 0 and any(some for some, _ in told):
        return "what is not registered went unstaged"
    # The first call of a direction opens its connections.
    if registered == 1 and whole < len(told) * 0.6:
        return f"only {whole} of {len(told)} calls went unstaged"
    return None


if __name__ == "__main__":
    sys.exit(main())
