#!/usr/bin/env python3
"""Kernels of users that reach other ranks' memory: tests/gpu/device_api.py libnccl.so.2 [options]

Builds device_api/kernels.cu against each folder of NVIDIA's headers (--include DIR, with nccl.h and
nccl_device.h) and runs it with threads and with processes; with those of 2.30.5 and later
device_api/network.cu too, also with one rank and with processes that count as hosts. Runs nccl-tests that
were built with the device API (--nccl-tests DIR) with -D 1 to 4 and -R 2, as threads, in one thread, and with
--mpi (a build with MPI=1) as processes. Runs programs of NCCL's examples (--example FILE), which have to
print PASSED. What needs multicast has to be refused with a text that says so. All ranks share the GPUs that
there are. Prints a table; the exit code is 1 if something is wrong. Needs a GPU, and nvcc for the first
part."""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True

from processes import has_gpu

SOURCES = pathlib.Path(__file__).resolve().parent / "device_api"
LIMIT = 300
# Program, device implementation, and the words of a refusal; None where it has to run.
IMPLEMENTATIONS = [
    ("all_reduce", 1, None),
    ("all_reduce", 2, None),
    ("all_reduce", 3, r"(?i)multimem"),
    ("all_reduce", 4, r"(?i)multimem"),
    ("alltoall", 1, None),
    ("alltoall", 2, None),
    ("alltoall", 3, None),
    ("alltoall", 4, None),
]


def main():
    options = parsed()
    if not has_gpu():
        print("skipped: needs a GPU")
        return 0
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(options.library, os.path.join(folder, "libnccl.so.2"))
        run = Runner(options, folder)
        for include in options.include:
            rows += own_kernels(run, include, folder)
        for tests in options.nccl_tests:
            ways = [("threads", ["-t", run.ranks, "-g", 1]), ("one thread", ["-t", 1, "-g", run.ranks])]
            for way, words in ways if gpus() >= run.ranks else []:
                rows += nccl_tests(run, tests, way, [], words)
            if gpus() < run.ranks:
                rows.append(("nccl_tests -D -R 2", "threads", f"skipped: its threads need {run.ranks} GPUs"))
        for tests in options.mpi:
            rows += nccl_tests(run, tests, "processes", mpirun(options), ["-t", 1, "-g", 1])
        for example in options.example:
            start = mpirun(options) if options.mpi else []
            rows.append((os.path.basename(example), "example", run([*start, example], r"PASSED")))
    for what, way, problem in rows:
        print(f"{what:44} {way:10} {problem or 'ok'}")
    if not rows:
        print("skipped: neither --include nor --nccl-tests, --mpi or --example")
    wrong = sum(problem is not None and not problem.startswith("skipped") for *_, problem in rows)
    print(f"{wrong} wrong" if wrong else "all right")
    return int(wrong > 0)


def parsed():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", type=os.path.abspath)
    parser.add_argument("--ranks", type=int, default=4)
    for name in ("include", "nccl-tests", "mpi", "example"):
        parser.add_argument(f"--{name}", type=os.path.abspath, action="append", default=[])
    parser.add_argument("--also", type=os.path.abspath, action="append", default=[],
                        help="one more folder of headers, for those that NCCL's need")  # fmt: skip
    parser.add_argument("--verbose", action="store_true", help="print what programs print")
    return parser.parse_args()


