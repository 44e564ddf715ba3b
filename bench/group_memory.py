#!/usr/bin/env python3
"""Device memory that process groups of PyTorch take: MiB per group and rank.

    torchrun --nproc_per_node=4 bench/group_memory.py [--groups 24]
    LD_PRELOAD=target/release/libnccl.so.2 torchrun --nproc_per_node=4 bench/group_memory.py

Every group has all ranks. Each is made, then adds up 8 bytes, 1 MiB, 256 MiB. After each of these steps, for
all groups, the memory that is free on the GPU is compared with that before; the first group is not counted,
since it brings what a process has once. With fewer GPUs than ranks these share them, and what the ranks of a
GPU took is divided by their number. Prints a line for each step, and the seconds that it took per group.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist

STEPS = [("8 B", 2), ("1 MiB", 1 << 18), ("256 MiB", 1 << 26)]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--groups", type=int, default=24, help="groups besides the first")
    options = parser.parse_args()
    rank, ranks, gpus = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), torch.cuda.device_count()
    torch.cuda.set_device(rank % gpus)
    dist.init_process_group("nccl")
    data = torch.ones(STEPS[-1][1], device="cuda")
    store = dist.PrefixStore("memory", dist.distributed_c10d._get_default_store())
    everybody = Everybody(store, ranks)
    for _, count in STEPS:
        dist.all_reduce(data[:count])
    groups = [dist.new_group(list(range(ranks))) for _ in range(options.groups)]
    sharing = sum(other % gpus == rank % gpus for other in range(ranks))
    before = free(everybody)
    for name, count in STEPS:
        began = time.perf_counter()
        for group in groups:
            dist.all_reduce(data[:count], group=group)
        torch.cuda.synchronize()
        took = time.perf_counter() - began
        now = free(everybody)
        per_group = (before - now) / 2**20 / sharing / options.groups
        if rank == 0:
            print(f"{ranks} ranks, after {name:>7}: {per_group:7.1f} MiB per group and rank, "
                  f"{took / options.groups * 1e3:7.1f} ms per group")
    everybody.wait()
    dist.destroy_process_group()


class Everybody:
    """A barrier without a communicator, whose memory would count."""

    def __init__(self, store, ranks):
        self.store, self.ranks, self.turn = store, ranks, 0

    def wait(self):
        self.turn += 1
        key = f"turn{self.turn}"
        if self.store.add(key, 1) == self.ranks:
            self.store.set(key + "all", "1")
        self.store.wait([key + "all"])


def free(everybody):
    """Bytes that are free on this GPU when all ranks have done a step."""
    torch.cuda.synchronize()
    everybody.wait()
    bytes_free = torch.cuda.mem_get_info()[0]
    everybody.wait()
    return bytes_free


main()
