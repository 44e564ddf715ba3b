#!/usr/bin/env python3
"""`hawser explain` says what runs: tests/gpu/explain.py libnccl.so.2 --hawser hawser [--points 1000]

Random calls (any collective, type, root and size, in place, in groups) on communicators of one process, of
several processes and of several hosts (NCCL_HOSTID), whose ranks share the GPUs of this machine, so one is
enough. What a communicator says of each call that ran (hawserLastDecision) is compared with what the tool
says of the same call without running it, and now and then with what it says when it asks the living process.
Needs PyTorch and a GPU, or `--host` with numpy and ml_dtypes; says so and ends with 0 otherwise. The exit
code is 1 if something differs."""

import ctypes
import json
import os
import random
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True

import cases
import layer as layers
import nccl
import program

# A letter for the host of each rank; whether every rank has a process of its own, or every host has one.
LAYOUTS = [
    ("aa", False),
    ("aaa", False),
    ("aaaa", False),
    ("aaaaaaaa", False),
    ("aa", True),
    ("ab", False),
    ("aab", False),
    ("aabb", False),
    ("abc", False),
]
TYPES = ["float", "int8", "bfloat16"]
LARGEST, ASK_EVERY, PATIENCE = 16 << 20, 25, 240


def main():
    options = parse()
    if options.child:
        return child(options, json.loads(options.child))
    os.environ |= {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "32"}
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    bad = done = 0
    each = -(-options.points // len(LAYOUTS))
    part, parts = options.part
    for number, (hosts, apart) in list(enumerate(LAYOUTS))[part - 1 :: parts]:
        begin = time.monotonic()
        found = run(options, hosts, apart, each, 1000 * options.seed + number)
        if "skipped" in found:
            print(f"skipped: {found['skipped']}")
            return 0
        wrong = found["wrong"] + differences(options, hosts, apart, found)
        name = f"{hosts}, {'a process per rank' if apart else 'a process per host'}"
        verdict = f"WRONG {len(wrong)}" if wrong else "ok"
        seconds = time.monotonic() - begin
        print(
            f"{name:30} {verdict}  {len(found['points'])} points, {found['asked']} asked, {seconds:.0f} s",
            flush=True,
        )
        for text in wrong[:10]:
            print("    " + text, flush=True)
        bad, done = bad + len(wrong), done + len(found["points"])
    print(f"{done} points, {bad} differ")
    return 1 if bad or not done else 0


def run(options, hosts, apart, points, seed):
    """What ran: `points` of rank 0, from a process for each host or rank."""
    ranks = list(range(len(hosts)))
    groups = (
        [[rank] for rank in ranks]
        if apart
        else [[r for r in ranks if hosts[r] == h] for h in sorted(set(hosts))]
    )
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for own in groups:
            work = {"hosts": hosts, "own": own, "points": points, "seed": seed, "folder": folder}
            command = [sys.executable, __file__, *sys.argv[1:], "--child", json.dumps(work)]
            host = {"NCCL_HOSTID": hosts[own[0]]} if len(set(hosts)) > 1 else {}
            processes.append(subprocess.Popen(command, env={**os.environ, **host}))
        codes = [process.wait() for process in processes]
        try:
            with open(f"{folder}/points.json") as file:
                found = json.load(file)
        except FileNotFoundError:
            found = {"points": [], "asked": 0, "wrong": ["rank 0 has not ended well"]}
    found["wrong"] += [f"a process ended with {code}" for code in codes if code]
    return found


def child(options, work):
    """The ranks of one process."""
    hosts, own = work["hosts"], work["own"]
    layer, reason = layers.open_layer(len(own), options.host)
    if layer is None:
        return leave(work, {"skipped": reason})
    watchdog = nccl.Watchdog(PATIENCE)
    library = nccl.Library(options.library)
    # GPUs are counted anew on every host.
    places = [hosts[:rank].count(hosts[rank]) for rank in range(len(hosts))]
    world = join(library, layer, work, places)
    streams = {rank: layer.stream(places[rank]) for rank in own}
    draw, points, wrong, asked = random.Random(work["seed"]), [], [], 0
    types = [dtype for dtype in layer.types if dtype.name in TYPES]
    for number in range(work["points"]):
        calls = [random_case(draw, types, len(hosts)) for _ in range(draw.choice([1, 1, 1, 2, 4]))]
        in_place = len(calls) == 1 and draw.random() < 0.3
        watchdog.step(lambda: f"point {number}: {', '.join(map(str, calls))}")
        issue(library, layer, world, streams, places, calls, in_place)
        if own[0] != 0:
            continue
        points.append(point(calls[-1], library.decision(world.handles[0])))
        if number % ASK_EVERY == 0:
            asked += 1
            wrong += living(options, len(hosts), points[-1])
    world.handles = [handle for handle in world.handles if handle]
    world.destroy()
    gpus = getattr(layer, "gpus", 0)
    sm = "" if layer.on_host else "".join(map(str, layer.torch.cuda.get_device_capability()))
    return leave(work, {"points": points, "asked": asked, "wrong": wrong, "gpus": gpus, "sm": sm})


def leave(work, found):
    if work["own"][0] == 0:
        with open(f"{work['folder']}/points.json", "w") as file:
            json.dump(found, file)
    return 0


def join(library, layer, work, places):
    """The ranks of this process in the communicator of all."""
    identity, path, total = nccl.UniqueId(), f"{work['folder']}/id", len(work["hosts"])
    if work["own"][0] == 0:
        library.check(library.lib.ncclGetUniqueId(ctypes.byref(identity)))
        with open(path + ".part", "wb") as file:
            file.write(bytes(identity))
        os.rename(path + ".part", path)
    end = time.monotonic() + PATIENCE
    while not os.path.exists(path) and time.monotonic() < end:
        time.sleep(0.02)
    with open(path, "rb") as file:
        identity = nccl.UniqueId.from_buffer_copy(file.read())
    handles = [nccl.P() if rank in work["own"] else None for rank in range(total)]
    with library.group():
        for rank in work["own"]:
            layer.use(places[rank])
            library.check(library.lib.ncclCommInitRank(ctypes.byref(handles[rank]), total, identity, rank))
    return nccl.Communicator(library, handles, places, "world")


def random_case(draw, types, ranks):
    """A call whose size is as often small as large, and seldom even."""
    collective, dtype = draw.choice(cases.COLLECTIVES), draw.choice(types)
    blocks = 1 if collective in ("all_reduce", "broadcast", "reduce") else ranks
    most = 2 ** draw.uniform(0, (LARGEST // dtype.size // blocks).bit_length() - 1)
    root = draw.randrange(ranks) if collective in cases.ROOTED else 0
    return cases.Case(collective, dtype, "sum", draw.randint(1, int(most)), root, ranks, 0)


def issue(library, layer, world, streams, places, calls, in_place):
    works = []
    for rank, stream in streams.items():
        layer.use(places[rank])
        with layer.on(stream):
            own = [cases.RankWork(layer, case, rank, places[rank], in_place, 0) for case in calls]
        works += [(rank, work) for work in own]
    layer.synchronize()
    with library.group():
        for rank, work in works:
            layer.use(places[rank])
            work.issue(world, layer.handle(streams[rank]))
    layer.synchronize()


def point(case, last):
    return {
        "collective": last.collective.decode(),
        "dtype": case.dtype.name,
        "root": case.root,
        "count": case.count,
        "ran": [
            last.algorithm.decode(),
            last.executor.decode(),
            last.protocol.decode(),
            bool(last.zero_copy),
            last.channels,
            last.bytes,
        ],
    }


def words_of(choice):
    return [choice[name] for name in ("algorithm", "executor", "protocol", "zero_copy", "channels", "bytes")]


def tool(options, *words):
    command = [options.hawser, "explain", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"hawser explain {' '.join(words)}: {done.stderr}")
    return json.loads(done.stdout)


def call_words(ran):
    words = ["--root", str(ran["root"]), "--bytes", str(ran["ran"][-1]), "--datatype", ran["dtype"]]
    return [ran["collective"], *words]


def living(options, ranks, ran):
    """What differs in the answer of this process, whose communicators are asked from outside."""
    told = tool(options, *call_words(ran), "--pid", str(os.getpid()))
    said = [words_of(own["choices"][0]) for own in told if own["ranks"] == ranks]
    return [] if ran["ran"] in said else [f"{ran} ran, the living process says {said}"]


def differences(options, hosts, apart, found):
    """What the tool says otherwise, without asking anybody."""
    machine = ["--per-host", ",".join(str(hosts.count(host)) for host in sorted(set(hosts)))]
    machine += ["--device", f"cuda:{found['sm']}" if found.get("sm") else "host"]
    if found.get("sm"):
        machine += ["--gpus", str(found["gpus"]), "--link", options.link]
        machine += ["--one-process"] if len(set(hosts)) == 1 and not apart else []

    points = found["points"]
    if not points:
        return []
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        for ran in points:
            print(ran["collective"], ran["ran"][-1], ran["dtype"], ran["root"], file=file)
        file.flush()
        explained = tool(options, "--calls", file.name, *machine)
    said = [words_of(call["choices"][0]) for call in explained]
    pairs = zip(points, said, strict=True)
    return [f"{ran['collective']} {ran}: explained {said}" for ran, said in pairs if said != ran["ran"]]


def part_of(text):
    part, parts = map(int, text.split("/"))
    if not 1 <= part <= parts:
        raise ValueError
    return part, parts


def parse():
    made = program.parser(__doc__)
    made.add_argument("--hawser", default="target/release/hawser", help="the built tool")
    made.add_argument("--points", type=int, default=1000)
    made.add_argument("--seed", type=int, default=1)
    made.add_argument(
        "--part", type=part_of, default=(1, 1), help="2/3: the second of three shares of the layouts"
    )
    made.add_argument("--link", default="nvlink", help="what joins the GPUs, as the tool calls it")
    made.add_argument("--child", help="for the program itself")
    return made.parse_args()


if __name__ == "__main__":
    sys.exit(main())
