#!/usr/bin/env python3
"""Training with DistributedDataParallel: each rank has a part of the data, gradients are averaged.

The data are made here: points in a plane, and the model learns which of three spirals each lies on.

    python main.py --backend gloo --ranks 2                       # no GPU
    python main.py --ranks 2 --library libnccl.so.2               # two ranks on the GPUs that there are"""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import common

POINTS, CLASSES, BATCH = 1536, 3, 64


def main():
    given = common.options(__doc__, lambda parser: parser.add_argument("--epochs", type=int, default=6))
    common.start(given)
    rank, ranks, device = common.join(given)

    torch.manual_seed(1)  # the same data and the same first weights on all ranks
    data = TensorDataset(*spirals())
    sampler = DistributedSampler(data, ranks, rank)
    loader = DataLoader(data, batch_size=BATCH // ranks or 1, sampler=sampler)
    model = torch.nn.Sequential(
        torch.nn.Linear(2, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU(),
        torch.nn.Linear(64, CLASSES),
    ).to(device)
    model = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    losses = []
    for epoch in range(given.epochs):
        sampler.set_epoch(epoch)  # another order in each epoch
        loss, right = train(model, loader, optimizer, device)
        losses.append(loss)
        common.say(rank, f"epoch {epoch}: loss {loss:.3f}, {100 * right:.0f} % right")

    common.check(losses[-1] < losses[0], f"the loss does not fall: {losses}")
    check_equal(model, ranks)
    common.say(rank, "all ranks have equal weights")
    common.finish(rank)


def spirals():
    """Points on three spirals, and the spiral of each."""
    classes = torch.arange(POINTS) % CLASSES
    radius = torch.rand(POINTS)
    angle = 4 * radius + classes * (2 * torch.pi / CLASSES) + 0.1 * torch.randn(POINTS)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), classes


def train(model, loader, optimizer, device):
    """One epoch. Returns the mean loss and the part of points that are right, over all ranks."""
    sums = torch.zeros(3, device=device)
    for points, classes in loader:
        points, classes = points.to(device), classes.to(device)
        scores = model(points)
        loss = torch.nn.functional.cross_entropy(scores, classes)
        optimizer.zero_grad()
        loss.backward()  # DDP averages the gradients here, bucket by bucket
        optimizer.step()
        right = (scores.argmax(1) == classes).sum()
        sums += torch.stack([loss.detach() * len(points), right, torch.tensor(len(points), device=device)])
    dist.all_reduce(sums)
    loss, right, count = sums.tolist()
    return loss / count, right / count


def check_equal(model, ranks):
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    every = torch.empty(ranks * len(weights), device=weights.device)
    dist.all_gather_into_tensor(every, weights)
    common.check(all(bool((part == weights).all()) for part in every.chunk(ranks)), "the weights differ")


if __name__ == "__main__":
    main()
