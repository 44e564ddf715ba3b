#!/usr/bin/env python3
"""The five PyTorch examples on Gloo: tests/examples/gloo.py FOLDER [ranks]

Imports PyTorch once and forks the ranks of each example, which is quicker than torchrun. Prints what the
examples print; `skipped: …` and exit code 0 without PyTorch. Exit code 1 if a rank of any example fails."""

import os
import pathlib
import runpy
import signal
import socket
import sys
import time

sys.dont_write_bytecode = True
LIMIT = 120
WORDS = {
    "01_basic_all_reduce": [],
    "02_all_operations": [],
    "03_ddp_training": ["--epochs", "3"],
    "04_benchmark": ["--largest", "64K", "--iterations", "5", "--plot", "plot.svg"],
    "05_advanced": [],
}


def main():
    try:
        import torch.distributed
    except ImportError as error:
        print(f"skipped: PyTorch cannot be imported: {error}")
        return 0
    torch.set_num_threads(1)  # else forked children wait for threads that they do not have
    folder, ranks = pathlib.Path(sys.argv[1]).resolve(), int((sys.argv + ["2"])[2])
    wrong = 0
    for name, words in WORDS.items():
        print(f"== {name}", flush=True)
        began = time.monotonic()
        wrong += run(folder / name / "main.py", ranks, words)
        print(f"== {name}: {time.monotonic() - began:.1f} s", flush=True)
    return int(wrong > 0)


def run(program, ranks, words):
    """How many ranks failed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = [fork(program, ranks, rank, port, words) for rank in range(ranks)]
    end, failed = time.monotonic() + LIMIT, 0
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            children.remove(pid)
            failed += status != 0
        elif time.monotonic() > end or failed:
            for child in children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            return failed + len(children)
        else:
            time.sleep(0.01)
    return failed


def fork(program, ranks, rank, port, words):
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in place.items()}, MASTER_ADDR="127.0.0.1")
        sys.path.insert(0, str(program.parent))
        sys.argv = [str(program), "--backend", "gloo", *words]
        runpy.run_path(str(program), run_name="__main__")
        code = 0
    except BaseException as error:
        print(f"rank {rank}: {type(error).__name__}: {error}", flush=True)
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
