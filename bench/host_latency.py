#!/usr/bin/env python3
"""Small all-reduces of processes on the host device beside Open MPI's: TCP on loopback, shared memory.

    mpicc -O2 bench/mpi_allreduce.c -o mpi_allreduce
    bench/host_latency.py --hawser target/release/hawser --mpi ./mpi_allreduce --ranks 2 4 8 --rounds 5

Takes both in turns and prints us: median of the rounds, smallest and largest, and the ratio. --before FILE
adds an older build of the tool. Without --mpi only Hawser is measured."""

import argparse
import json
import os
import statistics
import subprocess
import sys

FIRST, LAST, FACTOR = 8, 32768, 16


def main():
    options = parse()
    results = []
    for way in ("tcp", "shm"):
        for ranks in options.ranks:
            results += compare(options, way, ranks)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(
                {"args": sys.argv[1:], "processors": os.cpu_count(), "results": results}, file, indent=1
            )


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hawser", required=True, help="the built tool")
    parser.add_argument("--before", help="an older build of it")
    parser.add_argument("--mpi", help="bench/mpi_allreduce.c, built")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=2000)
    parser.add_argument("--before-iterations", type=int, default=100)
    parser.add_argument("--json")
    return parser.parse_args()


def compare(options, way, ranks):
    sides = {"hawser": lambda: perf(options.hawser, options, way, ranks)}
    if options.mpi:
        sides["open mpi"] = lambda: mpi(options, way, ranks)
    if options.before:
        sides["before"] = lambda: perf(options.before, options, way, ranks)
    times = {}
    for _ in range(options.rounds):
        for name, side in sides.items():
            for size, us in side():
                times.setdefault(size, {}).setdefault(name, []).append(us)
    rows = []
    for size, by_side in times.items():
        mine = statistics.median(by_side["hawser"])
        cells = []
        for name, all_us in by_side.items():
            middle = statistics.median(all_us)
            ratio = "" if name == "hawser" else f" x{mine / middle:.2f}"
            cells.append(f"{name} {middle:9.2f} ({min(all_us):.2f}-{max(all_us):.2f}){ratio}")
        print(f"{way} {ranks} ranks {size:6}  " + "   ".join(cells), flush=True)
        rows.append({"way": way, "ranks": ranks, "bytes": size, **by_side})
    return rows


def perf(tool, options, way, ranks):
    iterations = str(
        options.iterations if tool == options.hawser or way == "shm" else options.before_iterations
    )
    command = [
        tool,
        "perf",
        "all_reduce",
        "-p",
        str(ranks),
        "-b",
        str(FIRST),
        "-e",
        str(LAST),
        "-f",
        str(FACTOR),
    ]
    command += ["-n", iterations, "-w", "20", "-c", "0", "--skip-in-place"]
    if way == "tcp":
        command += ["--hosts", str(ranks)]
    environment = {**os.environ, "HAWSER_DEVICE": "host", "NCCL_SOCKET_IFNAME": "lo"}
    rows = [
        line.split() for line in lines(command, environment) if line[:1] == " " and line.split()[0].isdigit()
    ]
    return [(int(row[0]), float(row[5])) for row in rows]


def mpi(options, way, ranks):
    command = [
        "mpirun",
        "--allow-run-as-root",
        "--oversubscribe",
        "--bind-to",
        "none",
        "-np",
        str(ranks),
        "--mca",
        "pml",
        "ob1",
    ]
    command += [
        "--mca",
        "btl",
        "tcp,self" if way == "tcp" else "vader,self",
        "--mca",
        "btl_tcp_if_include",
        "lo",
    ]
    command += [options.mpi, str(FIRST), str(LAST), str(FACTOR), str(options.iterations)]
    return [
        (int(size), float(us)) for size, us in (line.split() for line in lines(command, dict(os.environ)))
    ]


def lines(command, environment):
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        sys.exit(
            f"{' '.join(command)} failed ({done.returncode}):\n{done.stdout[-1000:]}{done.stderr[-1000:]}"
        )
    return done.stdout.splitlines()


main()
