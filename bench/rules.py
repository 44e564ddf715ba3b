#!/usr/bin/env python3
"""A rule file beside the cost model on this machine: bench/rules.py HAWSER RULES --out NAME

Runs `hawser perf` with the rules and without, in turns, in rounds that begin with either; each run has
processes and communicators of its own. Prints, for every collective and size, the median of the rounds of
both sides, and the median, least and greatest of the ratios of the rounds (the rules' time divided by the
cost model's). Where no rule decides, both sides run the same: what these ratios show is noise. With --cluster
the prediction of the same ratio stands beside it. Writes NAME.json and NAME.txt."""

import argparse
import json
import os
import pathlib
import statistics
import sys

sys.dont_write_bytecode = True

import tool

SIDES = ("cost model", "rules")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("hawser", help="the tool")
    parser.add_argument("rules", help="the rule file")
    parser.add_argument("--ranks", type=int, default=4, help="threads of one process")
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", default="1K:4M:4", help="first, last and factor")
    parser.add_argument("--cluster", help="the description of this machine that the rules are for")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument(
        "collectives", nargs="*", default=["all_reduce", "all_gather", "reduce_scatter", "alltoall"]
    )
    options = parser.parse_args()
    loads, runs = [], {side: [] for side in SIDES}
    for number in range(options.rounds):
        for side in SIDES[:: 1 if number % 2 == 0 else -1]:
            loads.append(os.getloadavg()[0])
            runs[side].append(measured(options, side))
    predicted = {}
    if options.cluster:
        words = ["--explain", "--simulate", options.cluster]
        predicted = {side: perf(options, side, words) for side in SIDES}
    keys = [key for key in runs["rules"][0] if all(key in run for side in SIDES for run in runs[side])]
    data = {"args": sys.argv[1:], "processors": os.cpu_count(), "load": [min(loads), max(loads)]}
    data["rows"] = [row(key, runs, predicted) for key in keys]
    options.out.with_suffix(".json").write_text(json.dumps(data, indent=1) + "\n")
    text = table(options, data)
    options.out.with_suffix(".txt").write_text(text)
    print(text, end="")


def measured(options, side):
    hosts = ["--hosts", str(options.hosts)] if options.hosts > 1 else []
    words = ["-t", str(options.ranks), *hosts, "-c", "0", "-w", "5", "-n", "200", "--point-ms", "20"]
    return perf(options, side, [*words, "-N", "5", "--skip-in-place", "--explain"])


def perf(options, side, words):
    """By collective and bytes: time in µs, the median where it was measured often, what ran, and the rule."""
    first, last, factor = options.sizes.split(":")
    words = [options.hawser, "perf", ",".join(options.collectives), *words]
    words += ["-b", first, "-e", last, "-f", factor]
    found = {}
    for row in tool.perf(words, options.rules if side == "rules" else None):
        ran = row.get("decision")
        if not ran:
            continue
        name = f"{ran['algorithm']}/{ran['executor']}/{ran['protocol']} x {ran['channels']}"
        times, *_ = found.setdefault((row["collective"], row["size"]), ([], name, ran.get("rule")))
        times.append(row["out_of_place"]["time"])
    return {key: (statistics.median(times), *ran) for key, (times, *ran) in found.items()}


def row(key, runs, predicted):
    times = {side: [run[key][0] for run in runs[side]] for side in SIDES}
    ratios = [rules / model for model, rules in zip(*(times[side] for side in SIDES))]
    out = {"collective": key[0], "bytes": key[1], "us": times, "ratios": ratios}
    out["ran"] = {side: runs[side][0][key][1] for side in SIDES}
    out["is_by_rule"] = bool(runs["rules"][0][key][2])
    if predicted:
        out["predicted_us"] = {side: predicted[side][key][0] for side in SIDES}
    return out


def table(options, data):
    rows = data["rows"]
    where = f"{options.ranks} ranks of the host device as {options.hosts} host" + "s" * (options.hosts > 1)
    low, high = data["load"]
    out = f"Rules beside the cost model, measured in turns (bench/rules.py {' '.join(data['args'][1:])}):\n"
    out += f"{where}, {options.rounds} rounds, {data['processors']} virtual processors that others used as "
    out += "well\n"
    out += f"(load {low:.0f} to {high:.0f}). Ratios: rules by cost model, median (least to greatest) of the "
    out += "rounds.\n\n"
    head = f"{'collective':14} {'bytes':>9}  {'cost model µs':>13}  {'rules µs':>9}  {'ratio':>18}"
    head += "  predicted  what ran\n"
    for is_by_rule, title in (
        (True, "where a rule decides"),
        (False, "where none does: both sides run the same"),
    ):
        chosen = [row for row in rows if row["is_by_rule"] == is_by_rule]
        if not chosen:
            continue
        out += f"{title}\n{head}"
        for row in chosen:
            model, rules = (statistics.median(row["us"][side]) for side in SIDES)
            ratios = row["ratios"]
            spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            said = row.get("predicted_us")
            said = f"{said['rules'] / said['cost model']:9.2f}" if said else f"{'-':>9}"
            ran = row["ran"]
            names = f"{ran['rules']} instead of {ran['cost model']}" if is_by_rule else ran["rules"]
            out += f"{row['collective']:14} {row['bytes']:>9}  {model:13.1f}  {rules:9.1f}  {spread:>18}"
            out += f"  {said}  {names}\n"
        middle = [statistics.median(row["ratios"]) for row in chosen]
        out += f"median of {len(middle)} points {statistics.median(middle):.2f}, least {min(middle):.2f}, "
        out += f"greatest {max(middle):.2f}\n\n"
    return out


if __name__ == "__main__":
    main()
