#!/usr/bin/env python3
"""Latency and bandwidth of a collective from small to large tensors, as a table and a plot (SVG).

    python main.py --backend gloo --ranks 2 --largest 1M          # no GPU
    python main.py --ranks 8 --library libnccl.so.2 --plot hawser.svg

Times are medians over all iterations of the slowest rank. `algbw` is bytes by time; `busbw` is what each
link must have carried, as nccl-tests count it, and can be compared with what the links can do."""

import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import common
from plot import draw, short

# Bytes that each link carries, as a multiple of the bytes of the operation, for n ranks.
BUS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1,
}


def main():
    given = common.options(__doc__, add_options)
    common.start(given)
    rank, ranks, device = common.join(given)
    rows = []
    common.say(rank, f"{given.operation}, {given.type}")
    common.say(rank, f"{'size':>10} {'time':>12} {'algbw':>12} {'busbw':>12}")
    size = bytes_of(given.smallest)
    while size <= bytes_of(given.largest):
        seconds = measure(given, size, ranks, device)
        algbw = size / seconds / 1e9
        busbw = algbw * BUS[given.operation](ranks)
        rows.append((size, 1e6 * seconds, busbw))
        common.say(rank, f"{short(size):>10} {1e6 * seconds:9.1f} µs {algbw:7.2f} GB/s {busbw:7.2f} GB/s")
        size *= 4
    if given.plot and rank == 0:
        title = f"{given.operation}, {ranks} ranks on {common.describe(device)}"
        draw(given.plot, title, f"served by {common.served_by(given.backend)}", rows)
        print(f"the plot is in {given.plot}", flush=True)
    common.finish(rank)


def add_options(parser):
    parser.add_argument("--operation", choices=list(BUS), default="all_reduce")
    parser.add_argument("--type", choices=["float32", "float16", "bfloat16"], default="float32")
    parser.add_argument("--smallest", default="1K")
    parser.add_argument("--largest", default="64M")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--plot", help="file for the plot, such as plot.svg")


def measure(given, size, ranks, device):
    """Seconds that one operation of `size` bytes takes."""
    dtype = getattr(torch, given.type)
    count = max(1, size // torch.finfo(dtype).bits * 8 // ranks) * ranks
    whole, part = torch.zeros(count, dtype=dtype, device=device), None
    if given.operation in ("all_gather", "reduce_scatter"):
        part = torch.zeros(count // ranks, dtype=dtype, device=device)
    call = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
        "all_to_all": lambda: dist.all_to_all_single(torch.empty_like(whole), whole),
        "broadcast": lambda: dist.broadcast(whole, src=0),
    }[given.operation]
    for _ in range(3):
        call()
    times = []
    for _ in range(5):
        wait(device)
        dist.barrier()
        wait(device)
        began = time.perf_counter()
        for _ in range(max(1, given.iterations // 5)):
            call()
        wait(device)
        times.append((time.perf_counter() - began) / max(1, given.iterations // 5))
    slowest = torch.tensor([statistics.median(times)], device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.item()


def wait(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def bytes_of(text):
    """`64K`, `1M`: powers of 1024."""
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper())
    return int(text[:-1]) * factor if factor else int(text)



if __name__ == "__main__":
    main()
