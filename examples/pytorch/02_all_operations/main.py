#!/usr/bin/env python3
"""Every operation that PyTorch has for tensors, each with a checked result.

    python main.py --backend gloo --ranks 4                       # no GPU
    python main.py --ranks 4 --library libnccl.so.2               # four ranks on the GPUs that there are"""

import os
import sys

import torch
import torch.distributed as dist

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import common

COUNT = 1000


def main():
    given = common.options(__doc__)
    common.start(given)
    rank, ranks, device = common.join(given)
    operations = Operations(rank, ranks, device)
    for name in (
        "all_reduce",
        "all_reduce_average",
        "all_reduce_async",
        "broadcast",
        "reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "all_to_all_uneven",
        "gather",
        "scatter",
        "send_and_receive",
        "ring_of_messages",
        "barrier",
    ):
        missing = getattr(operations, name)()
        common.say(rank, f"{name:20} {missing or 'ok'}")
    common.finish(rank)


class Operations:
    """One method per operation. It returns why the backend does not offer it, or None."""

    def __init__(self, rank, ranks, device):
        self.rank, self.ranks, self.device = rank, ranks, device
        self.root = ranks - 1
        self.is_gloo = dist.get_backend() == "gloo"

    def full(self, value, count=COUNT):
        return torch.full((count,), float(value), device=self.device)

    def empty(self, count=COUNT):
        return torch.empty(count, device=self.device)

    def same(self, tensor, value, what):
        common.check(bool((tensor == value).all()), f"{what} gives {tensor[:4].tolist()}, not {value}")

    def all_reduce(self):
        n = self.ranks
        for op, wanted in [
            (dist.ReduceOp.SUM, n * (n + 1) / 2),
            (dist.ReduceOp.MAX, n),
            (dist.ReduceOp.MIN, 1),
        ]:
            x = self.full(self.rank + 1)
            dist.all_reduce(x, op=op)
            self.same(x, wanted, f"all_reduce {op}")

    def all_reduce_average(self):
        if self.is_gloo:
            return "Gloo has no average"
        x = self.full(2 * self.rank)
        dist.all_reduce(x, op=dist.ReduceOp.AVG)
        self.same(x, self.ranks - 1, "average")

    def all_reduce_async(self):
        x = self.full(1)
        work = dist.all_reduce(x, async_op=True)
        # Something else can be computed here.
        work.wait()
        self.same(x, self.ranks, "asynchronous all_reduce")

    def broadcast(self):
        x = self.full(self.rank)
        dist.broadcast(x, src=self.root)
        self.same(x, self.root, "broadcast")

    def reduce(self):
        x = self.full(self.rank + 1)
        dist.reduce(x, dst=self.root)
        if self.rank == self.root:
            self.same(x, self.ranks * (self.ranks + 1) / 2, "reduce")

    def all_gather(self):
        out = self.empty(COUNT * self.ranks)
        dist.all_gather_into_tensor(out, self.full(self.rank))
        for peer, part in enumerate(out.chunk(self.ranks)):
            self.same(part, peer, f"all_gather from {peer}")

    def reduce_scatter(self):
        parts = torch.cat([self.full(part + self.rank) for part in range(self.ranks)])
        out = self.empty()
        dist.reduce_scatter_tensor(out, parts)
        wanted = self.ranks * self.rank + self.ranks * (self.ranks - 1) / 2
        self.same(out, wanted, "reduce_scatter")

    def all_to_all(self):
        out = self.empty(COUNT * self.ranks)
        parts = torch.cat([self.full(100 * self.rank + peer) for peer in range(self.ranks)])
        dist.all_to_all_single(out, parts)
        for peer, part in enumerate(out.chunk(self.ranks)):
            self.same(part, 100 * peer + self.rank, f"all_to_all from {peer}")

    def all_to_all_uneven(self):
        """Rank r sends p + 1 elements to rank p, and so gets r + 1 from each."""
        to = [peer + 1 for peer in range(self.ranks)]
        out = self.empty((self.rank + 1) * self.ranks)
        dist.all_to_all_single(
            out, self.full(self.rank, sum(to)), output_split_sizes=[self.rank + 1] * self.ranks,
            input_split_sizes=to,
        )
        for peer, part in enumerate(out.split(self.rank + 1)):
            self.same(part, peer, f"uneven all_to_all from {peer}")

    def gather(self):
        out = [self.empty() for _ in range(self.ranks)] if self.rank == self.root else None
        dist.gather(self.full(self.rank), out, dst=self.root)
        for peer, part in enumerate(out or []):
            self.same(part, peer, f"gather from {peer}")

    def scatter(self):
        parts = [self.full(peer) for peer in range(self.ranks)] if self.rank == self.root else None
        out = self.empty()
        dist.scatter(out, parts, src=self.root)
        self.same(out, self.rank, "scatter")

    def send_and_receive(self):
        """Rank 0 sends to the last rank."""
        if self.rank == 0:
            dist.send(self.full(7), dst=self.root)
        if self.rank == self.root:
            x = self.empty()
            dist.recv(x, src=0)
            self.same(x, 7, "recv")

    def ring_of_messages(self):
        """Everybody sends to the next rank and receives from the one before, all at once."""
        after, before = (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks
        x = self.empty()
        messages = [dist.P2POp(dist.isend, self.full(self.rank), after), dist.P2POp(dist.irecv, x, before)]
        for work in dist.batch_isend_irecv(messages):
            work.wait()
        self.same(x, before, "message from the rank before")

    def barrier(self):
        dist.barrier()


if __name__ == "__main__":
    main()
