"""The programs of this folder, and nccl-tests, as tests: pytest tests/gpu --library FILE --hawser FILE

What to run on a machine that is new to the library. `--quick` takes minutes; without it forced.py has every
type with every reduction, soak.py runs for 10 minutes three times, and nccl-tests take every power of two.
`--host` takes the host device (numpy and ml_dtypes) for what can run there. Each test is a process of its
own with a time limit and a log in `--logs`; markers say what it needs, and one that cannot run here is
skipped with the reason. The last table has a line for each test. `-m` and `-k` choose tests as usual.
"""

import importlib.util
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import pytest

from program import count_gpus

HERE = pathlib.Path(__file__).resolve().parent
ROWS = pytest.StashKey()


def pytest_addoption(parser):
    group = parser.getgroup("hawser")
    group.addoption("--library", type=os.path.abspath, help="the libnccl.so.2 under test")
    group.addoption("--hawser", type=os.path.abspath, help="the built tool, for rules that change")
    group.addoption(
        "--ranks", type=int, default=0, help="default: one per GPU, at least two; four on the host"
    )
    group.addoption("--host", action="store_true", help="the host device")
    group.addoption("--quick", action="store_true", help="fewer sizes, types and minutes")
    group.addoption("--nccl-tests", type=os.path.abspath, help="folder of all_reduce_perf and its siblings")
    group.addoption("--nccl", type=os.path.abspath, help="NVIDIA's libnccl.so.2")
    group.addoption("--rust-example", type=os.path.abspath, help="the built program of examples/rust")
    group.addoption("--tuner", type=os.path.abspath, help="libnccl-tuner-hawser.so")
    group.addoption("--profiler", type=os.path.abspath, help="libnccl-profiler-hawser.so")
    group.addoption("--patience", type=float, default=1, help="factor of the time limits")
    group.addoption("--logs", help="folder for logs; default: a new one")


def pytest_configure(config):
    config.stash[ROWS] = []
    config.logs = pathlib.Path(config.getoption("logs") or tempfile.mkdtemp(prefix="hawser-gpu-"))
    config.logs.mkdir(parents=True, exist_ok=True)


def pytest_report_header(config):
    return f"library {config.getoption('library')}, GPUs {count_gpus()}, logs in {config.logs}"


def pytest_runtest_setup(item):
    reason = missing(item)
    if reason:
        pytest.skip(reason)


def missing(item):
    """Why a test cannot run here; None if it can."""
    option = item.config.getoption
    marked = item.get_closest_marker
    if not option("library"):
        return "no --library"
    if option("host") and not marked("host"):
        return "does not run on the host device"
    if not option("host") and (marked("gpu") or marked("gpus") or marked("torch") or marked("host")):
        least = marked("gpus").args[0] if marked("gpus") else 1
        if count_gpus() < least:
            return f"needs {least} GPUs, there are {count_gpus()}"
        if marked("torch") and importlib.util.find_spec("torch") is None:
            return "needs PyTorch"
    if marked("tool") and not option("hawser"):
        return "no --hawser"
    if marked("profiler") and not option("profiler"):
        return "no --profiler"
    if marked("nccl") and not (option("nccl") and option("tuner")):
        return "no --nccl and --tuner"
    if marked("nccl_tests") and not option("nccl_tests"):
        return "no --nccl-tests"
    if marked("mpi") and shutil.which("mpirun") is None:
        return "no mpirun"
    return None


@pytest.fixture
def ranks(request):
    given = request.config.getoption("ranks")
    return given or (4 if request.config.getoption("host") else max(count_gpus(), 2))


@pytest.fixture
def run(request):
    """`run(command…, seconds=…)` runs a process; its failure, or no end in time, fails the test."""
    return lambda *command, seconds, env=None: Run(request).run(list(map(str, command)), seconds, env or {})


@pytest.fixture
def script(request, run):
    """`script(name, words…, seconds=…)` runs a program of this folder, on the device under test."""
    host = ["--host"] if request.config.getoption("host") else []

    def call(name, *words, seconds, env=None):
        run(sys.executable, HERE / f"{name}.py", *words, *host, seconds=seconds, env=env)

    return call


class Run:
    """One process of a test."""

    def __init__(self, request):
        self.config, self.name = request.config, request.node.name

    def run(self, command, seconds, env):
        log = self.config.logs / f"{self.name.replace('/', '-')}.log"
        began = time.monotonic()
        code = self.wait(command, seconds * self.config.getoption("patience"), env, log)
        text = log.read_text(errors="replace")
        last = ([line for line in text.splitlines() if line.strip("# \t")] or ["(no output)"])[-1].strip()
        self.config.stash[ROWS].append((self.name, time.monotonic() - began, last))
        if code == 0 and last.startswith("skipped"):
            pytest.skip(last)
        if code is None:
            pytest.fail(f"no end in time; {log} ends with:\n{text[-2000:]}", pytrace=False)
        if code != 0:
            pytest.fail(f"exit code {code}; {log} ends with:\n{text[-2000:]}", pytrace=False)

    def wait(self, command, seconds, env, log):
        """The exit code; None if the process had to be killed."""
        env = {**os.environ, "NCCL_NVLS_ENABLE": "0", "PYTHONUNBUFFERED": "1", **env}
        with open(log, "w") as file:
            output = {"stdout": file, "stderr": subprocess.STDOUT}
            child = subprocess.Popen(command, env=env, start_new_session=True, **output)
            try:
                return child.wait(seconds)
            except subprocess.TimeoutExpired:
                return None
            finally:
                if child.poll() is None:
                    os.killpg(child.pid, signal.SIGKILL)
                    child.wait()


def pytest_terminal_summary(terminalreporter):
    rows = terminalreporter.config.stash[ROWS]
    if not rows:
        return
    outcomes = {}
    for outcome in ("passed", "failed", "skipped", "error"):
        for report in terminalreporter.getreports(outcome):
            outcomes[report.nodeid.rsplit("::", 1)[-1]] = outcome
    terminalreporter.section("what ran")
    width = max(len(name) for name, _, _ in rows)
    for name, seconds, last in rows:
        terminalreporter.line(f"{name:{width}} {outcomes.get(name, '?'):8} {seconds:5.0f} s  {last[:100]}")
