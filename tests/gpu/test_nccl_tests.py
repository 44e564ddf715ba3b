"""NVIDIA's nccl-tests with their own check of results: every type and reduction, in each way of making
ranks."""

import os

import pytest

PROGRAMS = """
all_reduce all_gather reduce_scatter broadcast reduce alltoall gather scatter sendrecv hypercube
""".split()
ENDLESS = 240, 1800


@pytest.fixture
def perf(run, pytestconfig):
    """`perf(program, words, launcher, env)` runs one of their programs on the library under test."""
    option = pytestconfig.getoption
    quick = option("quick")
    sizes = f"-b 8 -e {'8M' if quick else '256M'} -f {32 if quick else 2}".split()
    sizes += "-n 1 -w 0 -c 1 -d all -o all".split()

    def call(program, words, launcher=(), env=None):
        binary = os.path.join(option("nccl_tests"), f"{program}_perf")
        env = {"LD_PRELOAD": option("library"), **(env or {})}
        run(*launcher, binary, *sizes, *words, seconds=ENDLESS[0] if quick else ENDLESS[1], env=env)

    return call


def mpirun(processes, *variables):
    exported = [word for name in ("LD_PRELOAD", "NCCL_NVLS_ENABLE", *variables) for word in ("-x", name)]
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", processes, *exported]


pytestmark = [pytest.mark.gpu, pytest.mark.nccl_tests]


@pytest.mark.gpus(2)
@pytest.mark.parametrize("program", PROGRAMS)
def test_threads(perf, ranks, program):
    perf(program, ["-t", ranks, "-g", 1])


@pytest.mark.gpus(2)
@pytest.mark.parametrize("program", PROGRAMS)
def test_one_thread(perf, ranks, program):
    perf(program, ["-t", 1, "-g", ranks])


@pytest.mark.gpus(2)
@pytest.mark.parametrize("program", PROGRAMS)
def test_host_memory(perf, ranks, program):
    perf(program, ["-t", ranks, "-g", 1], env={"NCCL_P2P_DISABLE": "1"})


@pytest.mark.gpus(2)
@pytest.mark.mpi
@pytest.mark.parametrize("program", PROGRAMS)
def test_processes(perf, ranks, program):
    perf(program, ["-t", 1, "-g", 1], mpirun(ranks))


@pytest.mark.mpi
@pytest.mark.parametrize("program", PROGRAMS)
def test_eight_processes_share_a_gpu(perf, program):
    """Best with MPS running (nvidia-cuda-mps-control -d): else the processes' kernels take turns."""
    env = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_TESTS_DEVICE": "0"}
    perf(program, ["-t", 1, "-g", 1], mpirun(8, *env), env)
