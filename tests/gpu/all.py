"""All programs of this folder, and nccl-tests, one after the other: tests/gpu/all.py libnccl.so.2 [ranks] --hawser FILE

What to run on a machine that is new to the library. `--quick` takes minutes on 8 GPUs; without it forced.py has every type
with every reduction, soak.py runs for 10 minutes twice, and nccl-tests take every power of two. `--nccl-tests DIR` holds built
nccl-tests (their results checked, every type and reduction: one thread per rank, all ranks in one thread, host memory
between ranks, and with `--mpi` a process per rank, for which they must be built with MPI). `--nccl FILE --tuner FILE` adds
rules in NVIDIA's NCCL. `--only` and `--without` take names of the table. Each part has a time limit and a log in `--out`.
With `--host` the parts that can run on the host device. The exit code is 1 if a part failed.
"""

import argparse
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
NCCL_TESTS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "alltoall", "gather", "scatter", "sendrecv", "hypercube")


def main():
    options = parsed()
    out = pathlib.Path(options.out or tempfile.mkdtemp(prefix="hawser-all-"))
    out.mkdir(parents=True, exist_ok=True)
    print(f"logs in {out}\n{'part':28} {'outcome':10} {'s':>5}  last line", flush=True)
    failed = 0
    for name, seconds, command, env in parts(options):
        if (options.only and name not in options.only) or name in options.without:
            continue
        failed += not run(name, seconds * options.patience, command, env, out)
    print("all parts are right" if not failed else f"{failed} parts FAILED")
    return 1 if failed else 0


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=os.path.abspath)
    parser.add_argument("ranks", type=int, nargs="?", default=0, help="default: one per GPU, two if there is one")
    parser.add_argument("--hawser", type=os.path.abspath, help="the built tool, for rules that change")
    parser.add_argument("--host", action="store_true", help="the host device, numpy")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--nccl-tests", type=os.path.abspath, help="folder of all_reduce_perf and its siblings")
    parser.add_argument("--mpi", action="store_true", help="nccl-tests under mpirun too")
    parser.add_argument("--nccl", type=os.path.abspath, help="NVIDIA's libnccl.so.2, with --tuner")
    parser.add_argument("--tuner", type=os.path.abspath, help="libnccl-tuner-hawser.so")
    parser.add_argument("--only", type=names, default=(), help="names of parts")
    parser.add_argument("--without", type=names, default=(), help="names of parts")
    parser.add_argument("--patience", type=float, default=1, help="factor of the time limits")
    parser.add_argument("--out", help="folder for logs; default: a new one")
    options = parser.parse_args()
    if not options.ranks:
        options.ranks = 4 if options.host else gpus()
    return options


def names(text):
    return tuple(text.split(","))


def gpus():
    listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=60)
    count = listed.stdout.count("GPU ")
    return max(count, 2) if count else sys.exit("nvidia-smi lists no GPU: give the number of ranks, or --host")


def parts(options):
    """(name, seconds, command, environment) of each part."""
    quick, ranks = options.quick, str(options.ranks)
    minutes = "1" if quick else "10"
    soaking = 60 * float(minutes) + 240

    def own(program, *more, ranks=ranks):
        return [sys.executable, str(HERE / f"{program}.py"), options.library, ranks, *more, *(["--host"] if options.host else [])]

    if not options.host:
        yield "faults", 240, [sys.executable, str(HERE / "faults.py"), options.library], {}
        yield "oversubscribed", 240, own("oversubscribed", ranks=str(2 * options.ranks)), {}
    yield "forced", 600 if quick else 3600, own("forced", *(["--quick"] if quick else [])), {}
    yield "determinism", 600 if quick else 1800, own("determinism", *(["--repetitions", "8", "--largest", "16"] if quick and not options.host else [])), {}
    yield "groups", 400 if quick else 1800, own("groups", *(["--groups", "15"] if quick else [])), {}
    yield "soak", soaking, own("soak", "--minutes", minutes, "--seed", "801"), {}
    yield "soak-threads", soaking, own("soak", "--minutes", minutes, "--seed", "802", "--threads"), {}
    yield "soak-sm-free", soaking, own("soak", "--minutes", minutes, "--seed", "803"), {"NCCL_PASS_SM": "1"}
    yield "pool", 400, own("pool"), {}
    yield "vector", 300, own("vector"), {}
    if not options.host:
        yield "pytorch", 720, [sys.executable, str(HERE / "pytorch.py"), options.library, ranks], {}
    yield "adaptive", 300, own("adaptive"), {}
    if options.hawser:
        live = [sys.executable, str(HERE / "live_rules.py"), options.library, options.hawser, ranks, "--switches", "50"]
        yield "live_rules", 400, live + (["--host"] if options.host else []), {}
    if options.nccl and options.tuner and not options.host:
        yield "tuner", 400, [sys.executable, str(HERE / "tuner.py"), options.tuner, options.nccl, "--ranks", ranks], {}
    if options.nccl_tests and not options.host:
        yield from nccl_tests(options)


def nccl_tests(options):
    """Their programs in each way of making ranks."""
    ranks = str(options.ranks)
    seconds = 240 if options.quick else 1800
    ways = [
        ("threads", [], ["-t", ranks, "-g", "1"], {}),
        ("one-thread", [], ["-t", "1", "-g", ranks], {}),
        ("shm", [], ["-t", ranks, "-g", "1"], {"NCCL_P2P_DISABLE": "1"}),
    ]
    if options.mpi:
        launch = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", ranks, "-x", "LD_PRELOAD", "-x", "NCCL_NVLS_ENABLE"]
        ways.append(("mpi", launch, ["-t", "1", "-g", "1"], {}))
    sizes = ["-b", "8", "-e", "256M", "-f", "32" if options.quick else "2", "-n", "1", "-w", "0", "-c", "1", "-d", "all", "-o", "all"]
    for way, launch, made, env in ways:
        for program in NCCL_TESTS:
            binary = os.path.join(options.nccl_tests, f"{program}_perf")
            yield f"{way}:{program}", seconds, [*launch, binary, *sizes, *made], {**env, "LD_PRELOAD": options.library}


def run(name, seconds, command, env, out):
    """Runs a part; false if it failed."""
    began = time.monotonic()
    log = out / f"{name.replace(':', '-')}.log"
    env = {**os.environ, "NCCL_NVLS_ENABLE": "0", "PYTHONUNBUFFERED": "1", **env}
    with open(log, "w") as file:
        try:
            child = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=env, start_new_session=True)
        except OSError as error:
            print(f"{name:28} {'FAILED':10} {0:5}  {error}", flush=True)
            return False
        try:
            code = child.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            code = None
    last = ([line for line in log.read_text(errors="replace").splitlines() if line.strip("# \t")] or [""])[-1].strip()
    skipped = code == 0 and last.startswith("skipped")
    outcome = "skipped" if skipped else {0: "ok", None: "TIMEOUT"}.get(code, "FAILED")
    print(f"{name:28} {outcome:10} {time.monotonic() - began:5.0f}  {last[:120]}", flush=True)
    return code == 0


if __name__ == "__main__":
    sys.exit(main())
