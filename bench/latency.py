#!/usr/bin/env python3
"""Time of small operations between processes that count as hosts, several libraries in turns.

    bench/latency.py --bin nccl-tests/build --side hawser=target/release/libnccl.so.2 \
        --side nccl=.../libnccl.so.2 --hosts 2 4 8 --rounds 5 all_reduce sendrecv alltoall broadcast
    bench/latency.py --bin nccl-tests/build --alone --side ... all_reduce       # one rank

Every rank is a process and a host of its own (NCCL_HOSTID) and shares the GPUs there are, so this is for
latency over sockets on loopback, never for a link's speed. With one GPU start MPS before
(nvidia-cuda-mps-control -d): else the processes' kernels take turns. nccl-tests must be built with MPI. A
side may have settings of its own: --side
plugin=.../libnccl.so.2,NCCL_NET_PLUGIN=/path/libnccl-net-hawser-socket.so. The first side is compared with
the others. Prints us out of place (in place too with --alone): median of the rounds, smallest and largest,
and the ratio. """

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile


def main():
    options = parse()
    results = []
    for hosts in [1] if options.alone else options.hosts:
        for program in options.programs:
            results += compare(options, hosts, program)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"args": sys.argv[1:], "results": results}, file, indent=1)


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", required=True, help="folder of nccl-tests' programs, built with MPI")
    parser.add_argument("--side", action="append", required=True, metavar="NAME=LIB[,VAR=VALUE...]")
    parser.add_argument("--hosts", type=int, nargs="+", default=[2])
    parser.add_argument("--alone", action="store_true", help="one rank, no MPI")
    parser.add_argument("--one-host", action="store_true", help="the processes are ranks of one host")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--first", default="8")
    parser.add_argument("--last", default="32K")
    parser.add_argument("--factor", default="8")
    parser.add_argument("--iters", type=int, default=100)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--args", default="", help="more arguments for the programs")
    parser.add_argument("--interface", default="lo")
    parser.add_argument("--timeout", type=int, default=60)
    parser.add_argument("--json")
    parser.add_argument("programs", nargs="+", help="all_reduce, sendrecv, ...")
    options = parser.parse_args()
    options.sides = [side(text) for text in options.side]
    return options


def side(text):
    """Name, library and settings of a side."""
    name, _, rest = text.partition("=")
    library, *settings = rest.split(",")
    return name, os.path.abspath(library), dict(setting.split("=", 1) for setting in settings)


def compare(options, hosts, program):
    columns = (5, 9) if options.alone else (5,)
    times = {}
    for _ in range(options.rounds):
        for name, library, settings in options.sides:
            for size, values in run(options, library, settings, hosts, program):
                for column in columns:
                    times.setdefault((size, column), {}).setdefault(name, []).append(float(values[column]))
    rows = []
    first = options.sides[0][0]
    for (size, column), by_side in sorted(times.items()):
        place = "in" if column == 9 else "out"
        cells = []
        for name, _, _ in options.sides:
            mine, theirs = by_side.get(first), by_side.get(name)
            if not theirs:
                cells.append(f"{name} failed")
                continue
            middle = statistics.median(theirs)
            ratio = f" x{statistics.median(mine) / middle:.2f}" if name != first and mine else ""
            cells.append(f"{name} {middle:8.1f} ({min(theirs):.1f}-{max(theirs):.1f}){ratio}")
        print(f"{program:14} {hosts} hosts {size:>9} {place:3}  " + "   ".join(cells), flush=True)
        rows.append({"program": program, "hosts": hosts, "bytes": size, "place": place, **by_side})
    return rows


def run(options, library, settings, hosts, program):
    """Size and fields of each row of one run; none if it failed, which is said."""
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(library, os.path.join(folder, "libnccl.so.2"))
        common = {"LD_LIBRARY_PATH": folder, "NCCL_SOCKET_IFNAME": options.interface}
        common |= {"NCCL_NVLS_ENABLE": "0", "NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_TESTS_DEVICE": "0"}
        environment = {**os.environ, **common, **settings}
        what = f"{program} on {hosts} hosts with {library}"
        try:
            done = subprocess.run(
                command(options, hosts, program),
                env=environment,
                capture_output=True,
                text=True,
                timeout=options.timeout,
            )
        except subprocess.TimeoutExpired:
            print(f"{what}: no end within {options.timeout} s", flush=True)
            return []
    lines = (line.split() for line in done.stdout.splitlines() if line[:1] == " ")
    rows = [fields for fields in lines if fields and fields[0].isdigit()]
    if done.returncode != 0 or any(row[8] != "0" for row in rows):
        print(f"{what} failed ({done.returncode}):\n{(done.stdout + done.stderr)[-400:]}", flush=True)
        return []
    return [(int(row[0]), row) for row in rows]


def command(options, hosts, program):
    """The words of a run: one process, or one per host under mpirun."""
    words = [os.path.join(options.bin, f"{program}_perf")]
    words += f"-b {options.first} -e {options.last} -f {options.factor} -g 1 -c 1".split()
    words += f"-w {options.warmup} -n {options.iters} {options.args}".split()
    if options.alone:
        return words
    host = "one" if options.one_host else "$OMPI_COMM_WORLD_RANK"
    place = f'export NCCL_HOSTID=host{host}; exec "$@"'
    launcher = f"mpirun --allow-run-as-root --oversubscribe --bind-to none -np {hosts}".split()
    return [*launcher, "bash", "-c", place, "-", *words]


main()
