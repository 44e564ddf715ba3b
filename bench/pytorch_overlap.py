#!/usr/bin/env python3
"""Transfers beside matmuls as training has them, one process per GPU:

    torchrun --nproc_per_node=N bench/pytorch_overlap.py [pipeline] [fsdp] [options]

pipeline every rank is a stage: while it multiplies one micro-batch, the result of the last one goes to the
next stage and the next one comes from the stage before (the last stage sends to the first, so all ranks are
equally busy) fsdp every layer's weights are spread over all ranks: while one layer multiplies, the weights of
the next are gathered in place (FSDP2's way), into one of two buffers

Run it once as it is (NVIDIA's library), once with LD_PRELOAD=libnccl.so.2, and once with NCCL_PASS_SM=1 as
well. Prints for each the time of a step that only computes, that only transfers, and that does both: median,
least and most of the steps, on the slowest rank; and whether what arrived is right. Without GPUs it runs over
gloo, to try it out."""

import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist

PARTS = ("pipeline", "fsdp")


def options():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="pipeline, fsdp; default: both")
    parser.add_argument(
        "--mib", type=int, default=256, help="MiB of a message, or of a layer's weights (default 256)"
    )
    parser.add_argument("--side", type=int, default=8192, help="rows of the matrices (default 8192)")
    parser.add_argument("--matmuls", type=int, default=2, help="per micro-batch or layer (default 2)")
    parser.add_argument("--count", type=int, default=8, help="micro-batches or layers of a step (default 8)")
    parser.add_argument("--steps", type=int, default=20, help="timed steps (default 20)")
    args = parser.parse_args()
    for part in args.parts:
        if part not in PARTS:
            parser.error(f"{part}: parts are {' and '.join(PARTS)}")
    for name in ("mib", "side", "matmuls", "count", "steps"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} must be at least 1")
    return args


