#!/usr/bin/env python3
"""A row-parallel linear layer in PyTorch whose all-reduce goes in parts, on the communicator of PyTorch.

    LD_PRELOAD=/opt/hawser/lib/libnccl.so.2 torchrun --nproc_per_node=2 examples/partitioned/tensor_parallel.py

Each rank multiplies by its share of the weights; the sum of the first rows is on its way, and goes through the next
layer, while the last rows are still being multiplied. Prints the largest difference from the layer in one piece.
"""

import ctypes
import os

import torch
import torch.distributed as dist

ROWS, INNER, COLUMNS, PARTS = 4096, 1024, 4096, 8
NCCL_TYPES = {torch.float16: 6, torch.float32: 7, torch.bfloat16: 9}
POINTER, SIZE, UNSIGNED, INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint, ctypes.c_int


class Config(ctypes.Structure):
    """`hawserPartitionedConfig_t` of hawser.h."""

    _fields_ = [
        ("size", SIZE),
        ("magic", UNSIGNED),
        ("version", UNSIGNED),
        ("collective", ctypes.c_char_p),
        ("sendbuff", POINTER),
        ("recvbuff", POINTER),
        ("count", SIZE),
        ("datatype", INT),
        ("op", INT),
        ("root", INT),
        ("partitions", UNSIGNED),
        ("counts", POINTER),
        ("order", POINTER),
        ("arrivals", UNSIGNED),
        ("reserved", UNSIGNED),
        ("config", POINTER),
    ]


class AllReduceInParts:
    """Sums `source` of all ranks into `target`, in equal parts of rows."""

    def __init__(self, communicator, source, target, parts):
        self.library, self.handle = ctypes.CDLL(None), POINTER()
        self.library.ncclGetLastError.restype = ctypes.c_char_p
        config = Config(
            ctypes.sizeof(Config), 0x54505748, 1, b"all_reduce", source.data_ptr(), target.data_ptr()
        )
        config.count, config.datatype = source.numel(), NCCL_TYPES[source.dtype]
        config.partitions, config.arrivals = parts, 1
        self._call("Init", ctypes.byref(config), POINTER(communicator), ctypes.byref(self.handle))

    def start(self):
        self._call("Start", self.handle, self._stream())

    def ready(self, part):
        """What the current stream has written so far of this part is all of it."""
        self._call("Ready", self.handle, UNSIGNED(part), self._stream())

    def wait(self, part):
        """The current stream goes on when this part of the sum has arrived."""
        self._call("Wait", self.handle, UNSIGNED(part), self._stream())

    def finish(self):
        self._call("Finish", self.handle, self._stream())

    def free(self):
        self._call("Free", self.handle)

    def _stream(self):
        return POINTER(torch.cuda.current_stream().cuda_stream)

    def _call(self, name, *arguments):
        if getattr(self.library, f"hawserPartitioned{name}")(*arguments) != 0:
            raise RuntimeError(self.library.ncclGetLastError(None).decode())


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    dist.all_reduce(torch.ones(1, device=device))  # the communicator comes up with the first call
    if not hasattr(ctypes.CDLL(None), "hawserPartitionedInit"):
        raise SystemExit("served by another NCCL: preload Hawser's libnccl.so.2")
    torch.manual_seed(dist.get_rank())
    half = {"dtype": torch.bfloat16, "device": device}
    x, weight = torch.randn(ROWS, INNER, **half), torch.randn(INNER, COLUMNS, **half)
    partial, total, out = (torch.zeros(ROWS, COLUMNS, **half) for _ in range(3))
    communicator = dist.group.WORLD._get_backend(device)._comm_ptr()
    parts = AllReduceInParts(communicator, partial, total, PARTS)
    rows, consumer = ROWS // PARTS, torch.cuda.Stream()
    for _ in range(3):
        parts.start()
        consumer.wait_stream(torch.cuda.current_stream())
        for part in range(PARTS):
            own = slice(part * rows, (part + 1) * rows)
            torch.mm(x[own], weight, out=partial[own])
            parts.ready(part)
        with torch.cuda.stream(consumer):
            for part in range(PARTS):
                parts.wait(part)
                own = slice(part * rows, (part + 1) * rows)
                out[own] = torch.nn.functional.gelu(total[own])
        torch.cuda.current_stream().wait_stream(consumer)
        parts.finish()
    whole = torch.mm(x, weight)
    dist.all_reduce(whole)
    # The parts may add up the ranks in another order than the whole; bfloat16 has 8 bits.
    difference = (out - torch.nn.functional.gelu(whole)).abs().max() / whole.abs().max()
    print(
        f"rank {dist.get_rank()}: largest difference {difference.item():.4f} of the largest number",
        flush=True,
    )
    parts.free()
    dist.destroy_process_group()
    if difference > 0.02:
        raise SystemExit("WRONG")


if __name__ == "__main__":
    main()
