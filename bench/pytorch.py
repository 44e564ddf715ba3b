#!/usr/bin/env python3
"""PyTorch's eager all_reduce, one process per GPU: torchrun --nproc_per_node=N bench/pytorch.py [sizes in
bytes ...]

Run it once as it is (NVIDIA's library) and once with LD_PRELOAD=libnccl.so.2. Prints µs per call of bfloat16
buffers, the median of five loops of 200 calls, and whether the sums are right."""

import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

SIZES = [1 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
CALLS, LOOPS = 200, 5


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for size in [int(word) for word in sys.argv[1:]] or SIZES:
        x = torch.full((size // 2,), float(rank + 1), dtype=torch.bfloat16, device="cuda")
        dist.all_reduce(x)
        right = bool((x == ranks * (ranks + 1) / 2).all())
        x.zero_()
        times = [loop(x, max(10, min(CALLS, (1 << 32) // size))) for _ in range(LOOPS)]
        if rank == 0:
            spread = f"{min(times):.1f} to {max(times):.1f}"
            print(
                f"{size:>10} B  {statistics.median(times):8.1f} us  ({spread})  {'right' if right else 'WRONG'}",
                flush=True,
            )
    dist.destroy_process_group()


def loop(x, calls):
    """Microseconds per call."""
    for _ in range(10):
        dist.all_reduce(x)
    torch.cuda.synchronize()
    dist.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(x)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / calls * 1e6


if __name__ == "__main__":
    main()
