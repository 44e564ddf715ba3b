"""What the five PyTorch examples share: options, starting a process per rank, and who served the calls.

An example that is started alone starts itself once per rank, by PyTorch's own launcher. Under torchrun, or
any launcher that sets RANK and WORLD_SIZE, it runs as the rank that it is given."""

import argparse
import ctypes
import os
import sys

import torch
import torch.distributed as dist


def options(description, add=None):
    """The options that all examples have, and those that `add(parser)` adds."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    has_gpu = torch.cuda.is_available()
    parser.add_argument("--backend", choices=["nccl", "gloo"], default="nccl" if has_gpu else "gloo")
    parser.add_argument("--ranks", type=int, default=0, help="default: one per GPU, at least two")
    parser.add_argument("--library", help="a libnccl.so.2 for LD_PRELOAD, such as Hawser's")
    if add:
        add(parser)
    given = parser.parse_args()
    if given.backend == "nccl" and not has_gpu:
        parser.error("there is no GPU here; use --backend gloo")
    if given.library and not os.path.isfile(given.library):
        parser.error(f"--library {given.library}: no such file")
    given.ranks = given.ranks or max(2, torch.cuda.device_count())
    return given


def start(given):
    """Does nothing in a rank. Else replaces this process by a launcher that runs this program once per
    rank."""
    if "RANK" in os.environ:
        return
    env = dict(os.environ)
    env.setdefault("OMP_NUM_THREADS", "1")
    if given.library:
        env["LD_PRELOAD"] = os.path.abspath(given.library)
    if given.backend == "nccl" and given.ranks > torch.cuda.device_count():
        env.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")  # several ranks on a GPU
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={given.ranks}"]
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *launcher, *sys.argv], env)


def join(given):
    """Joins the job. Returns this rank's number, the number of ranks, and the rank's device."""
    if given.backend == "nccl":
        # Ranks beyond the number of GPUs share them in turn.
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    dist.init_process_group(given.backend)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    dist.all_reduce(torch.ones(1, device=device))  # the first call loads and connects everything
    say(rank, f"{ranks} ranks on {describe(device)}, served by {served_by(given.backend)}")
    return rank, ranks, device


def say(rank, text):
    """Prints on rank 0."""
    if rank == 0:
        write(text)


def write(text):
    """Prints a line in one piece, so that lines of several ranks do not mix."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def describe(device):
    if device.type == "cpu":
        return "the CPU"
    count, name = torch.cuda.device_count(), torch.cuda.get_device_name(device)
    return f"{count} × {name}"


def served_by(backend):
    """The library behind the calls, as this process has mapped it."""
    if backend == "gloo":
        return f"Gloo of PyTorch {torch.__version__} (no libnccl.so.2 is used)"
    path = file_of("ncclGetVersion")
    if path is None:
        return "an NCCL that is part of PyTorch: LD_PRELOAD does not reach it"
    return name_of(path)


class Place(ctypes.Structure):
    """Dl_info of dladdr(3)."""

    _fields_ = [
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    ]


def file_of(function):
    """The file that a function comes from where it is called by its name; None if no file offers it.

    PyTorch may have mapped NVIDIA's library as well, so the list of mapped files does not tell."""
    program = ctypes.CDLL(None)
    if not hasattr(program, function):
        return None
    place, address = Place(), ctypes.cast(getattr(program, function), ctypes.c_void_p)
    program.dladdr.argtypes = [ctypes.c_void_p, ctypes.POINTER(Place)]
    return place.file.decode() if program.dladdr(address, ctypes.byref(place)) else None


def name_of(path):
    """Whose library a file is, with its version."""
    library, number = ctypes.CDLL(path), ctypes.c_int()
    library.ncclGetVersion(ctypes.byref(number))
    major, minor, patch = number.value // 10000, number.value // 100 % 100, number.value % 100
    whose = "Hawser, with the interface of" if hasattr(library, "hawserLastDecision") else "NVIDIA's"
    return f"{whose} NCCL {major}.{minor}.{patch} ({path})"


def check(ok, text):
    """Ends this rank, and so the job, with an error if a result is wrong."""
    if not ok:
        raise SystemExit(f"rank {dist.get_rank()}: WRONG: {text}")


def finish(rank):
    """Waits for all ranks and leaves the job."""
    dist.barrier()
    dist.destroy_process_group()
    say(rank, "all right")
