#!/usr/bin/env python3
"""Ranks of one machine as several hosts over TCP: two libraries, or one with and without a net plugin, in
turns.

    bench/hosts.py --bin nccl-tests/build --ours target/release/libnccl.so.2 --nccl .../libnccl.so.2 \
        --ranks 8 --hosts 2 4 --rounds 3 --sizes 16M 256M all_reduce all_gather
    bench/hosts.py --bin ... --nccl .../libnccl.so.2 --plugin libnccl-net-hawser-socket.so --ranks 8 all_reduce

nccl-tests must be built with MPI. With --plugin, NVIDIA's library runs with peer-to-peer and shared memory
off, once with its own sockets and once with the plugin. Prints busbw in GB/s: median, smallest and largest of
the rounds, and the ratio.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def main():
    options = parse()
    sides = variants(options)
    layouts = [1] if options.plugin else options.hosts
    results = []
    print(
        f"{'program':15} {'hosts':>5} {'bytes':>11}  "
        + "  ".join(f"{name:>22}" for name, _, _ in sides)
        + "   ratio"
    )
    for hosts in layouts:
        for program in options.programs:
            results += compare(options, sides, hosts, program)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"args": sys.argv[1:], "results": results}, file, indent=1)


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", required=True, help="folder of nccl-tests' programs, built with MPI")
    parser.add_argument("--ours", help="Hawser's libnccl.so.2")
    parser.add_argument("--nccl", required=True, help="NVIDIA's libnccl.so.2")
    parser.add_argument("--plugin", help="net plugin to compare with NVIDIA's own sockets")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", nargs="+", default=["16M", "256M"])
    parser.add_argument("--iters", type=int, default=4)
    parser.add_argument("--interface", default="lo")
    parser.add_argument("--json")
    parser.add_argument("programs", nargs="+", help="all_reduce, all_gather, ...")
    options = parser.parse_args()
    if not options.plugin and not options.ours:
        parser.error("give --ours or --plugin")
    return options


def variants(options):
    """Name, library and environment of the two sides."""
    if options.plugin:
        off = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
        with_plugin = {**off, "NCCL_NET_PLUGIN": os.path.abspath(options.plugin)}
        return [("plugin", options.nccl, with_plugin), ("built in", options.nccl, off)]
    return [("hawser", options.ours, {}), ("nccl", options.nccl, {})]


def compare(options, sides, hosts, program):
    busbw = {(name, size): [] for name, _, _ in sides for size in options.sizes}
    for _ in range(options.rounds):
        for name, library, env in sides:
            for size in options.sizes:
                busbw[name, size].append(run(options, library, env, hosts, program, size))
    rows = []
    for size in options.sizes:
        medians = [statistics.median(busbw[name, size]) for name, _, _ in sides]
        cells = [
            f"{m:8.2f} {min(busbw[n, size]):6.2f}-{max(busbw[n, size]):6.2f}"
            for m, (n, _, _) in zip(medians, sides)
        ]
        print(
            f"{program:15} {hosts:5} {number(size):11}  "
            + "  ".join(f"{c:>22}" for c in cells)
            + f"  {medians[0] / medians[1]:6.2f}",
            flush=True,
        )
        rows.append(
            {
                "program": program,
                "hosts": hosts,
                "bytes": number(size),
                **{n: busbw[n, size] for n, _, _ in sides},
            }
        )
    return rows


def run(options, library, env, hosts, program, size):
    """Bus bandwidth out of place of one run, in GB/s."""
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(os.path.abspath(library), os.path.join(folder, "libnccl.so.2"))
        place = (
            f'export NCCL_HOSTID=host$((OMPI_COMM_WORLD_RANK * {hosts} / OMPI_COMM_WORLD_SIZE)); exec "$@"'
        )
        command = [
            "mpirun",
            "--allow-run-as-root",
            "--bind-to",
            "none",
            "-np",
            str(options.ranks),
            "bash",
            "-c",
            place,
            "-",
        ]
        command += [
            os.path.join(options.bin, f"{program}_perf"),
            "-b",
            size,
            "-e",
            size,
            "-c",
            "1",
            "-w",
            "2",
            "-n",
            str(options.iters),
        ]
        settings = {
            "LD_LIBRARY_PATH": folder,
            "NCCL_SOCKET_IFNAME": options.interface,
            "NCCL_NVLS_ENABLE": "0",
            **env,
        }
        done = subprocess.run(
            command, env={**os.environ, **settings}, capture_output=True, text=True, timeout=300
        )
    rows = [
        line.split() for line in done.stdout.splitlines() if line[:1] == " " and line.split()[0].isdigit()
    ]
    if done.returncode != 0 or not rows or rows[0][8] != "0":
        sys.exit(
            f"{program} with {library} failed ({done.returncode}):\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        )
    return float(rows[0][7])


def number(size):
    return int(size[:-1]) * UNITS[size[-1]] if size[-1] in UNITS else int(size)


main()
