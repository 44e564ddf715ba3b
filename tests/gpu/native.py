#!/usr/bin/env python3
"""The examples without PyTorch on GPUs: tests/gpu/native.py libnccl.so.2 [--rust FILE] [--hawser FILE]

* c: compiled here, for CUDA, with NCCL's header (--nccl-home DIR, else that of Python's package nvidia-nccl)
* rust: the program of examples/rust, built elsewhere: --rust examples/rust/target/release/all-reduce
* partitioned: the two programs of examples/partitioned for GPUs, one by nvcc and one by PyTorch
* sm_free: `perf overlap` with a small GEMM, by the tool (--hawser)
* plugins: example tuner and profiler, built elsewhere (--tuner FILE, --profiler FILE), in the tool
* msccl, live_rules: the scripts of these folders, by the tool, where there are four GPUs

Ranks share GPUs where there are fewer than four. Prints a line for each; the exit code is 1 if one is wrong,
or none ran. Without a GPU it says so and ends with 0; an example whose file is not given is left out, and
it says so."""

import argparse
import importlib.util
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True

from program import count_gpus

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
LIMIT = 120


class LeftOut(Exception):
    """An example cannot be run here; says why."""


class Wrong(Exception):
    """An example did something else than its README says."""


def main():
    options = arguments()
    gpus = count_gpus()
    if not gpus:
        print("skipped: needs a GPU")
        return 0
    wrong = ran = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in ("libnccl.so", "libnccl.so.2"):
            os.symlink(options.library, os.path.join(folder, name))
        here = Examples(options, gpus, folder)
        for name in (
            "c",
            "rust",
            "partitioned",
            "partitioned_pytorch",
            "sm_free",
            "tuner",
            "profiler",
            "msccl",
            "live_rules",
        ):
            try:
                said = getattr(here, name)()
                ran += 1
                print(f"{name}: ok{said and ', ' + said}", flush=True)
            except LeftOut as reason:
                print(f"{name}: left out: {reason}", flush=True)
            except Wrong as reason:
                wrong += 1
                print(f"{name}: WRONG: {reason}", flush=True)
    print("FAILED" if wrong or not ran else f"all right: {ran} examples")
    return int(wrong > 0 or not ran)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", type=os.path.abspath)
    for name in ("--rust", "--hawser", "--tuner", "--profiler", "--nccl-home", "--cuda-home"):
        parser.add_argument(name, type=os.path.abspath)
    return parser.parse_args()


