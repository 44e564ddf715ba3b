#!/usr/bin/env python3
"""The CUDA programs of examples/cuda: tests/gpu/demos.py libnccl.so.2 [--nccl-home DIR] [--cuda-home DIR]

Builds them with nvcc and runs each; all have to print PASS. Those of registration are built where NCCL's
header is given (DIR/include/nccl.h and DIR/lib/libnccl.so.2), run with the library under test, and have to
say that Hawser served them. Prints a line for each; the exit code is 1 if something is wrong. Needs nvcc and
a GPU; says so and ends with 0 otherwise."""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
DEMOS = pathlib.Path(__file__).resolve().parents[2] / "examples" / "cuda"
MEMORY = ["symmetric_mem_demo", "symmetric_mem_p2p_demo"]
REGISTRATION = ["registration_graph", "registration_mem_alloc", "registration_one_buffer"]
LIMIT = 120


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library", type=os.path.abspath)
    parser.add_argument("--nccl-home", type=os.path.abspath)
    parser.add_argument("--cuda-home", type=os.path.abspath)
    options = parser.parse_args()
    nvcc = shutil.which("nvcc")
    cuda = options.cuda_home or (nvcc and str(pathlib.Path(nvcc).resolve().parents[1]))
    if not cuda or subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode != 0:
        print("skipped: needs nvcc and a GPU")
        return 0
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(options.library, os.path.join(folder, "libnccl.so.2"))
        target = "all" if options.nccl_home else "memory"
        words = ["make", "-j4", "-C", str(DEMOS), target, f"CUDA_HOME={cuda}", f"OUT={folder}"]
        words += [f"NCCL_HOME={options.nccl_home}"] if options.nccl_home else []
        built = subprocess.run(words, capture_output=True, text=True)
        if built.returncode != 0:
            print(f"the demos cannot be built: {(built.stdout + built.stderr)[-3000:]}\nFAILED")
            return 1
        runs = [[name] for name in MEMORY] + [["symmetric_mem_p2p_demo", "4"]]
        runs += [[name] for name in REGISTRATION] if options.nccl_home else []
        for words in runs:
            problem = run(words, folder)
            wrong += problem is not None
            print(f"{' '.join(words)}: {problem or 'ok'}", flush=True)
    if not options.nccl_home:
        print("skipped: the demos of registration need NCCL's header (--nccl-home)")
    print("FAILED" if wrong else "all right")
    return int(wrong > 0)


def run(words, folder):
    """What is wrong with a demo; None if nothing is."""
    path = os.pathsep.join([folder, os.environ.get("LD_LIBRARY_PATH", "")])
    environment = {**os.environ, "LD_LIBRARY_PATH": path}
    command = [os.path.join(folder, words[0]), *words[1:]]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired as late:
        return f"HANGS: {(late.stdout or b'')[-3000:]}"
    output = done.stdout + done.stderr
    print(output, end="")
    if done.returncode != 0 or done.stdout.splitlines()[-1:] != ["PASS"]:
        return f"exit code {done.returncode}"
    if words[0] in REGISTRATION and "served by Hawser" not in output:
        return "not served by Hawser"
    return None


if __name__ == "__main__":
    sys.exit(main())
