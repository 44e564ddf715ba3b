#!/usr/bin/env python3
"""The five PyTorch examples on GPUs, with the library in LD_PRELOAD: tests/gpu/examples.py libnccl.so.2
[ranks]

Ranks share GPUs where there are fewer. Each example has to end well, and to say that Hawser served it. Prints
a line for each; the exit code is 1 if something is wrong. Needs PyTorch and a GPU; says so and ends with 0
otherwise."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True

import processes

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples" / "pytorch"
LIMIT = 180
WORDS = {
    "01_basic_all_reduce": [],
    "02_all_operations": [],
    "03_ddp_training": [],
    "04_benchmark": ["--largest", "64M", "--plot", "plot.svg"],
    "05_advanced": [],
}


def main():
    gpus = processes.torch_gpus()
    if not gpus:
        print("skipped: needs PyTorch and a GPU")
        return 0
    library, ranks = os.path.abspath(sys.argv[1]), int((sys.argv + [str(max(2, gpus))])[2])
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, words in WORDS.items():
            began = time.monotonic()
            problem = run(name, [*words, "--ranks", str(ranks), "--library", library], library, folder)
            wrong += problem is not None
            print(f"{name}, {ranks} ranks: {problem or 'ok'} ({time.monotonic() - began:.1f} s)", flush=True)
        if not (pathlib.Path(folder) / "plot.svg").is_file():
            wrong += 1
            print("04_benchmark drew no plot")
    print("FAILED" if wrong else "all right")
    return int(wrong > 0)


def run(name, words, library, folder):
    """What is wrong with an example; None if nothing is."""
    command = [sys.executable, str(EXAMPLES / name / "main.py"), "--backend", "nccl", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    child = subprocess.Popen(command, cwd=folder, start_new_session=True, **pipes)
    try:
        output = child.communicate(timeout=LIMIT)[0]
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        return "HANGS: " + child.communicate()[0][-3000:]
    if child.returncode != 0 or "all right" not in output:
        return f"exit code {child.returncode}: {output[-3000:]}"
    served = [line for line in output.splitlines() if ", served by " in line]
    if len(served) != 1 or "served by Hawser" not in served[0] or os.path.realpath(library) not in served[0]:
        return f"not served by {library}: {served}"
    return None


if __name__ == "__main__":
    sys.exit(main())
