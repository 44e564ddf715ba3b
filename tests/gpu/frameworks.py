#!/usr/bin/env python3
"""CuPy and JAX on the library, a process for each rank: tests/gpu/frameworks.py libnccl.so.2 [ranks] [--only NAME]

CuPy calls NCCL itself: all collectives that it binds, and messages in groups, of several types and sizes. JAX
lets XLA call it: sums, gathers, scattered sums, exchanges and permutations of an array that lies on all ranks.
NVIDIA's nccl4py, on arrays of CuPy: puts into windows and signals, splits, shrinks, memory that is given back.
Ranks share the GPUs that there are. All results are checked. Prints a line for each framework, and says which is
not installed; the exit code is 1 if one went wrong. Needs a GPU."""

import argparse
import ast
import faulthandler
import importlib.util
import os
import socket
import sys
import tempfile
import time
import traceback

sys.dont_write_bytecode = True

import processes
from processes import ended_badly, has_gpu

NAMES = ["cupy", "jax", "nccl4py"]
MODULES = {"nccl4py": "cuda.core"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", type=os.path.abspath)
    parser.add_argument("ranks", type=int, nargs="?", default=4)
    parser.add_argument("--only", choices=NAMES)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    for word in ("--child", "--phase", "--identity"):
        parser.add_argument(word, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        return of_rank(options)
    if not has_gpu():
        print("skipped: needs a GPU")
        return 0
    bad = 0
    for name in [options.only] if options.only else NAMES:
        if not is_installed(MODULES.get(name, name)):
            print(f"{name:7} skipped: it is not installed")
            continue
        wrong = carry_out(options, name)
        print(f"{name:7} {options.ranks} ranks: {wrong or 'ok'}", flush=True)
        bad += wrong is not None
    return int(bad > 0)


def is_installed(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def carry_out(options, name):
    """What is wrong with a framework, or None."""
    env = {"LD_PRELOAD": options.library, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    words = [str(options.ranks), "--port", str(free_port())]
    with tempfile.TemporaryDirectory() as folder:
        children = [
            processes.start(options, rank, name, folder, words=words, env=env) for rank in range(options.ranks)
        ]
        ends = [ended_badly(child, rank) for rank, child in enumerate(children)]
    return next((end for end in ends if end), None)


def free_port():
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return asked.getsockname()[1]


def of_rank(options):
    # A rank that stands still says where.
    faulthandler.dump_traceback_later(processes.SLOWEST - 20, exit=True)
    loaded = {line.split()[-1] for line in open("/proc/self/maps")}
    assert os.path.realpath(options.library) in loaded, f"{options.library} is not loaded"
    rank, ranks = int(options.child), options.ranks
    try:
        {"cupy": with_cupy, "jax": with_jax, "nccl4py": with_nccl4py}[options.phase](rank, ranks, options)
    except Exception:
        traceback.print_exc()
        sys.stdout.flush()
        # Others wait for this rank: let them see its end rather than a slow way out.
        os._exit(1)
    return 0


def shared(options, rank, make):
    """Bytes that rank 0 makes for all ranks."""
    path = options.identity
    if rank == 0:
        with open(path + ".new", "wb") as file:
            file.write(make())
        os.rename(path + ".new", path)
    while not os.path.exists(path):
        time.sleep(0.01)
    with open(path, "rb") as file:
        return file.read()


def with_cupy(rank, ranks, options):
    import cupy
    from cupy.cuda import nccl

    cupy.cuda.Device(rank % cupy.cuda.runtime.getDeviceCount()).use()
    identity = ast.literal_eval(shared(options, rank, lambda: repr(nccl.get_unique_id()).encode()).decode())
    comm = nccl.NcclCommunicator(ranks, identity, rank)
    types = {"float32": nccl.NCCL_FLOAT32, "float64": nccl.NCCL_FLOAT64, "int64": nccl.NCCL_INT64}
    types |= {"float16": nccl.NCCL_FLOAT16, "int32": nccl.NCCL_INT32, "uint8": nccl.NCCL_UINT8}
    stream = cupy.cuda.get_current_stream()
    for name, number in types.items():
        for count in (1, 1001, 300_000):
            CupyCalls(cupy, nccl, comm, rank, ranks, stream, name, number, count).run()
    comm.destroy()


class CupyCalls:
    """The calls of one type and count."""

    def __init__(self, cupy, nccl, comm, rank, ranks, stream, name, number, count):
        self.cupy, self.nccl, self.comm, self.rank, self.ranks = cupy, nccl, comm, rank, ranks
        self.stream, self.name, self.number, self.count = stream, name, number, count
        self.all = ranks * (ranks + 1) // 2

    def run(self):
        comm, count, number, ranks = self.comm, self.count, self.number, self.ranks
        total, stream, root = self.nccl.NCCL_SUM, self.stream.ptr, count % ranks
        mine, got = self.full(count, self.rank + 1), self.full(count, 0)
        comm.allReduce(mine.data.ptr, got.data.ptr, count, number, total, stream)
        self.same(got, self.all, "allReduce")
        comm.reduce(mine.data.ptr, got.data.ptr, count, number, self.nccl.NCCL_MAX, root, stream)
        if self.rank == root:
            self.same(got, ranks, "reduce")
        comm.broadcast(mine.data.ptr, got.data.ptr, count, number, root, stream)
        self.same(got, root + 1, "broadcast")
        gathered = self.full(count * ranks, 0)
        comm.allGather(mine.data.ptr, gathered.data.ptr, count, number, stream)
        for peer in range(ranks):
            self.same(gathered[peer * count : (peer + 1) * count], peer + 1, "allGather")
        comm.reduceScatter(gathered.data.ptr, got.data.ptr, count, number, total, stream)
        self.same(got, ranks * (self.rank + 1), "reduceScatter")
        right, left = (self.rank + 1) % ranks, (self.rank - 1) % ranks
        self.nccl.groupStart()
        comm.send(mine.data.ptr, count, number, right, stream)
        comm.recv(got.data.ptr, count, number, left, stream)
        self.nccl.groupEnd()
        self.same(got, left + 1, "send and recv")

    def full(self, count, value):
        return self.cupy.full(count, value, dtype=self.name)

    def same(self, array, value, what):
        right = bool((array == value).all())
        assert right, f"{what} of {self.count} {self.name} gives {array[:8].tolist()}, not {value}"


def with_jax(rank, ranks, options):
    import jax

    device = rank % visible_gpus()
    address = f"127.0.0.1:{options.port}"
    jax.distributed.initialize(address, ranks, rank, local_device_ids=[device])
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh, spec = Mesh(np.array(jax.devices()), ("ranks",)), PartitionSpec("ranks")
    assert mesh.size == ranks, f"{mesh.size} devices for {ranks} ranks"
    shift = [(peer, (peer + 1) % ranks) for peer in range(ranks)]
    operations = {
        "psum": lambda x: jax.lax.psum(x, "ranks"),
        "all_gather": lambda x: jax.lax.all_gather(x, "ranks", tiled=True),
        "psum_scatter": lambda x: jax.lax.psum_scatter(x, "ranks", tiled=True),
        "all_to_all": lambda x: jax.lax.all_to_all(x, "ranks", 0, 0, tiled=True),
        "ppermute": lambda x: jax.lax.ppermute(x, "ranks", shift),
    }
    for count in (ranks, 1024 * ranks, 262_144 * ranks):
        # Element i of rank r is r + i % 7: sums of these are exact.
        whole = np.stack([(peer + np.arange(count) % 7).astype(np.float32) for peer in range(ranks)])
        mine = jax.device_put(whole[rank], jax.local_devices()[0])
        array = jax.make_array_from_single_device_arrays((ranks * count,), NamedSharding(mesh, spec), [mine])
        for name, operation in operations.items():
            run = jax.jit(jax.shard_map(operation, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
            got = np.asarray(jnp.asarray(run(array).addressable_data(0)))
            wanted = expected(name, whole, rank, ranks)
            assert np.array_equal(got, wanted), f"{name} of {count} gives {got[:8]}, not {wanted[:8]}"
    jax.distributed.shutdown()


def expected(name, whole, rank, ranks):
    """What an operation gives a rank, of the parts of all ranks."""
    import numpy as np

    part = whole.shape[1] // ranks
    mine = slice(rank * part, (rank + 1) * part)
    if name == "psum":
        return whole.sum(0)
    if name == "all_gather":
        return whole.reshape(-1)
    if name == "psum_scatter":
        return whole.sum(0)[mine]
    if name == "all_to_all":
        return np.concatenate([whole[peer][mine] for peer in range(ranks)])
    return whole[(rank - 1) % ranks]


def with_nccl4py(rank, ranks, options):
    # This folder has an nccl.py.
    sys.path = [path for path in sys.path if path != os.path.dirname(os.path.abspath(__file__))]
    import cupy
    import nccl.core as nccl
    from nccl.core.interop import cupy as interop

    cupy.cuda.Device(rank % cupy.cuda.runtime.getDeviceCount()).use()
    identity = nccl.UniqueId.from_bytes(shared(options, rank, lambda: bytes(nccl.get_unique_id())))
    used = nccl.get_version().libnccl.path
    assert os.path.realpath(used) == os.path.realpath(options.library), f"{used} is used"
    config = nccl.NCCLConfig(num_rma_sig=2)
    comm = nccl.Communicator.init(ranks, rank, identity, config)

    def check_sum(comm):
        mine, got = cupy.full(70_001, comm.rank + 1, dtype="float32"), cupy.zeros(70_001, dtype="float32")
        comm.allreduce(mine, got, nccl.SUM)
        assert bool((got == comm.nranks * (comm.nranks + 1) // 2).all()), f"sum of {comm.nranks} ranks"

    check_sum(comm)
    others = [peer for peer in range(ranks) if peer != rank]
    for count in (5, 300_001):
        target, source = interop.empty((ranks * count,), dtype="float32"), interop.empty((count,), dtype="float32")
        target.fill(0), source.fill(rank + 1)
        windows = [comm.register_window(array, nccl.WindowFlag.COLL_SYMMETRIC) for array in (target, source)]
        for peer in others:
            comm.put_signal(source, peer, windows[0], rank * count)
            comm.signal(peer, signal_index=1)
        comm.wait_signal([nccl.WaitSignalDesc(peer=peer) for peer in others])
        comm.wait_signal([nccl.WaitSignalDesc(peer=peer, signal_index=1) for peer in others])
        # Not waited for: CuPy loads a kernel below, for which the driver waits for the stream.
        for peer in range(ranks):
            part, value = target[peer * count : (peer + 1) * count], 0 if peer == rank else peer + 1
            assert bool((part == value).all()), f"{part[:8].tolist()} from rank {peer} instead of {value}"
        check_sum(comm)
        cupy.cuda.Device().synchronize()
        for window in windows:
            window.close()
    comm.suspend()
    asleep = comm.get_mem_stat(nccl.NcclCommMemStat.GPU_MEM_SUSPENDED)
    comm.resume()
    assert asleep == 1, "it does not say that it sleeps"
    check_sum(comm)
    half = comm.split(rank % 2, rank)
    check_sum(half)
    if rank != ranks - 1:
        check_sum(comm.shrink([ranks - 1], flag=nccl.CommShrinkFlag.ABORT))
    cupy.cuda.Device().synchronize()


def visible_gpus():
    """The number of GPUs, asked of the driver in another process: JAX wants to be the first here."""
    code = """
import ctypes
driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
driver.cuInit(0), driver.cuDeviceGetCount(ctypes.byref(count))
print(count.value)
"""
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    asked = processes.subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    return int(asked.stdout)


if __name__ == "__main__":
    sys.exit(main())
