#!/usr/bin/env python3
"""Times of the algorithms that rules can order on the host device: bench/ways.py HAWSER --out FILE.json

Runs `hawser perf` with threads of one process (with --hosts processes that count as hosts, over TCP; with
--gpus such hosts with a GPU each, and NCCL_PASS_SM as it is), once for each way (algorithm and channels,
by a rule file) and once as the cost model decides, in many short cycles. Other programs that use the
machine make single cycles long, so the lower quartile of the cycles is kept, and of ways that run the
same the better one. The file is a table that the test `measured` of core/sim reads."""

import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile

sys.dont_write_bytecode = True

import tool

COLLECTIVES = "all_reduce,all_gather,reduce_scatter,alltoall"
WAYS = "pairwise:1 pairwise:2 direct:1 direct:2 all_pairs:1 all_pairs:2 pat:1 ring:1 ring:2 one_shot:1 "
WAYS += "recursive_doubling:1 halving_doubling:1"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("hawser", help="the tool")
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4], help="threads of one process")
    parser.add_argument("--hosts", action="store_true", help="processes that count as hosts instead")
    parser.add_argument("--gpus", action="store_true", help="with --hosts: each has a GPU")
    parser.add_argument("--ways", nargs="*", default=WAYS.split(), help="algorithm:channels")
    parser.add_argument("--collectives", default=COLLECTIVES)
    parser.add_argument("--first", default="1K")
    parser.add_argument("--last", default="4M")
    parser.add_argument("--cycles", type=int, default=14)
    parser.add_argument("--point-ms", type=int, default=3, help="of a size in a cycle")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    found = {}
    for ranks in options.ranks:
        for way in [None, *options.ways]:
            for key, us in measured(options, ranks, way).items():
                found[(ranks, *key)] = min(us, found.get((ranks, *key), us))
    names = ("ranks", "collective", "algorithm", "channels", "bytes")
    rows = [dict(zip(names, key)) | {"us": us} for key, us in sorted(found.items())]
    lines = ",\n".join(json.dumps(row) for row in rows)
    options.out.write_text(f'{{"processors": {os.cpu_count()}, "rows": [\n{lines}\n]}}\n')


def measured(options, ranks, way):
    """By collective, algorithm, channels and bytes: µs, where the way decided (of all if there is none)."""
    words = [options.hawser, "perf", options.collectives, "-c", "0", "-w", "5", "-n", "100"]
    words += ["-p", str(ranks), "--hosts", str(ranks)] if options.hosts else ["-t", str(ranks)]
    words += ["--point-ms", str(options.point_ms), "-N", str(options.cycles), "--skip-in-place", "--explain"]
    words += ["-b", options.first, "-e", options.last, "-f", "4"]
    with tempfile.TemporaryDirectory() as folder:
        rules = None
        if way:
            algorithm, channels = way.split(":")
            rules = pathlib.Path(folder) / "rules.toml"
            rules.write_text(f'[[rule]]\nuse = {{ algorithm = "{algorithm}", channels = {channels} }}\n')
        results = tool.perf(words, rules, "cuda" if options.gpus else "host")
    times = {}
    for row in results:
        ran = row.get("decision")
        if ran and (way is None or ran.get("rule")):
            key = (row["collective"], ran["algorithm"], ran["channels"], row["size"])
            times.setdefault(key, []).append(row["out_of_place"]["time"])
    return {key: round(statistics.quantiles(all_of, n=4)[0], 2) for key, all_of in times.items()}


if __name__ == "__main__":
    main()
