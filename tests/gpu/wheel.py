#!/usr/bin/env python3
"""The wheel as a person meets it who has no compiler: tests/gpu/wheel.py hawser-….whl [ranks]

In a new virtual environment, with a PATH that has no compiler: pip installs the wheel, `hawser perf` sums on
four ranks of the host device and checks the results, PyTorch's first example runs on the library by `hawser
run`, and pip takes all of it away again. Prints a line for each with its time; the exit code is 1 if
something is wrong. PyTorch's part needs PyTorch and a GPU, and is left out with a line that says so where one
is missing."""

import os
import pathlib
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples/pytorch/01_basic_all_reduce/main.py"
LIMIT = 300


def main():
    wheel = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        home = pathlib.Path(folder, "venv")
        # PyTorch is that of the Python that runs this.
        venv.create(home, with_pip=True, system_site_packages=True, symlinks=True)
        if sys.prefix != sys.base_prefix:
            # That one is an environment itself, and "system" would be the Python behind it.
            [packages] = home.glob("lib/python3*/site-packages")
            (packages / "outer.pth").write_text(sysconfig.get_path("purelib"))
        job = Job(home)
        before = files(home)
        ok = job.step("pip install", "pip", "install", "--quiet", "--no-index", str(wheel))
        ok = ok and job.step(
            "four ranks summed and checked",
            *words("hawser perf all_reduce -t 4 -b 1K -e 1M -f 32"),
            has="# Out of bounds values : 0 OK",
            device="host",
        )
        ok = ok and pytorch(job, home)
        ok = job.step("pip uninstall", "pip", "uninstall", "--quiet", "--yes", "hawser") and ok
        left = [path for path in files(home) - before if "__pycache__" not in path]
        if left:
            ok = False
            print(f"pip uninstall left {left}")
    print("all right" if ok else "FAILED")
    return int(not ok)


def words(line):
    return line.split()


def files(home):
    """The files of an environment."""
    return {path.relative_to(home).as_posix() for path in home.rglob("*") if not path.is_dir()}


def pytorch(job, home):
    """PyTorch's first example, served by the library of the wheel."""
    count = "import torch; print(torch.cuda.device_count())"
    found = subprocess.run([home / "bin/python", "-c", count], capture_output=True, text=True)
    gpus = int(found.stdout) if found.returncode == 0 else 0
    if not gpus:
        print("PyTorch is left out: needs PyTorch and a GPU")
        return True
    ranks = (sys.argv + [str(max(2, gpus))])[2]
    command = [
        "hawser",
        "run",
        "--verify",
        "--",
        "python",
        str(EXAMPLE),
        "--backend",
        "nccl",
        "--ranks",
        ranks,
    ]
    library = next(home.rglob("libnccl.so.2"))
    return job.step("PyTorch's example", *command, has=f"({library.resolve()})")


class Job:
    """Runs commands of an environment, without the machine's compilers."""

    def __init__(self, home):
        self.env = {
            name: value for name, value in os.environ.items() if not name.startswith(("HAWSER_", "NCCL_"))
        }
        self.env.update(PATH=str(home / "bin"), VIRTUAL_ENV=str(home))

    def step(self, name, *command, has="", device=None):
        """Runs a command and prints how it went; true if it went well and its output has a text."""
        env = {**self.env, **({"HAWSER_DEVICE": device} if device else {})}
        began = time.monotonic()
        program = pathlib.Path(env["PATH"]) / command[0]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        try:
            done = subprocess.run([program, *command[1:]], env=env, timeout=LIMIT, **pipes)
            problem = (
                "" if done.returncode == 0 and has in done.stdout else done.stdout[-3000:] or "no output"
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = str(error)
        print(f"{name}: {problem or 'ok'} ({time.monotonic() - began:.1f} s)", flush=True)
        return not problem


if __name__ == "__main__":
    sys.exit(main())
