#!/usr/bin/env python3
"""The memory pool on GPUs: tests/gpu/pool.py libnccl.so.2 [ranks]

A process for each setting: no setting, limits down to one that must be refused, memory mapped ahead, memory
kept idle, lines at an interval, copy engines. In each, all collectives are checked, with a communicator
beside the first, and what the device's free memory and the pool's own lines say is compared. Needs PyTorch
and a GPU, or `--host` with numpy and ml_dtypes (no figures of free memory there); says so and ends with 0
otherwise. The exit code is 1 if something is wrong."""

import ctypes
import os
import re
import sys
import tempfile
import time

sys.dont_write_bytecode = True

import cases
import children
import layer as layers
import nccl
import program

MIB = 1 << 20
EVENTS = {"NCCL_CUMEM_MONITOR": "1", "NCCL_CUMEM_MONITOR_INTERVAL": "0"}
LINE = re.compile(
    r"MEMORY_POOL (.*?): committed ([\d.]+) MiB, in use ([\d.]+) MiB, .*peak ([\d.]+) MiB.*\((\w+)\)"
)

SETTINGS = {
    "default": EVENTS,
    "copy engines": EVENTS | {"NCCL_PASS_SM": "1"},
    "limit 1GB": EVENTS | {"NCCL_CUMEM_MAX_SIZE": "1GB", "NCCL_PASS_SM": "1"},
    "limit 160MB": EVENTS | {"NCCL_CUMEM_MAX_SIZE": "160MB", "NCCL_PASS_SM": "1"},
    "limit 1MB": EVENTS | {"NCCL_CUMEM_MAX_SIZE": "1MB"},
    "prealloc 1GB": EVENTS | {"NCCL_CUMEM_POOL_SIZE": "1GB", "NCCL_CUMEM_PREALLOC": "1"},
    "growth 2": EVENTS | {"NCCL_CUMEM_GROWTH_FACTOR": "2"},
    # Without growth: of a large piece nothing can go back while a little of it is used.
    "trim 64MB": EVENTS | {"NCCL_CUMEM_TRIM_THRESHOLD": "64MB"},
    "without VMM": EVENTS | {"NCCL_CUMEM_ENABLE": "0", "NCCL_CUMEM_MAX_SIZE": "1GB"},
    "monitor 0.2 s": {"NCCL_CUMEM_MONITOR": "1", "NCCL_CUMEM_MONITOR_INTERVAL": "200ms"},
}


def main():
    options = program.parser(__doc__).parse_args()
    parts = [
        (name, children.DEFAULT, Trial(options, name, settings).run) for name, settings in SETTINGS.items()
    ]
    return program.run(parts, 180, "settings")


