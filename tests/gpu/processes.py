"""Programs with a process for each rank: what they ask for, how they start their ranks, hear of them and end
them. A program starts itself once more for a rank."""

import argparse
import os
import select
import signal
import subprocess
import sys
import time

ONE_HOST = "one host"
PLACES = [ONE_HOST, "a host for each rank"]
SLOWEST = 60


def parser(doc, ranks=True):
    """`library`, with `ranks` also the number of ranks, and the words by which a program starts its ranks."""
    made = argparse.ArgumentParser(description=doc.splitlines()[0])
    made.add_argument("library", type=os.path.abspath)
    if ranks:
        made.add_argument("ranks", type=int, nargs="?", default=4)
    made.add_argument("--child", type=int, help=argparse.SUPPRESS)
    made.add_argument("--phase", help=argparse.SUPPRESS)
    made.add_argument("--identity", help=argparse.SUPPRESS)
    made.add_argument("--forked", action="store_true", help=argparse.SUPPRESS)
    return made


def has_gpu():
    """Whether the driver finds a GPU."""
    return free_memory() is not None


def free_memory():
    """The free bytes of the first GPU, None if the driver finds no GPU."""
    # In a process of its own: children are started from this one.
    code = """
import ctypes
driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
count, device = ctypes.c_int(), ctypes.c_int()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0:
    driver.cuDeviceGet(ctypes.byref(device), 0)
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    driver.cuCtxSetCurrent(context)
    driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    print(free.value)
"""
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    return int(asked.stdout) if asked.stdout.strip() else None


def of_phases(doc, phases, memories, carry_out, as_rank):
    """The program of a script with phases, or one of its ranks. Returns the exit code."""
    made = parser(doc)
    made.add_argument("--only", choices=phases)
    made.add_argument("--memory", choices=list(memories))
    options = made.parse_args()
    if options.child is not None:
        return as_rank(options).run()
    if not has_gpu():
        print("skipped: needs a GPU")
        return 0
    return each_phase(options, phases, memories, carry_out)


def each_phase(options, phases, memories, carry_out):
    """Carries out all phases, or that of `--only`, with each kind of memory, or that of `--memory`, and prints
    a line for each. `carry_out` says what is wrong, or None, and gives lines to print. Returns the exit
    code."""
    bad = 0
    for memory in memories if options.memory is None else [options.memory]:
        for phase in phases if options.only is None else [options.only]:
            wrong, lines = carry_out(options, phase, memory)
            print(f"{phase:13} {memory:12} {wrong or 'ok'}", flush=True)
            for line in lines:
                print(f"  {line}", flush=True)
            bad += wrong is not None
    print(f"{bad} phases wrong")
    return 1 if bad else 0


def torch_gpus():
    """The number of GPUs that PyTorch finds; 0 where there is no PyTorch."""
    try:
        import torch

        return torch.cuda.device_count()
    except ImportError:
        return 0


def start(options, rank, phase, folder, place=ONE_HOST, words=(), env=None):
    """The process of a rank, which finds the identity of the communicator in `folder`. `words` are further
    arguments, `env` further variables."""
    variables = {**os.environ, "NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_DEBUG": "WARN", **(env or {})}
    if place == PLACES[1]:
        variables |= {"NCCL_HOSTID": f"host-{rank}", "NCCL_SOCKET_IFNAME": "lo"}
    command = [sys.executable, os.path.abspath(sys.argv[0]), options.library, *words, "--child", str(rank)]
    command += ["--phase", phase, "--identity", os.path.join(folder, "id")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, env=variables, start_new_session=True, **pipes)


def log_to(folder, rank, subsystems):
    """Variables by which a rank leaves its log in `folder`."""
    file = os.path.join(folder, f"log{rank}")
    return {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": subsystems, "NCCL_DEBUG_FILE": file}


def log(folder, rank):
    """The log of a rank that was started with `log_to`."""
    try:
        with open(os.path.join(folder, f"log{rank}"), errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def said(child, word, seconds):
    """Whether a process says a word in time."""
    end, text = time.monotonic() + seconds, b""
    while word not in text:
        if not select.select([child.stdout], [], [], max(0, end - time.monotonic()))[0]:
            return False
        more = os.read(child.stdout.fileno(), 4096)
        if not more:
            sys.stdout.write(text.decode(errors="replace")[-500:])
            return False
        text += more
    return True


def ended_badly(child, rank):
    """What is wrong with the end of a process that is to end well, or None."""
    try:
        text = child.communicate(timeout=SLOWEST)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        child.kill()
        return f"rank {rank} HANGS: {child.communicate()[0].decode(errors='replace')[-400:]}"
    return None if child.returncode == 0 else f"rank {rank} ended with {child.returncode}: {text[-400:]}"


def in_sessions(sessions):
    """The processes that are alive in sessions."""
    wanted, found = set(sessions), []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                state, _, _, session = file.read().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(session) in wanted and state != "Z":
            found.append(int(name))
    return found


def end_all(children):
    """Ends what is left of processes."""
    for child in children:
        child.kill()
        child.wait()


def end_all_sessions(children):
    """Ends what is left of processes and of those that they have forked."""
    for child in children:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait()
