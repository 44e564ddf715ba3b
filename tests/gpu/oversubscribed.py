#!/usr/bin/env python3
"""More ranks than GPUs: programs for many ranks on real GPUs. tests/gpu/oversubscribed.py libnccl.so.2
[ranks]

Ranks share GPUs in turn (NCCL_MULTI_RANK_GPU_ENABLE=1), one thread drives them all through groups. Every
collective is compared with PyTorch on the host. Needs PyTorch and a GPU; says so and ends with 0 otherwise.
NCCL_ALGO and NCCL_PROTO choose what runs. The exit code is 1 if a result is wrong.
"""

import ctypes
import faulthandler
import os
import sys

try:
    import torch
except ImportError:
    torch = None

P, SIZE = ctypes.c_void_p, ctypes.c_size_t
COUNTS = (1, 1000, 100_003, 2_000_000)


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


class World:
    def __init__(self, path, ranks):
        self.nccl, self.ranks = ctypes.CDLL(path), ranks
        self.nccl.ncclGetLastError.restype = ctypes.c_char_p
        self.gpus = torch.cuda.device_count()
        self.comms = [P() for _ in range(ranks)]
        identity = UniqueId()
        self.check(self.nccl.ncclGetUniqueId(ctypes.byref(identity)))
        self.nccl.ncclGroupStart()
        for rank in range(ranks):
            torch.cuda.set_device(rank % self.gpus)
            self.check(self.nccl.ncclCommInitRank(ctypes.byref(self.comms[rank]), ranks, identity, rank))
        self.check(self.nccl.ncclGroupEnd())
        self.streams = [torch.cuda.Stream(rank % self.gpus) for rank in range(ranks)]

    def check(self, code):
        if code != 0:
            sys.exit(f"result {code}: {self.nccl.ncclGetLastError(None).decode()}")

    def run(self, name, count, inputs, output_length, tail):
        sent = [x.to(f"cuda:{rank % self.gpus}") for rank, x in enumerate(inputs)]
        got = [torch.full((output_length,), 99, dtype=inputs[0].dtype, device=x.device) for x in sent]
        torch.cuda.synchronize()
        self.nccl.ncclGroupStart()
        for rank in range(self.ranks):
            arguments = [P(sent[rank].data_ptr()), P(got[rank].data_ptr()), SIZE(count)]
            self.check(
                getattr(self.nccl, name)(
                    *arguments, *tail, self.comms[rank], P(self.streams[rank].cuda_stream)
                )
            )
        self.check(self.nccl.ncclGroupEnd())
        for stream in self.streams:
            stream.synchronize()
        return [g.cpu() for g in got]


def main():
    if torch is None or torch.cuda.device_count() == 0:
        print("skipped: needs PyTorch and a GPU")
        return 0
    os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
    faulthandler.dump_traceback_later(200, exit=True)
    world = World(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 8)
    wrong = [case for count in COUNTS for case in cases(world, count)]
    print(
        f"{world.ranks} ranks on {world.gpus} GPUs, {os.environ.get('NCCL_ALGO', '-')}/{os.environ.get('NCCL_PROTO', '-')}:",
        wrong or "0 wrong",
        flush=True,
    )
    return 1 if wrong else 0


def cases(world, count):
    """Names of the collectives that are wrong."""
    n, root = world.ranks, world.ranks - 1
    one = [torch.arange(count) % 7 + rank for rank in range(n)]
    many = [torch.arange(count * n) % 5 + 3 * rank for rank in range(n)]
    for dtype, code in ((torch.float32, 7), (torch.float16, 6), (torch.int32, 2)):
        a, b = [x.to(dtype) for x in one], [x.to(dtype) for x in many]
        total, totals = sum(one).to(dtype), sum(many).to(dtype)
        plan = [
            ("ncclAllReduce", a, count, (code, 0), lambda r: total),
            ("ncclReduce", a, count, (code, 0, root), lambda r: total if r == root else None),
            ("ncclReduceScatter", b, count, (code, 0), lambda r: totals[r * count : (r + 1) * count]),
            ("ncclAllGather", a, count * n, (code,), lambda r: torch.cat(a)),
            ("ncclBroadcast", a, count, (code, root), lambda r: a[root]),
            (
                "ncclAlltoAll",
                b,
                count * n,
                (code,),
                lambda r: torch.cat([x[r * count : (r + 1) * count] for x in b]),
            ),
            ("ncclGather", a, count * n, (code, root), lambda r: torch.cat(a) if r == root else None),
            ("ncclScatter", b, count, (code, root), lambda r: b[root][r * count : (r + 1) * count]),
        ]
        for name, inputs, length, tail, expected in plan:
            got = world.run(name, count, inputs, length, tail)
            if any(expected(r) is not None and not torch.equal(got[r], expected(r)) for r in range(n)):
                yield f"{name} {dtype} x {count}"


if __name__ == "__main__":
    sys.exit(main())