class Examples:
    """Each method runs one example, and gives a word about it."""

    def __init__(self, options, gpus, folder):
        self.options, self.gpus, self.folder = options, gpus, folder
        path = os.pathsep.join([folder, os.environ.get("LD_LIBRARY_PATH", "")])
        self.environment = {**os.environ, "LD_LIBRARY_PATH": path, "HAWSER_OP_TIMEOUT": "60"}
        if gpus < 4:
            self.environment["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
            # Else streams of ranks that share a GPU share queues, and wait for each other there.
            self.environment["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"

    def c(self):
        cuda, nccl = self.cuda_home(), self.nccl_include()
        program = os.path.join(self.folder, "all_reduce")
        libraries = [f"-L{cuda}/lib64", f"-L{cuda}/lib", "-lcudart", f"-L{self.folder}", "-l:libnccl.so.2"]
        include = [f"-I{cuda}/include", f"-I{nccl}"]
        words = [os.environ.get("CC", "cc"), "-O2", "-Wall", "-Wextra", "-DWITH_CUDA", *include]
        self.run([*words, str(EXAMPLES / "c" / "all_reduce.c"), "-o", program, *libraries, "-ldl"])
        paths = [self.environment["LD_LIBRARY_PATH"], f"{cuda}/lib64", f"{cuda}/lib"]
        text = self.run([program], LD_LIBRARY_PATH=os.pathsep.join(paths))
        first = text.splitlines()[0]
        if not first.startswith("served by Hawser"):
            raise Wrong(text)
        self.four_sums(text)
        return first

    def rust(self):
        text = self.run([self.given("rust")])
        if "libnccl.so has the interface of NCCL 2." not in text:
            raise Wrong(text)
        self.four_sums(text)
        return text.splitlines()[0]

    def partitioned(self):
        cuda, nccl = self.cuda_home(), self.nccl_include()
        program = os.path.join(self.folder, "tensor_parallel")
        words = [f"{cuda}/bin/nvcc", "-std=c++17", "-O2", "-arch=native", f"-I{nccl}"]
        words += [f"-I{ROOT}/core/capi/include", str(EXAMPLES / "partitioned" / "tensor_parallel.cu")]
        self.run([*words, "-o", program, f"-L{self.folder}", "-l:libnccl.so.2"])
        text = self.run([program, "4"])
        if text.splitlines()[-1] != "PASS":
            raise Wrong(text)
        return ""

    def partitioned_pytorch(self):
        if importlib.util.find_spec("torch") is None:
            raise LeftOut("needs PyTorch")
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
        program = str(EXAMPLES / "partitioned" / "tensor_parallel.py")
        text = self.run([*launcher, program], LD_PRELOAD=os.path.join(self.folder, "libnccl.so.2"))
        if text.count("largest difference") != 2 or "WRONG" in text:
            raise Wrong(text)
        return ""

    def sm_free(self):
        tool, processes = self.given("hawser"), str(max(2, min(self.gpus, 8)))
        plot = os.path.join(self.folder, "overlap.svg")
        small = ["-b", "16M", "--gemm", "4096", "--rounds", "1", "--window-ms", "200"]
        words = [tool, "perf", "overlap", "sendrecv,all_gather,all_reduce", "-p", processes, *small]
        text = self.run([*words, "--plot", plot])
        if not os.path.isfile(plot) or "all_gather" not in text:
            raise Wrong(f"no picture, or no figures of all_gather:\n{text}")
        print(text, end="")
        return f"{processes} processes on {self.gpus} GPUs"

    def tuner(self):
        text = self.perf("NCCL_TUNER_PLUGIN", self.given("tuner"), "TUNING")
        if "one_ring: reductions of 2 ranks go by ring" not in text:
            raise Wrong(text)
        return ""

    def profiler(self):
        text = self.perf("NCCL_PROFILER_PLUGIN", self.given("profiler"), "PROFILE")
        for rank in ("rank 0 of 2: AllReduce ", "rank 1 of 2: AllReduce "):
            if rank not in text:
                raise Wrong(f"no line with '{rank}':\n{text}")
        return ""

    def msccl(self):
        text = self.script("msccl/run.sh", self.folder)
        decided = [line for line in text.splitlines() if "decided: line with " in line]
        if len(decided) != 3 or "# Out of bounds values : 0 OK" not in text:
            raise Wrong(text)
        return decided[0].strip()

    def live_rules(self):
        text = self.script("live_rules/run.sh")
        if text.count(", on all ranks") != 2:
            raise Wrong(text)
        return ""

    def script(self, path, *words):
        tool = self.given("hawser")
        if self.gpus < 4:
            raise LeftOut("needs four GPUs, which a thread each drives")
        return self.run([str(EXAMPLES / path), *words], HAWSER=tool)

    def perf(self, variable, plugin, subsystem):
        words = ["perf", "all_reduce", "-p", "2", "-b", "1K", "-e", "64K", "-f", "8"]
        settings = {variable: plugin, "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": subsystem}
        return self.run([self.given("hawser"), *words], **settings)

    def four_sums(self, text):
        if text.count(" has 6, 10, 14, ...") != 4 or text.splitlines()[-1] != "all right":
            raise Wrong(text)

    def given(self, name):
        path = getattr(self.options, name)
        if path is None:
            raise LeftOut(f"no --{name}")
        if not os.path.isfile(path):
            raise Wrong(f"--{name}: there is no file {path}")
        return path

    def cuda_home(self):
        nvcc = shutil.which("nvcc")
        home = self.options.cuda_home or (nvcc and str(pathlib.Path(nvcc).resolve().parents[1]))
        if not home:
            raise LeftOut("no CUDA toolkit: give --cuda-home")
        return home

    def nccl_include(self):
        """The folder of NCCL's header: that of the package nvidia-nccl, if none is given."""
        folders = [self.options.nccl_home] if self.options.nccl_home else []
        package = importlib.util.find_spec("nvidia")
        folders += [f"{path}/nccl" for path in package.submodule_search_locations] if package else []
        for folder in [*folders, "/usr"]:
            if os.path.isfile(os.path.join(folder, "include", "nccl.h")):
                return os.path.join(folder, "include")
        raise LeftOut("no nccl.h: give --nccl-home")

    def run(self, command, **settings):
        """The output of a command; raises `Wrong` where it fails or does not end."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        environment = {**self.environment, **settings}
        try:
            child = subprocess.Popen(command, env=environment, cwd=ROOT, start_new_session=True, **pipes)
        except OSError as error:
            raise Wrong(f"{command[0]}: {error}") from error
        try:
            text = child.communicate(timeout=LIMIT)[0]
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            raise Wrong(f"{' '.join(command)} HANGS: {child.communicate()[0][-3000:]}") from None
        if child.returncode != 0:
            raise Wrong(f"{' '.join(command)}: exit code {child.returncode}: {text[-3000:]}")
        return text


if __name__ == "__main__":
    sys.exit(main())
