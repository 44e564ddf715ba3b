#!/usr/bin/env python3
"""The smallest distributed program: every rank has a tensor, all ranks get the sum.

    python main.py --backend gloo --ranks 4                       # no GPU
    python main.py --ranks 4 --library libnccl.so.2               # four ranks on the GPUs that there are"""

import os
import sys

import torch
import torch.distributed as dist

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import common


def main():
    given = common.options(__doc__)
    common.start(given)
    rank, ranks, device = common.join(given)

    x = torch.full((4,), float(rank + 1), device=device)
    common.write(f"rank {rank} has  {x.tolist()}")
    dist.barrier()

    dist.all_reduce(x)  # sums by default; the result replaces the input

    common.write(f"rank {rank} gets {x.tolist()}")
    common.check(x.tolist() == [ranks * (ranks + 1) / 2] * 4, f"the sum is {x.tolist()}")
    common.finish(rank)


if __name__ == "__main__":
    main()
