#!/usr/bin/env python3
"""What a simulation costs by the number of ranks: bench/growth.py HAWSER [--before HAWSER] --out NAME

Runs `hawser perf COLLECTIVE -b 1M -e 1M --explain --simulate CLUSTER`, a cluster of N/8 hosts of hgx-h200,
rail-optimised, 2:1, for N = 64 to 16,384 ranks, in rounds in which everything has one turn. Kept is the round
with the least seconds of processor, with its wall clock and the most memory it had. With --before another
build takes turns, and its predictions have to be equal. Writes NAME.json and the table of the same name,
NAME.txt; with --picture also the curves, as SVG. With --draw figures are those of NAME.json, and nothing is
run."""

import argparse
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import time

sys.dont_write_bytecode = True

import plot

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall")
COLOURS = dict(zip(COLLECTIVES, ("#0072b2", "#d55e00", "#009e73", "#7a5195")))
RANKS = [64 << power for power in range(9)]
CLUSTER = "{} hosts of hgx-h200, rail-optimised, 2:1"
FOUND = re.compile(r"simulated: ([\d.]+) µs in (\d+) events(; a part of the call was run)?")
MARK = {"cpu_s": 60.0, "mib": 4096.0}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("hawser", help="the tool")
    parser.add_argument("--before", help="another build of it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--most", type=int, default=RANKS[-1], help="ranks at most")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--picture", type=pathlib.Path)
    parser.add_argument("--draw", action="store_true")
    options = parser.parse_args()
    if options.draw:
        data = json.loads(options.out.with_suffix(".json").read_text())
    else:
        data = measured(options)
        options.out.with_suffix(".json").write_text(json.dumps(data, indent=1) + "\n")
        options.out.with_suffix(".txt").write_text(table(data))
    if options.picture:
        options.picture.write_text(picture(data))


def measured(options):
    tools = {"now": options.hawser} | ({"before": options.before} if options.before else {})
    found, loads = {}, []
    for _ in range(options.rounds):
        for ranks in (ranks for ranks in RANKS if ranks <= options.most):
            for collective in COLLECTIVES:
                for side, tool in tools.items():
                    loads.append(os.getloadavg()[0])
                    row = run(tool, collective, ranks)
                    known = found.setdefault((ranks, collective), {}).setdefault(side, row)
                    if row["us"] != known["us"]:
                        sys.exit(f"{collective} of {ranks} ranks: {known['us']} µs, then {row['us']}")
                    found[ranks, collective][side] = min(known, row, key=lambda row: row["cpu_s"])
    curves = []
    for (ranks, collective), sides in found.items():
        us = {row["us"] for row in sides.values()}
        if len(us) > 1:
            sys.exit(f"{collective} of {ranks} ranks: the builds predict {us} µs")
        curves.append({"ranks": ranks, "collective": collective} | sides)
    machine = f"{os.cpu_count()} processors ({platform.machine()}), load {min(loads):.0f} to {max(loads):.0f}"
    return {"cluster": CLUSTER, "machine": machine, "rounds": options.rounds, "curves": curves}


