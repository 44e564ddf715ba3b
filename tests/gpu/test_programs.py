"""Each program of this folder as a test; what a program checks stands at its top."""

import pathlib

import pytest


@pytest.fixture
def library(pytestconfig):
    return pytestconfig.getoption("library")


@pytest.fixture
def quick(pytestconfig):
    return pytestconfig.getoption("quick")


@pytest.mark.torch
def test_faults(script, library):
    script("faults", library, seconds=240)


@pytest.mark.gpu
def test_deaths(script, library, ranks, quick):
    script("deaths", library, max(ranks, 4), "--kills", 12 if quick else 50, seconds=400 if quick else 1800)


@pytest.mark.gpu
def test_a_rank_leaves_in_peace(script, library, ranks):
    script("deaths", library, max(ranks, 4), "--leave", seconds=400)


@pytest.mark.gpu
def test_elastic(script, library, ranks, quick):
    script("elastic", library, max(ranks, 4), "--kills", 6 if quick else 50, seconds=400 if quick else 1800)


@pytest.mark.gpu
def test_rma(script, library, ranks):
    script("rma", library, max(ranks, 4), seconds=800)


@pytest.mark.gpu
@pytest.mark.torch
def test_urgent(script, library):
    script("urgent", library, "--rounds", 2, seconds=600)


@pytest.mark.gpu
def test_windows(script, library, ranks):
    script("windows", library, max(ranks, 4), seconds=800)


@pytest.mark.gpu
def test_lent(script, library, ranks):
    script("lent", library, max(ranks, 2), seconds=500)


@pytest.mark.gpu
def test_graph_buffers(script, library, ranks):
    script("graph_buffers", library, max(ranks, 2), seconds=400)


@pytest.mark.gpu
@pytest.mark.tool
def test_registered(script, pytestconfig):
    script("registered", pytestconfig.getoption("hawser"), seconds=600)


@pytest.mark.gpu
@pytest.mark.tool
def test_hangs(script, library, pytestconfig):
    script("hangs", library, "--tool", pytestconfig.getoption("hawser"), seconds=600)


@pytest.mark.host
@pytest.mark.tool
@pytest.mark.profiler
def test_copy_events(script, pytestconfig):
    option = pytestconfig.getoption
    script("copy_events", "--hawser", option("hawser"), "--profiler", option("profiler"), seconds=300)


@pytest.mark.torch
def test_oversubscribed(script, library, ranks):
    script("oversubscribed", library, 2 * ranks, seconds=240)


@pytest.mark.host
@pytest.mark.torch
def test_forced(script, library, ranks, quick):
    words = ["--quick"] if quick else []
    script("forced", library, ranks, *words, seconds=600 if quick else 3600)


@pytest.mark.host
@pytest.mark.torch
def test_reproducible(script, library, ranks, quick, pytestconfig):
    short = quick and not pytestconfig.getoption("host")
    words = ["--layouts", "4", "--largest", "4"] if short else []
    script("reproducible", library, ranks, *words, seconds=600 if quick else 1800)


@pytest.mark.host
@pytest.mark.torch
def test_determinism(script, library, ranks, quick, pytestconfig):
    short = quick and not pytestconfig.getoption("host")
    words = ["--repetitions", "8", "--largest", "16"] if short else []
    script("determinism", library, ranks, *words, seconds=600 if quick else 1800)


@pytest.mark.host
@pytest.mark.torch
def test_groups(script, library, ranks, quick):
    words = ["--groups", "15"] if quick else []
    script("groups", library, ranks, *words, seconds=400 if quick else 1800)


@pytest.mark.host
@pytest.mark.torch
@pytest.mark.parametrize(
    "seed, words, env",
    [(801, [], {}), (802, ["--threads"], {}), (803, [], {"NCCL_PASS_SM": "1"})],
    ids=["one-thread", "threads", "sm-free"],
)
def test_soak(script, library, ranks, quick, seed, words, env):
    minutes = 1 if quick else 10
    words = ["--minutes", minutes, "--seed", seed, *words]
    script("soak", library, ranks, *words, seconds=60 * minutes + 240, env=env)


@pytest.mark.host
@pytest.mark.torch
def test_pool(script, library, ranks):
    script("pool", library, ranks, seconds=400)


@pytest.mark.host
@pytest.mark.torch
def test_vector(script, library, ranks):
    script("vector", library, ranks, seconds=300)


@pytest.mark.host
@pytest.mark.torch
def test_partitioned(script, library, ranks):
    script("partitioned", library, ranks, seconds=700)


@pytest.mark.torch
def test_pytorch(script, library, ranks):
    script("pytorch", library, ranks, seconds=720)


@pytest.mark.torch
def test_pytorch_elastic(script, library):
    script("pytorch_elastic", library, 3, seconds=900)


@pytest.mark.gpu
def test_frameworks(script, library):
    script("frameworks", library, 4, seconds=300)


@pytest.mark.torch
@pytest.mark.parametrize("ranks", [2, 4])
def test_examples(script, library, ranks):
    script("examples", library, ranks, seconds=900)


@pytest.mark.gpu
@pytest.mark.tool
def test_native_examples(script, library, pytestconfig):
    option = pytestconfig.getoption
    home = option("nccl") and pathlib.Path(option("nccl")).resolve().parents[1]
    given = {"hawser": option("hawser"), "rust": option("rust_example"), "nccl-home": home}
    words = [word for name, path in given.items() if path for word in (f"--{name}", path)]
    script("native", library, *words, seconds=900)


@pytest.mark.gpu
def test_demos(script, library, pytestconfig):
    nccl = pytestconfig.getoption("nccl")
    home = ["--nccl-home", pathlib.Path(nccl).resolve().parents[1]] if nccl else []
    script("demos", library, *home, seconds=600)


@pytest.mark.torch
def test_ddp_shapes(script, library, ranks):
    script("ddp_shapes", library, max(ranks, 4), seconds=180)


@pytest.mark.gpu
@pytest.mark.torch
def test_dataloader(script, library, ranks):
    script("dataloader", library, max(ranks, 8), seconds=300)


@pytest.mark.host
@pytest.mark.torch
def test_adaptive(script, library, ranks):
    script("adaptive", library, ranks, seconds=300)


@pytest.mark.host
@pytest.mark.torch
@pytest.mark.tool
def test_explain(script, library, quick, pytestconfig):
    points = 180 if quick else 1000
    script("explain", library, "--hawser", pytestconfig.getoption("hawser"), "--points", points, seconds=590)


@pytest.mark.host
@pytest.mark.torch
@pytest.mark.tool
def test_live_rules(script, library, ranks, pytestconfig):
    script("live_rules", library, pytestconfig.getoption("hawser"), ranks, "--switches", "50", seconds=400)


@pytest.mark.gpus(2)
@pytest.mark.torch
@pytest.mark.nccl
def test_tuner(script, ranks, pytestconfig):
    option = pytestconfig.getoption
    script("tuner", option("tuner"), option("nccl"), "--ranks", ranks, seconds=400)
