#!/usr/bin/env python3
"""Four things that larger trainings use, each with a check:

accumulation   gradients of several batches before one step; ranks talk at the last one only (no_sync)
precision      computing in 16 bits (bfloat16, or float16 with a scaler where a GPU has no bfloat16)
buckets        bucket_cap_mb, gradient_as_bucket_view, static_graph: how DDP cuts its all-reduces
groups         process groups: ranks as a grid, sums along rows and columns

    python main.py --backend gloo --ranks 4                       # no GPU
    python main.py --ranks 4 --library libnccl.so.2               # four ranks on the GPUs that there are"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import common

WIDTH = 256


def main():
    given = common.options(__doc__)
    common.start(given)
    rank, ranks, device = common.join(given)
    for part in (accumulation, precision, buckets, groups):
        common.say(rank, f"{part.__name__:13} {part(rank, ranks, device)}")
    common.finish(rank)


def model(device, layers=3, **options):
    """The same model on all ranks."""
    torch.manual_seed(1)
    steps = [step for _ in range(layers) for step in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())]
    ids = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(torch.nn.Sequential(*steps).to(device), device_ids=ids, **options)


def batch(seed, device, count=8):
    torch.manual_seed(seed)
    return torch.randn(count, WIDTH).to(device)


def gradients(ddp):
    return torch.cat([parameter.grad.flatten() for parameter in ddp.parameters()])


def accumulation(rank, ranks, device):
    """Four small batches give the gradients of the large one that they make up."""
    batches = [batch(100 * rank + number, device) for number in range(4)]
    whole = model(device)
    whole(torch.cat(batches)).square().mean().backward()

    ddp = model(device)
    with ddp.no_sync():  # the ranks do not talk here
        for part in batches[:-1]:
            (ddp(part).square().mean() / len(batches)).backward()
    (ddp(batches[-1]).square().mean() / len(batches)).backward()  # here they do, for all four

    difference = (gradients(ddp) - gradients(whole)).abs().max().item()
    common.check(difference < 1e-5, f"gradients differ by {difference}")
    return "4 batches, 1 all-reduce; gradients as of one large batch"


def precision(rank, ranks, device):
    """The loss falls, and the weights stay equal on all ranks."""
    has_bfloat16 = device.type == "cpu" or torch.cuda.get_device_capability(device) >= (8, 0)
    dtype = torch.bfloat16 if has_bfloat16 else torch.float16
    ddp = model(device)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.5)
    scaler = scaler_for(device, dtype)
    losses = []
    for step in range(10):
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=dtype):
            loss = ddp(batch(rank, device)).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    common.check(losses[-1] < losses[0], f"the loss does not fall: {losses}")
    total = sum(parameter.detach().double().sum() for parameter in ddp.parameters())
    most, least = total.clone(), total.clone()
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    common.check(bool(most == least), "the weights differ")
    return f"{dtype}, loss {losses[0]:.4f} to {losses[-1]:.4f}"


def scaler_for(device, dtype):
    """Makes losses larger and gradients smaller again: the small ones would be 0 in float16."""
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
    return torch.cuda.amp.GradScaler(enabled=dtype == torch.float16)  # before PyTorch 2.3


def buckets(rank, ranks, device):
    """However the gradients are cut into all-reduces, they come out the same."""
    texts, wanted = [], None
    for megabytes in (25, 1):
        ddp = model(
            device, layers=12, bucket_cap_mb=megabytes, gradient_as_bucket_view=True, static_graph=True
        )
        for _ in range(2):  # DDP lays its buckets out anew after the first step
            ddp.zero_grad()
            ddp(batch(rank, device)).square().mean().backward()
        began = time.perf_counter()
        ddp.zero_grad()
        ddp(batch(rank, device)).square().mean().backward()
        got = gradients(ddp).cpu()
        milliseconds = 1000 * (time.perf_counter() - began)
        wanted = got if wanted is None else wanted
        common.check(torch.allclose(got, wanted, rtol=1e-4, atol=1e-7), f"{megabytes} MiB: other gradients")
        texts.append(f"of {megabytes} MiB {milliseconds:.1f} ms")
    return f"backward with buckets {', '.join(texts)}; equal gradients"


def groups(rank, ranks, device):
    """Ranks as a grid of two columns: 0 1 / 2 3 / ... All ranks make all groups, in the same order."""
    if ranks % 2:
        return "needs an even number of ranks"
    rows = [dist.new_group([row, row + 1]) for row in range(0, ranks, 2)]
    columns = [dist.new_group(list(range(column, ranks, 2))) for column in range(2)]
    x = torch.full((1000,), float(rank), device=device)
    y = x.clone()
    dist.all_reduce(x, group=rows[rank // 2])
    dist.all_reduce(y, group=columns[rank % 2])
    first = rank // 2 * 2
    common.check(bool((x == 2 * first + 1).all()), f"the row's sum is {x[0].item()}")
    common.check(bool((y == sum(range(rank % 2, ranks, 2))).all()), f"the column's sum is {y[0].item()}")
    for group in (rows[rank // 2], columns[rank % 2]):
        dist.destroy_process_group(group)
    return f"{len(rows)} rows and 2 columns; right sums"


if __name__ == "__main__":
    main()