def run(tool, collective, ranks):
    """One simulation: what it predicts, and what it takes."""
    words = ["perf", collective, "-b", "1M", "-e", "1M", "--explain"]
    words += ["--simulate", CLUSTER.format(ranks // 8)]
    begun = time.monotonic()
    with subprocess.Popen([tool, *words], stdout=subprocess.PIPE, text=True) as process:
        text = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.monotonic() - begun
    match = FOUND.search(text)
    if process.returncode or not match:
        sys.exit(f"{' '.join(words)} failed:\n{text}")
    return {
        "us": float(match[1]),
        "events": int(match[2]),
        "is_carried_on": bool(match[3]),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 3),
        "wall_s": round(wall, 3),
        "mib": round(usage.ru_maxrss / 1024, 1),
    }


def table(data):
    out = (
        "The twin by the number of ranks: bench/growth.py (hawser perf COLLECTIVE -b 1M -e 1M --explain "
        "--simulate\n"
        f"'{data['cluster'].format('N/8')}'), the least of {data['rounds']} rounds by seconds of processor;\n"
        f"{data['machine']}, which others used as well; one thread. The mark at 16,384 ranks: 60 s on two\n"
        "processors, 4 GB. Columns: what the tool takes, then what it predicts and by how many events.\n\n"
    )
    has_before = any("before" in row for row in data["curves"])
    before = "before: processor s  wall s     MiB  " if has_before else ""
    out += f"{'ranks':>6}  {'collective':14}  {before}processor s  wall s     MiB  predicted µs      events\n"
    for row in sorted(data["curves"], key=lambda row: (COLLECTIVES.index(row["collective"]), row["ranks"])):
        cost = lambda row, width: f"{row['cpu_s']:{width}.2f}  {row['wall_s']:6.2f}  {row['mib']:6.0f}"
        old = f"{cost(row['before'], 19)}  " if has_before else ""
        now = row["now"]
        part = "  a part, carried on" if now["is_carried_on"] else ""
        out += f"{row['ranks']:>6}  {row['collective']:14}  {old}{cost(now, 11)}"
        out += f"  {now['us']:12.1f}  {now['events']:10,}{part}\n"
    return out


def picture(data):
    panels = (("cpu_s", "seconds of processor", 0.01), ("mib", "MiB of memory", 10.0))
    across, height = 440, 260
    width, title = plot.LEFT + across * len(panels), "What a simulation of 1 MiB costs by the number of ranks"
    worst = max((row for row in data["curves"]), key=lambda row: row["now"]["cpu_s"])
    text = (
        f"Seconds of processor and memory of hawser perf --simulate against ranks, four collectives; at most "
        f"{worst['now']['cpu_s']:.1f} s, {worst['collective']} of {worst['ranks']} ranks."
    )
    out = plot.begin(width, 380, title, text) + plot.label(plot.LEFT, 26, title, "start", size=16)
    for index, (key, name, low) in enumerate(panels):
        out += f'<g transform="translate({plot.LEFT + across * index},66)">\n'
        out += panel(data, (key, name, low), (across - 80, height)) + "</g>\n"
    return out + "</svg>\n"


def panel(data, what, size):
    """One panel: both axes are logarithmic."""
    (key, name, low), (width, height) = what, size
    ranks = sorted({row["ranks"] for row in data["curves"]})
    high = MARK[key] * 1.6
    x, y = plot.scale(ranks[0], ranks[-1], 0, width), plot.scale(low, high, height, 0)
    out = plot.label(width, -8, name, "end", "#555")
    at = low
    while at <= high:
        out += plot.line(0, y(at), width, y(at)) + plot.label(-6, y(at) + 4, f"{at:g}", "end")
        at *= 10
    for rank in ranks[::2]:
        out += plot.line(x(rank), 0, x(rank), height)
        out += plot.label(x(rank), height + 16, f"{rank:,}", "middle")
    out += plot.label(width / 2, height + 34, "ranks", "middle", "#555")
    out += f'<rect width="{width}" height="{height}" fill="none" stroke="#999"/>\n'
    dashes = ' stroke-dasharray="5 4"'
    out += plot.curve([(0, y(MARK[key])), (width, y(MARK[key]))], "#555", dashes)
    out += plot.label(width - 6, y(MARK[key]) + 14, "mark", "end", "#555")
    for index, collective in enumerate(COLLECTIVES):
        rows = sorted(
            (row for row in data["curves"] if row["collective"] == collective), key=lambda row: row["ranks"]
        )
        for side, style in (("before", dashes), ("now", "")):
            points = [(x(row["ranks"]), y(max(row[side][key], low))) for row in rows if side in row]
            out += plot.curve(points, COLOURS[collective], style) if points else ""
        out += plot.label(10, 34 + 16 * index, collective, "start", COLOURS[collective])
    if any("before" in row for row in data["curves"]):
        out += plot.label(10, 34 + 16 * len(COLLECTIVES), "dashed: before", "start", "#555")
    return out


if __name__ == "__main__":
    main()