class Runner:
    """Runs a program on the library under test."""

    def __init__(self, options, folder):
        self.options, self.ranks = options, options.ranks
        path = os.pathsep.join([folder, os.environ.get("LD_LIBRARY_PATH", "")])
        self.env = {
            **os.environ, "LD_LIBRARY_PATH": path, "LD_PRELOAD": os.path.join(folder, "libnccl.so.2"),
            "NCCL_MULTI_RANK_GPU_ENABLE": "1", "CUDA_MODULE_LOADING": "EAGER", "NCCL_DEBUG": "WARN",
            "NCCL_TESTS_DEVICE": "0",
        }  # fmt: skip
        if gpus() >= self.ranks:
            del self.env["NCCL_TESTS_DEVICE"]

    def __call__(self, words, wanted, refusal=None):
        """What is wrong, or None. A program that has to be refused says why in the words of `refusal`."""
        words = [str(word) for word in words]
        try:
            done = subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=LIMIT)
        except subprocess.TimeoutExpired as late:
            return f"HANGS: {tail((late.stdout or b'').decode(errors='replace'))}"
        output = done.stdout + done.stderr
        if self.options.verbose:
            print(" ".join(words), output, sep="\n", flush=True)
        if refusal is not None:
            is_right = done.returncode > 0 and re.search(refusal, output)
            return None if is_right else f"not refused (exit code {done.returncode}): {tail(output)}"
        if done.returncode != 0:
            return f"exit code {done.returncode}: {tail(output)}"
        return None if re.search(wanted, output) else f"no {wanted!r}: {tail(output)}"


def own_kernels(run, include, folder):
    """Rows of the programs of this project, built against a folder of headers."""
    rows = program(run, include, folder, "kernels", ["threads", "processes"])
    if version(include) >= (2, 30, 5):
        rows += program(run, include, folder, "network", ["alone", "threads", "processes", "hosts"])
    return rows


def program(run, include, folder, source, ways):
    """Rows of one program, run in these ways."""
    name = f"{source}.cu, NCCL {'.'.join(map(str, version(include)))}"
    nvcc = os.environ.get("NVCC") or shutil.which("nvcc")
    if not nvcc:
        return [(name, "build", "skipped: no nvcc (NVCC names one)")]
    binary = os.path.join(folder, source)
    words = [nvcc, "-std=c++17", "-arch=native", "-I", include]
    words += [word for also in run.options.also for word in ("-I", also)]
    words += ["-o", binary, str(SOURCES / f"{source}.cu"), "-Xlinker", run.options.library]
    built = subprocess.run(words, capture_output=True, text=True)
    if built.returncode != 0:
        return [(name, "build", tail(built.stdout + built.stderr))]
    starts = {
        "alone": [1],
        "threads": [run.ranks],
        "processes": [run.ranks, "processes"],
        "hosts": [run.ranks, "hosts"],
    }
    return [(name, way, run([binary, *starts[way]], r"\nPASS")) for way in ways]


def version(include):
    text = pathlib.Path(include, "nccl.h").read_text()
    parts = [re.search(rf"define NCCL_{part}\s+(\d+)", text) for part in ("MAJOR", "MINOR", "PATCH")]
    return tuple(int(part.group(1)) if part else 0 for part in parts)


def nccl_tests(run, folder, way, start, words):
    """Rows of nccl-tests, those of each implementation that a program has."""
    rows = []
    for program, implementation, refusal in IMPLEMENTATIONS:
        binary = os.path.join(folder, f"{program}_perf")
        what = f"{program}_perf -D {implementation} -R 2"
        if not os.path.exists(binary):
            rows.append((what, way, "skipped: not built"))
            continue
        sizes = "-b 8 -e 64M -f 8 -n 5 -w 1 -c 1 -R 2 -D".split()
        command = [*start, binary, *words, *sizes, implementation]
        rows.append((what, way, run(command, r"Out of bounds values : 0 OK", refusal)))
    return rows


def mpirun(options):
    exported = "LD_PRELOAD LD_LIBRARY_PATH NCCL_MULTI_RANK_GPU_ENABLE CUDA_MODULE_LOADING NCCL_DEBUG"
    words = [word for name in [*exported.split(), "NCCL_TESTS_DEVICE"] for word in ("-x", name)]
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", options.ranks, *words]


def gpus():
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


def tail(text):
    return " | ".join(text.strip().splitlines()[-6:])[-600:]


if __name__ == "__main__":
    sys.exit(main())
