#!/usr/bin/env python3
"""PyTorch on the library, a process per rank: tests/gpu/pytorch.py libnccl.so.2 [ranks] [--without PART,...]

Runs itself under torchrun, first with the library in LD_PRELOAD, then with NVIDIA's (with gloo where ranks
share a GPU, which NVIDIA's does not allow). Checks collectives of several types, uneven ones, messages,
coalesced calls, groups and splits, operations beside computing, and graphs that are replayed between eager
calls; then trains models by DDP, FSDP and a pipeline for 50 steps each. The losses must equal the other
library's to the last printed digit with 2 ranks; with more, where sums depend on their order, to 1 in 1000.
All of it once more with TORCH_NCCL_USE_COMM_NONBLOCKING=1. Needs PyTorch and a GPU; says so and ends with 0
otherwise. The exit code is 1 if something is wrong."""

import argparse
import os
import re
import signal
import subprocess
import sys

sys.dont_write_bytecode = True

import processes

STEPS, LIMIT = 50, 240


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("library", type=os.path.abspath)
    parser.add_argument(
        "ranks", type=int, nargs="?", default=0, help="default: one per GPU, two if there is one"
    )
    parser.add_argument("--without", default="", help="names of parts")
    options = parser.parse_args()
    gpus = processes.torch_gpus()
    if not gpus:
        print("skipped: needs PyTorch and a GPU")
        return 0
    ranks = options.ranks or max(2, gpus)
    ours = {"LD_PRELOAD": options.library, "EXPECTED_LIBRARY": options.library}
    if ranks > gpus:
        ours["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
    theirs = {"BACKEND": "nccl" if ranks <= gpus else "gloo"}
    wanted = run(f"reference ({theirs['BACKEND']})", ranks, options, theirs)
    failed = wanted is None
    for name, env in [("blocking", {}), ("non-blocking", {"TORCH_NCCL_USE_COMM_NONBLOCKING": "1"})]:
        got = run(name, ranks, options, {**ours, **env})
        failed |= got is None or not agree(name, ranks, got, wanted or {})
    print("FAILED" if failed else "all right")
    return int(failed)


def run(name, ranks, options, env):
    """The losses by part; None if the ranks failed."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "RANK_PROGRAM": "1", "WITHOUT": options.without, **env}
    program = [*launch, os.path.abspath(__file__)]
    child = subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, start_new_session=True
    )
    try:
        output = child.communicate(timeout=LIMIT)[0]
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        output = child.communicate()[0] + "\nTIMEOUT"
    losses = dict(re.findall(r"^losses of (\w+): (.*)$", output, re.M))
    parts = re.findall(r"^right: (.*)$", output, re.M)
    right = child.returncode == 0 and "all parts are through" in output
    print(f"{name}: {'ended' if right else 'FAILED'}; right: {', '.join(parts)}", flush=True)
    if not right:
        print(output[-6000:], flush=True)
    return losses if right else None


def agree(name, ranks, got, wanted):
    ok = True
    for part, text in got.items():
        ours, theirs = [[float(word) for word in losses.split()] for losses in (text, wanted.get(part, text))]
        close = (
            ours == theirs if ranks == 2 else all(abs(a - b) <= 1e-3 * abs(b) for a, b in zip(ours, theirs))
        )
        print(
            f"{name}: {part}: {ours[0]} to {ours[-1]}, {'as' if close else 'NOT as'} the reference ({theirs[-1]})",
            flush=True,
        )
        ok &= close and ours[-1] < ours[0]
    return ok


def of_rank():
    import torch
    import torch.distributed as dist

    backend = os.environ.get("BACKEND", "nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    torch.use_deterministic_algorithms(True, warn_only=True)
    bound = {"device_id": device} if backend == "nccl" else {}
    dist.init_process_group(f"cpu:gloo,cuda:{backend}", **bound)
    check_library()
    parts = Parts(torch, dist, device)
    trained = ("ddp", "fsdp", "pipeline")
    checked = ("collectives", "uneven", "messages", "coalesced", "groups", "beside_computing", "graphs")
    for part in [*(checked if backend == "nccl" else ()), *trained]:
        if part in os.environ.get("WITHOUT", "").split(","):
            continue
        torch.manual_seed(7)
        losses = getattr(parts, part)()
        torch.cuda.synchronize()
        dist.barrier()
        if parts.rank == 0:
            numbers = " ".join(f"{loss:.7g}" for loss in losses or [])
            # In one piece, since other ranks write too.
            sys.stdout.write(f"losses of {part}: {numbers}\n" if losses else f"right: {part}\n")
            sys.stdout.flush()
    dist.destroy_process_group()
    if parts.rank == 0:
        print("all parts are through", flush=True)


def check_library():
    """The process uses the library that was asked for."""
    wanted = os.environ.get("EXPECTED_LIBRARY")
    loaded = {line.split()[-1] for line in open("/proc/self/maps")}
    assert not wanted or os.path.realpath(wanted) in loaded, f"{wanted} is not loaded"


class Parts:
    """What a rank does; each method is a part."""

    def __init__(self, torch, dist, device):
        self.torch, self.dist, self.device = torch, dist, device
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.all = self.ranks * (self.ranks + 1) // 2
        # Gloo has no messages of GPU memory.
        self.message_device = "cpu" if os.environ.get("BACKEND") == "gloo" else device

    def full(self, count, value, dtype=None):
        return self.torch.full((count,), value, dtype=dtype or self.torch.float32, device=self.device)

    def same(self, tensor, value, what):
        assert bool((tensor == value).all()), (
            f"rank {self.rank}: {what} gives {tensor.flatten()[:8].tolist()}, not {value}"
        )

    def collectives(self):
        torch, dist, rank, ranks = self.torch, self.dist, self.rank, self.ranks
        for dtype in (
            torch.float32,
            torch.bfloat16,
            torch.float16,
            torch.float64,
            torch.int64,
            torch.int32,
            torch.uint8,
        ):
            for count in (1, 1000, 300_001, 5_000_000):
                text = f"of {count} {dtype}"
                x = self.full(count, rank + 1, dtype)
                dist.all_reduce(x)
                self.same(x, self.all, "all_reduce " + text)
                x = self.full(count, rank + 1, dtype)
                dist.all_reduce(x, op=dist.ReduceOp.MAX)
                self.same(x, ranks, "max " + text)
                if dtype.is_floating_point:
                    x = self.full(count, 2 * (rank + 1), dtype)
                    dist.all_reduce(x, op=dist.ReduceOp.AVG)
                    self.same(x, ranks + 1, "avg " + text)
                gathered = self.full(count * ranks, 0, dtype)
                dist.all_gather_into_tensor(gathered, self.full(count, rank + 1, dtype))
                for peer, part in enumerate(gathered.chunk(ranks)):
                    self.same(part, peer + 1, "all_gather " + text)
                part = self.full(count, 0, dtype)
                dist.reduce_scatter_tensor(part, gathered)
                self.same(part, ranks * (rank + 1), "reduce_scatter " + text)
                root = count % ranks
                x = self.full(count, rank, dtype)
                dist.broadcast(x, root)
                self.same(x, root, "broadcast " + text)
                x = self.full(count, rank + 1, dtype)
                dist.reduce(x, root)
                self.same(x, self.all if rank == root else rank + 1, "reduce " + text)
                got = self.full(count * ranks, 0, dtype)
                dist.all_to_all_single(got, self.full(count * ranks, rank + 1, dtype))
                for peer, part in enumerate(got.chunk(ranks)):
                    self.same(part, peer + 1, "all_to_all " + text)
        x = self.full(1000, rank + 1)
        dist.all_reduce(x, op=dist._make_nccl_premul_sum(0.5))
        self.same(x, self.all / 2, "premultiplied sum")
        flags = self.full(77, rank == 1, torch.bool)
        dist.all_reduce(flags)
        self.same(flags, True, "sum of bool")

    def uneven(self):
        torch, dist, rank, ranks = self.torch, self.dist, self.rank, self.ranks
        length = lambda a, b: (a * 5 + b * 3) % 4 * (a + 1000 * b)
        to, of = [
            [length(*pair) for pair in pairs]
            for pairs in ([(rank, p) for p in range(ranks)], [(p, rank) for p in range(ranks)])
        ]
        got = self.full(sum(of), 0)
        dist.all_to_all_single(
            got, torch.cat([self.full(n, 10 * rank + p) for p, n in enumerate(to)]), of, to
        )
        for peer, part in enumerate(got.split(of)):
            self.same(part, 10 * peer + rank, "uneven all_to_all")
        parts = [self.full(1000 * (peer + 1), 0) for peer in range(ranks)]
        dist.all_gather(parts, self.full(1000 * (rank + 1), rank + 1))
        for peer, part in enumerate(parts):
            self.same(part, peer + 1, "uneven all_gather")
        parts = [self.full(500, 0) for _ in range(ranks)] if rank == 0 else None
        dist.gather(self.full(500, rank + 1), parts, 0)
        for peer, part in enumerate(parts or []):
            self.same(part, peer + 1, "gather")
        part = self.full(700, 0)
        dist.scatter(part, [self.full(700, peer + 1) for peer in range(ranks)] if rank == 0 else None, 0)
        self.same(part, rank + 1, "scatter")

    def messages(self):
        dist, rank, ranks = self.dist, self.rank, self.ranks
        right, left = (rank + 1) % ranks, (rank - 1) % ranks
        for count in (1, 10_007, 3_000_000):
            x, got = self.full(count, rank + 1), self.full(count, 0)
            for request in dist.batch_isend_irecv(
                [dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, got, left)]
            ):
                request.wait()
            self.same(got, left + 1, f"messages of {count}")
            if rank < ranks // 2 * 2:
                peer = rank ^ 1
                order = (dist.send, dist.recv) if rank < peer else (dist.recv, dist.send)
                for call in order:
                    call(x if call is dist.send else got, peer)
                self.same(got, peer + 1, f"send and recv of {count}")

    def coalesced(self):
        torch, dist = self.torch, self.dist
        xs = [self.full(count, self.rank + 1) for count in (1, 1000, 70_001, 2_000_000)]
        with dist._coalescing_manager(device=self.device):
            for x in xs:
                dist.all_reduce(x)
        for x in xs:
            self.same(x, self.all, "coalesced all_reduce")
        outs = [self.full(x.numel() * self.ranks, 0) for x in xs]
        with dist._coalescing_manager(device=self.device):
            for out, x in zip(outs, xs):
                dist.all_gather_into_tensor(out, x)
        for out in outs:
            self.same(out, self.all, "coalesced all_gather")

    def groups(self):
        torch, dist, rank, ranks = self.torch, self.dist, self.rank, self.ranks
        for members in ([0, 1], list(range(0, ranks, 2)), list(reversed(range(ranks)))):
            group = dist.new_group(members)
            if rank in members:
                x = self.full(5000, rank + 1)
                dist.all_reduce(x, group=group)
                self.same(x, sum(member + 1 for member in members), f"all_reduce of {members}")
                dist.destroy_process_group(group)
        halves = [list(range(ranks // 2)), list(range(ranks // 2, ranks))]
        group = dist.split_group(split_ranks=halves)
        x = self.full(5000, rank + 1)
        dist.all_reduce(x, group=group)
        self.same(x, sum(member + 1 for member in halves[rank >= ranks // 2]), "all_reduce of a half")
        dist.destroy_process_group(group)

    def beside_computing(self):
        torch, dist = self.torch, self.dist
        side, a = torch.cuda.Stream(), torch.randn(2048, 2048, device=self.device)
        for _ in range(10):
            works = [
                (x, dist.all_reduce(x, async_op=True))
                for x in [self.full(1_000_000, self.rank + 1) for _ in range(4)]
            ]
            b = a @ a
            with torch.cuda.stream(side):
                y = self.full(30_000, self.rank + 1)
                dist.all_reduce(y)
            for x, work in works:
                work.wait()
                self.same(x, self.all, "all_reduce beside a product")
            torch.cuda.current_stream().wait_stream(side)
            self.same(y, self.all, "all_reduce on a side stream")
        assert bool(b.isfinite().all())

    def graphs(self):
        torch, dist = self.torch, self.dist
        x, y = self.full(200_000, 0), self.full(200_000 * self.ranks, 0)
        dist.all_reduce(x)
        dist.all_gather_into_tensor(y, x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            dist.all_reduce(x)
            dist.all_gather_into_tensor(y, x)
        for replay in range(30):
            x.fill_(self.rank + replay)
            graph.replay()
            z = self.full(3000, self.rank + 1)
            dist.all_reduce(z)
            expected = self.all - self.ranks + self.ranks * replay
            self.same(x, expected, f"replay {replay}")
            self.same(y, expected, f"all_gather in replay {replay}")
            self.same(z, self.all, "all_reduce between replays")

    def model(self, wide=512):
        nn = self.torch.nn
        layers = [nn.Linear(64, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, 8)]
        return nn.Sequential(*layers).to(self.device)

    def batch(self, step):
        generator = self.torch.Generator().manual_seed(1000 * step + self.rank)
        x = self.torch.randn(32, 64, generator=generator)
        return x.to(self.device), x[:, :8].sin().to(self.device)

    def train(self, model):
        torch = self.torch
        optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.05), []
        for step in range(STEPS):
            x, wanted = self.batch(step)
            loss = torch.nn.functional.mse_loss(model(x), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total = loss.detach().clone()
            self.dist.all_reduce(total)
            losses.append(float(total) / self.ranks)
        return losses

    def ddp(self):
        from torch.nn.parallel import DistributedDataParallel

        return self.train(DistributedDataParallel(self.model(), bucket_cap_mb=0.2))

    def fsdp(self):
        if os.environ.get("BACKEND") == "gloo":
            return self.train_alone()
        from torch.distributed.fsdp import fully_shard

        model = self.model()
        for layer in model:
            if isinstance(layer, self.torch.nn.Linear):
                fully_shard(layer)
        fully_shard(model)
        return self.train(model)

    def train_alone(self):
        """As FSDP: averaged gradients, by all-reduce."""
        model = self.model()
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self.average)
        return self.train(model)

    def average(self, parameter):
        self.dist.all_reduce(parameter.grad)
        parameter.grad /= self.ranks

    def pipeline(self):
        """A layer per rank; activations travel forwards, gradients backwards, by messages."""
        torch, rank, last = self.torch, self.rank, self.ranks - 1
        layer = torch.nn.Linear(64, 64).to(self.device)
        optimizer, losses = torch.optim.SGD(layer.parameters(), lr=0.5), []
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(step)
            x = torch.randn(32, 64, generator=generator).to(self.device)
            wanted = x.roll(1, dims=1)
            if rank:
                x = self.received(x, rank - 1).requires_grad_()
            y = layer(x)
            optimizer.zero_grad()
            loss = torch.zeros(1, device=self.device)
            if rank < last:
                self.send(y.detach(), rank + 1)
                y.backward(self.received(y, rank + 1))
            else:
                loss = torch.nn.functional.mse_loss(y, wanted)
                loss.backward()
            if rank:
                self.send(x.grad, rank - 1)
            optimizer.step()
            loss = loss.detach().reshape(1)
            self.dist.broadcast(loss, last)
            losses.append(float(loss))
        return losses

    def send(self, tensor, peer):
        self.dist.send(tensor.to(self.message_device), peer)

    def received(self, like, peer):
        tensor = self.torch.empty(like.shape, device=self.message_device)
        self.dist.recv(tensor, peer)
        return tensor.to(self.device)


if __name__ == "__main__":
    sys.exit(of_rank() if os.environ.get("RANK_PROGRAM") else main())