class Trial:
    """One setting, in a process of its own."""

    def __init__(self, options, name, settings):
        self.options, self.name, self.settings, self.wrong = options, name, settings, []

    def run(self):
        log = tempfile.NamedTemporaryFile(prefix="hawser-pool-", delete=False)
        os.environ.update(self.settings, NCCL_DEBUG_FILE=log.name)
        self.layer, reason = layers.open_layer(self.options.ranks, self.options.host)
        if self.layer is None:
            return {"skipped": reason}
        self.ranks = max(2, self.options.ranks or self.layer.default_ranks())
        nccl.Watchdog(170)
        self.library = nccl.Library(self.options.library)
        self.warm()
        before, text = self.free(), ""
        try:
            text = self.work(before, log.name)
        except nccl.NcclError as error:
            if self.name != "limit 1MB" or "NCCL_CUMEM_MAX_SIZE" not in error.text:
                raise
            text = f"refused: {error.text[:90]}"
        else:
            self.expect(self.name != "limit 1MB", "a limit of 1 MiB was not refused")
        lines = [LINE.search(line) for line in open(log.name)]
        os.unlink(log.name)
        self.check([line for line in lines if line])
        return {"done": 1, "wrong": self.wrong, "text": text}

    def warm(self):
        """Contexts of the devices take memory of their own."""
        for place in range(self.ranks):
            self.layer.use(place)
            with self.layer.on(self.layer.stream(place)):
                cases.Buffer(self.layer, place, 1024, 0)

    def work(self, before, log):
        first = nccl.world(self.library, self.layer, self.ranks)
        up = self.free()
        self.collectives(first)
        second = nccl.split(first, self.layer, [0] * self.ranks, list(range(self.ranks)), "child")[0]
        both = self.free()
        self.collectives(second)
        second.destroy()
        self.user_memory()
        if self.name.startswith("monitor"):
            seen = lambda: sum("(interval)" in line for line in open(log))
            while seen() < 3 * min(self.ranks, 2):
                time.sleep(0.1)
        first.destroy()
        self.collectives_again()
        after = self.free()
        if before is None:
            return ""
        keeps = "trim" in self.name
        self.expect(keeps or after >= before - 64 * MIB, f"{(before - after) // MIB} MiB did not come back")
        return f"{(before - up) // MIB} MiB for one communicator, {(before - both) // MIB} for two"

    def collectives_again(self):
        """A communicator after the last one went: the pool begins anew."""
        world = nccl.world(self.library, self.layer, self.ranks)
        self.collectives(world)
        world.destroy()

    def collectives(self, world):
        dtype = next(t for t in self.layer.types if t.name == "float")
        for tag, collective in enumerate(cases.COLLECTIVES):
            for count in (1, 1000, 300_000):
                case = cases.Case(collective, dtype, "sum", count, self.ranks - 1, self.ranks, tag)
                self.one(world, case)

    def one(self, world, case):
        works, streams = [], [self.layer.stream(place) for place in range(self.ranks)]
        for rank, stream in enumerate(streams):
            self.layer.use(rank)
            with self.layer.on(stream):
                works.append(cases.RankWork(self.layer, case, rank, rank, False, 0))
                works[-1].fill()
        with self.library.group():
            for work, stream in zip(works, streams):
                work.issue(world, self.layer.handle(stream))
        for rank, (work, stream) in enumerate(zip(works, streams)):
            self.layer.use(rank)
            with self.layer.on(stream):
                wrong = int(work.wrong())
            self.expect(wrong == 0, f"{case}, rank {rank}: {wrong} bytes wrong")

    def user_memory(self):
        """ncclMemAlloc: the same size again and again takes no more than twice what it is."""
        lib = self.library.lib
        lib.ncclMemAlloc.argtypes, lib.ncclMemFree.argtypes = (
            [ctypes.c_void_p, ctypes.c_size_t],
            [ctypes.c_void_p],
        )
        self.layer.use(0)
        before = self.free()
        for _ in range(20):
            address = ctypes.c_void_p()
            try:
                self.library.check(lib.ncclMemAlloc(ctypes.byref(address), 24 * MIB))
            except nccl.NcclError as error:
                # The communicators may have taken what a limit leaves.
                self.expect(self.name == "limit 160MB" and "NCCL_CUMEM_MAX_SIZE" in error.text, error.text)
                return
            self.library.check(lib.ncclMemFree(address))
        if before is not None:
            self.expect(self.free() >= before - 48 * MIB, "ncclMemAlloc leaks")

    def free(self):
        """Free bytes of the first device, None on the host."""
        if self.layer.on_host:
            return None
        self.layer.torch.cuda.synchronize(0)
        self.layer.torch.cuda.empty_cache()
        return self.layer.torch.cuda.mem_get_info(0)[0]

    def check(self, lines):
        """The lines of the pools against the setting."""
        self.expect(lines, "no lines of the pool")
        peak = max((float(line[4]) for line in lines), default=0)
        limit = self.settings.get("NCCL_CUMEM_MAX_SIZE")
        if limit:
            most = int(limit[:-2]) * (1024 if limit.endswith("GB") else 1)
            self.expect(peak <= most, f"peak {peak} MiB over the limit of {limit}")
        if "PREALLOC" in str(self.settings):
            self.expect(any(1024 <= float(line[2]) <= 1026 for line in lines), "1 GiB was never committed")
        if "trim" in self.name:
            # A line for each piece that goes back: the last one in a row counts.
            pools = [[line for line in lines if line[1] == name] for name in {line[1] for line in lines}]
            last = [
                a
                for pool in pools
                for a, b in zip(pool, pool[1:] + [None])
                if a[5] == "trim" and (b is None or b[5] != "trim")
            ]
            idle = [float(line[2]) - float(line[3]) for line in last]
            self.expect(
                all(mib <= 64 for mib in idle), f"after trimming {max(idle, default=0)} MiB were idle"
            )
        self.expect(lines[-1][5] == "end" or "interval" in {line[5] for line in lines}, "no line at the end")

    def expect(self, good, text):
        if not good:
            self.wrong.append(text)


if __name__ == "__main__":
    sys.exit(main())
