#!/usr/bin/env python3
"""Workers that are forked after init: tests/gpu/dataloader.py libnccl.so.2 [ranks]

Each rank of a PyTorch job has a DataLoader with two forked workers, which inherit its sockets and mappings.
First all-reduces of their batches go on beside them: every sum must be right, and the workers must end with
their rank. Then one rank is killed while its workers live: each other rank must end within the limit with a
text that names the killed rank. Prints a line for each rank; the exit code is 1 if something is wrong. Needs
PyTorch and a GPU; says so and ends with 0 otherwise."""

import faulthandler
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True

import processes

LIMIT = 120
# After a death: the library notices it in 2 s, PyTorch's watchdog looks once in a while.
LIMIT_AFTER_DEATH = 60
STEPS, BATCH, WORKERS = 50, 64, 2
VICTIM = 1


def main():
    if not processes.torch_gpus():
        print("skipped: needs PyTorch and a GPU")
        return 0
    library, ranks = os.path.abspath(sys.argv[1]), int((sys.argv + ["8"])[2])
    wrong = 0
    for phase, judge in (("steps", judged_steps), ("death", judged_death)):
        for rank, problem in enumerate(carry_out(library, ranks, phase, judge)):
            wrong += problem is not None
            print(f"{phase}, rank {rank}: {problem or 'ok'}", flush=True)
    return int(wrong > 0)


def carry_out(library, ranks, phase, judge):
    """What is wrong with the end of each rank, or None."""
    env = {**os.environ, "LD_PRELOAD": library, "NCCL_MULTI_RANK_GPU_ENABLE": "1", "OMP_NUM_THREADS": "1"}
    env |= {"CUDA_DEVICE_MAX_CONNECTIONS": "32", "MASTER_ADDR": "127.0.0.1"}
    # PyTorch's watchdog writes for a minute what it was doing, before it ends a process.
    env |= {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "500"}
    env.setdefault("NCCL_DEBUG", "WARN")
    with tempfile.TemporaryDirectory() as folder:
        start = [sys.executable, os.path.abspath(__file__), "--rank"]
        children, files = [], []
        for rank in range(ranks):
            # Workers inherit a pipe too, and would keep its end open.
            files.append(os.path.join(folder, f"log-{rank}"))
            with open(files[-1], "w") as log:
                words = [*start, str(rank), str(ranks), os.path.join(folder, "store"), phase, folder]
                output = {"stdout": log, "stderr": subprocess.STDOUT}
                children.append(subprocess.Popen(words, env=env, start_new_session=True, **output))
        if phase == "death":
            end = time.monotonic() + LIMIT
            while not os.path.exists(os.path.join(folder, "is-under-way")) and time.monotonic() < end:
                time.sleep(0.05)
            children[VICTIM].send_signal(signal.SIGKILL)
        end = time.monotonic() + (LIMIT_AFTER_DEATH if phase == "death" else LIMIT)
        problems = []
        for rank, child in enumerate(children):
            try:
                child.wait(timeout=max(1, end - time.monotonic()))
                hangs = False
            except subprocess.TimeoutExpired:
                hangs = True
            with open(files[rank], errors="replace") as log:
                text = log.read()
            problem = judge(rank, child.returncode, text)
            problems.append(f"HANGS: {problem}: {text[-1500:]}" if hangs else problem)
        processes.end_all_sessions(children)
        return problems


def judged_steps(rank, code, text):
    if code == 0 and f"{STEPS} steps" in text:
        return None
    return f"ended with {code}: {text[-1500:]}"


def judged_death(rank, code, text):
    if rank == VICTIM:
        return None if code == -signal.SIGKILL else f"was to be killed, ended with {code}: {text[-500:]}"
    if code == 0:
        return "ended as if nothing had happened"
    if not re.search(rf"\brank {VICTIM}\b", text):
        return f"does not name rank {VICTIM}: {text[-1500:]}"
    return None


class Numbers:
    """A data set: element i of rank r is r + i."""

    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return STEPS * BATCH

    def __getitem__(self, index):
        return float(self.rank + index)


def run_rank(rank, ranks, store, phase, folder):
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader

    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=ranks)
    dist.all_reduce(torch.ones(1, device=device))
    loader = DataLoader(Numbers(rank), batch_size=BATCH, num_workers=WORKERS, multiprocessing_context="fork")
    steps = 0
    while True:
        for number, batch in enumerate(loader):
            sums = batch.to(device=device, dtype=torch.float32)
            dist.all_reduce(sums)
            first = ranks * (ranks - 1) / 2 + ranks * number * BATCH
            expected = [first + ranks * at for at in range(BATCH)]
            if sums.tolist() != expected:
                # After a death the watchdog ends the process, and says why.
                time.sleep(LIMIT_AFTER_DEATH if phase == "death" else 0)
                sys.exit(f"step {number}: {sums.tolist()[:4]} instead of {expected[:4]}")
            steps += 1
            if steps == 5 and phase == "death":
                # What a rank that hangs waits for stands in its log.
                faulthandler.dump_traceback_later(LIMIT_AFTER_DEATH - 15)
                if rank == 0:
                    open(os.path.join(folder, "is-under-way"), "w").close()
        if phase == "steps":
            break
    dist.destroy_process_group()
    print(f"{steps} steps, every sum right", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        run_rank(int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:7])
    else:
        sys.exit(main())