class Job:
    """This rank, and the matrices that it multiplies."""

    def __init__(self, args):
        self.args = args
        self.on_gpu = torch.cuda.is_available()
        self.device = (
            torch.device("cuda", int(os.environ["LOCAL_RANK"])) if self.on_gpu else torch.device("cpu")
        )
        if self.on_gpu:
            torch.cuda.set_device(self.device)
            dist.init_process_group("nccl", device_id=self.device)
        else:
            dist.init_process_group("gloo")
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        if self.ranks < 2:
            raise SystemExit(
                "there is nobody to exchange with: start it with torchrun --nproc_per_node=2 or more"
            )
        shape = (args.side, args.side)
        self.x, self.y = (torch.randn(shape, dtype=torch.bfloat16, device=self.device) for _ in range(2))
        self.z = torch.empty(shape, dtype=torch.bfloat16, device=self.device)

    def multiply(self):
        for _ in range(self.args.matmuls):
            torch.mm(self.x, self.y, out=self.z)

    def synchronize(self):
        if self.on_gpu:
            torch.cuda.synchronize()

    def empty(self, elements):
        return torch.zeros(elements, dtype=torch.bfloat16, device=self.device)

    def milliseconds(self, step):
        """Of each timed step, on the slowest rank."""
        for _ in range(3):
            step()
        self.synchronize()
        dist.barrier()
        times = []
        for _ in range(self.args.steps):
            start = time.perf_counter()
            step()
            self.synchronize()
            times.append((time.perf_counter() - start) * 1e3)
        slowest = torch.tensor(times, dtype=torch.float32, device=self.device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        return slowest.tolist()

    def agree(self, right):
        """Whether all ranks found it right."""
        all_right = torch.tensor([float(right)], device=self.device)
        dist.all_reduce(all_right, op=dist.ReduceOp.MIN)
        return bool(all_right.item())


class Pipeline:
    """Micro-batches go from stage to stage; two buffers for each direction."""

    def __init__(self, job):
        self.job = job
        elements = job.args.mib << 19
        self.inputs, self.outputs = ([job.empty(elements) for _ in range(2)] for _ in range(2))

    def begin(self, number):
        """The result of the micro-batch before goes, the micro-batch after comes."""
        job, to = self.job, (self.job.rank + 1) % self.job.ranks
        ends = [
            dist.P2POp(dist.isend, self.outputs[(number + 1) % 2], to),
            dist.P2POp(dist.irecv, self.inputs[(number + 1) % 2], (job.rank - 1) % job.ranks),
        ]
        return dist.batch_isend_irecv(ends)

    def step(self, computes, transfers):
        for number in range(self.job.args.count):
            works = self.begin(number) if transfers else []
            if computes:
                self.job.multiply()
            for work in works:
                work.wait()

    def is_right(self):
        job = self.job
        self.outputs[1].fill_(job.rank + 1)
        self.inputs[1].zero_()
        for work in self.begin(0):
            work.wait()
        return bool((self.inputs[1] == (job.rank - 1) % job.ranks + 1).all())


class Fsdp:
    """Weights of the next layer are gathered while the one before multiplies."""

    def __init__(self, job):
        self.job = job
        self.part = (job.args.mib << 19) // job.ranks // 8 * 8
        self.shards = [
            job.empty(self.part).fill_(job.rank + 1 + layer % 2) for layer in range(job.args.count)
        ]
        self.whole = [job.empty(self.part * job.ranks) for _ in range(2)]

    def begin(self, layer):
        whole = self.whole[layer % 2]
        own = whole.narrow(0, self.job.rank * self.part, self.part)
        own.copy_(self.shards[layer % self.job.args.count])
        return dist.all_gather_into_tensor(whole, own, async_op=True)

    def step(self, computes, transfers):
        work = self.begin(0) if transfers else None
        for layer in range(self.job.args.count):
            if transfers:
                work.wait()
                if layer + 1 < self.job.args.count:
                    work = self.begin(layer + 1)
            if computes:
                self.job.multiply()

    def is_right(self):
        self.begin(0).wait()
        parts = self.whole[0].view(self.job.ranks, self.part)
        return all(bool((parts[rank] == rank + 1).all()) for rank in range(self.job.ranks))


def main():
    args = options()
    job = Job(args)
    version = "NCCL " + ".".join(map(str, torch.cuda.nccl.version())) if job.on_gpu else "gloo"
    if job.rank == 0:
        sizes = f"{args.count} x ({args.mib} MiB, {args.matmuls} matmuls of {args.side}^3 bf16)"
        settings = " ".join(
            f"{name}={os.environ[name]}" for name in ("LD_PRELOAD", "NCCL_PASS_SM") if name in os.environ
        )
        print(
            f"# {job.ranks} ranks, {version} {settings}\n# a step: {sizes}; ms: median (least to most)",
            flush=True,
        )
    wrong = False
    for name, kind in zip(PARTS, (Pipeline, Fsdp)):
        if args.parts and name not in args.parts:
            continue
        part = kind(job)
        right = job.agree(part.is_right())
        ways = {"computing": (True, False), "transfers": (False, True), "both": (True, True)}
        times = {way: job.milliseconds(lambda: part.step(*what)) for way, what in ways.items()}
        right = job.agree(part.is_right()) and right
        wrong = wrong or not right
        if job.rank == 0:
            report(name, times, right)
        del part
    dist.destroy_process_group()
    raise SystemExit(1 if wrong else 0)


def report(name, times, right):
    middle = {way: statistics.median(samples) for way, samples in times.items()}
    cells = [
        f"{way} {middle[way]:8.2f} ({min(samples):.2f} to {max(samples):.2f})"
        for way, samples in times.items()
    ]
    longer = max(middle["computing"], middle["transfers"])
    over = (middle["both"] / longer - 1) * 100
    print(
        f"{name:<9} {'  '.join(cells)}  {over:+.1f} % over the longer  {'right' if right else 'WRONG'}",
        flush=True,
    )


if __name__ == "__main__":
    main()
