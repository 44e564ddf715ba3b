#!/usr/bin/env python3
"""DDP of models with different shapes: tests/gpu/ddp_shapes.py libnccl.so.2 [ranks]

PyTorch compares the shapes of all ranks with those of rank 0. Ranks whose shapes differ raise and leave,
while rank 0 goes on to send its parameters, which nobody takes. No rank may hang: those that differ end with
PyTorch's error, and rank 0 ends well, or with an error that names a rank that has left. Prints a line for
each rank; the exit code is 1 if something is wrong. Needs PyTorch and a GPU; says so and ends with 0
otherwise."""

import os
import re
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True

import processes

LIMIT = 90


def main():
    if not processes.torch_gpus():
        print("skipped: needs PyTorch and a GPU")
        return 0
    library, ranks = os.path.abspath(sys.argv[1]), int((sys.argv + ["4"])[2])
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        env = {**os.environ, "LD_PRELOAD": library, "NCCL_MULTI_RANK_GPU_ENABLE": "1", "OMP_NUM_THREADS": "1"}
        start = [sys.executable, os.path.abspath(__file__), "--rank"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        words = [[*start, str(rank), str(ranks), store] for rank in range(ranks)]
        children = [subprocess.Popen(line, env=env, **pipes) for line in words]
        began, wrong = time.monotonic(), 0
        for rank, child in enumerate(children):
            problem = judged(child, rank, began + LIMIT)
            wrong += problem is not None
            print(f"rank {rank}: {problem or 'ok'} ({time.monotonic() - began:.1f} s)", flush=True)
        return int(wrong > 0)


def judged(child, rank, end):
    """What is wrong with the end of a rank."""
    try:
        text = child.communicate(timeout=max(1, end - time.monotonic()))[0]
    except subprocess.TimeoutExpired:
        child.kill()
        return "HANGS: " + child.communicate()[0][-2000:]
    if rank > 0 and "RuntimeError" in text and "params" in text:
        return None
    if rank == 0 and (child.returncode == 0 or re.search(r"rank [1-9]\d* \(process .* has left", text)):
        return None
    return f"ended with {child.returncode}: {text[-2000:]}"


def run_rank(rank, ranks, store):
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=ranks)
    model = torch.nn.Linear(4, 4 + rank).to(device)
    try:
        torch.nn.parallel.DistributedDataParallel(model, device_ids=[device.index])
        print("DDP was made", flush=True)
    except RuntimeError as error:
        print(f"RuntimeError: {error}", flush=True)
    dist.destroy_process_group()
    print("the group is destroyed", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        run_rank(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    else:
        sys.exit(main())
