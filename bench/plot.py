#!/usr/bin/env python3
"""Draws the JSON of compare.py: bench/plot.py results.json picture.svg [--limit GB/s] [operation ...]

One panel per operation: time against size, both axes logarithmic, medians, and the time that the links would
need at the limit, which is a bus bandwidth; below it the ratio of the two times."""

import argparse
import json
import math
import statistics

WIDTH, HEIGHT, STRIP, LEFT, TOP, GAP, COLUMNS = 380, 270, 80, 72, 44, 30, 3
COLOURS = {"ours": "#c0392b", "nccl": "#5d6d7e", "limit": "#2e8b57"}
FULL = ("broadcast", "reduce", "sendrecv")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results")
    parser.add_argument("picture")
    parser.add_argument("--limit", type=float, help="what a link carries, in GB/s; no line without")
    parser.add_argument("operations", nargs="*", help="default: all in the file")
    args = parser.parse_args()
    with open(args.results) as file:
        data = json.load(file)
    operations = args.operations or list(dict.fromkeys(row["op"] for row in data["rows"]))
    for missing in set(operations) - {row["op"] for row in data["rows"]}:
        parser.error(f"{args.results} has no rows of {missing}")
    columns = min(COLUMNS, len(operations))
    across, down = WIDTH + LEFT + GAP, HEIGHT + STRIP + TOP + 50
    width, height = columns * across + GAP, math.ceil(len(operations) / columns) * down + 10
    text = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">\n'
    text += '<rect width="100%" height="100%" fill="white"/>\n'
    for index, op in enumerate(operations):
        text += (
            f'<g transform="translate({LEFT + index % columns * across},{TOP + index // columns * down})">\n'
        )
        text += panel(data, op, args.limit) + "</g>\n"
    with open(args.picture, "w") as out:
        out.write(text + "</svg>\n")


def panel(data, op, limit):
    rows = sorted((row for row in data["rows"] if row["op"] == op), key=lambda row: row["bytes"])
    sizes = [row["bytes"] for row in rows]
    sides = {
        side: [statistics.median(us for us, _ in row[side]) for row in rows] for side in ("ours", "nccl")
    }
    every = sides["ours"] + sides["nccl"]
    low, high = math.floor(math.log10(min(every))), math.ceil(math.log10(max(every)))
    x, y = scale(sizes[0], sizes[-1], 0, WIDTH), scale(10**low, 10 ** max(high, low + 1), HEIGHT, 0)
    how = ", CUDA graphs" if data.get("graph") else ""
    out = f'<text x="0" y="-14" font-size="15">{op}, {data["gpus"]} GPUs{how}: time per operation</text>\n'
    for power in range(low, max(high, low + 1) + 1):
        out += line(0, y(10**power), WIDTH, y(10**power)) + label(
            -6, y(10**power) + 4, f"{10**power:g} µs", "end"
        )
    for size in sizes[:: max(1, math.ceil(len(sizes) / 8))]:
        out += line(x(size), 0, x(size), HEIGHT + STRIP) + label(
            x(size), HEIGHT + STRIP + 16, unit(size), "middle"
        )
    out += f'<rect width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999"/>\n'
    if limit:
        out += limit_line(sizes, limit, factor(op, data["gpus"]), 10**low, x, y)
    for index, (side, times) in enumerate(sides.items()):
        out += curve([(x(size), y(us)) for size, us in zip(sizes, times)], COLOURS[side])
        out += label(14, 20 + 16 * index, names(data)[side], "start", COLOURS[side])
    if limit:
        out += label(14, 52, f"{limit:g} GB/s", "start", COLOURS["limit"])
    return out + ratios(sizes, [a / b for a, b in zip(sides["ours"], sides["nccl"])], x)


def limit_line(sizes, limit, bus, least, x, y):
    """The time at which the bus bandwidth would be the limit, where it lies inside the panel."""
    us = lambda size: size * bus / limit / 1e3
    first = min(max(sizes[0], least / us(1)), sizes[-1])
    points = [(x(size), y(us(size))) for size in (first, sizes[-1]) if us(size) >= least * 0.999]
    return curve(points, COLOURS["limit"], ' stroke-dasharray="5 4"') if len(points) == 2 else ""


def ratios(sizes, values, x):
    """A strip below the panel: ours divided by NCCL's, 1 in the middle line."""
    top = max(1.5, math.ceil(max(values) * 2) / 2)
    y = lambda ratio: HEIGHT + STRIP - ratio / top * (STRIP - 14)
    out = f'<rect y="{HEIGHT}" width="{WIDTH}" height="{STRIP}" fill="none" stroke="#999"/>\n'
    for mark in (0.5, 1.0):
        out += line(0, y(mark), WIDTH, y(mark), "#999" if mark == 1 else "#ddd") + label(
            -6, y(mark) + 4, f"{mark:g}", "end"
        )
    out += label(WIDTH - 6, HEIGHT + 13, "time ratio", "end", "#555")
    return out + curve([(x(size), y(ratio)) for size, ratio in zip(sizes, values)], COLOURS["ours"])


def factor(op, ranks):
    """Bus bandwidth divided by bytes per time, as nccl-tests defines it."""
    share = (ranks - 1) / ranks
    return 2 * share if op == "all_reduce" else 1 if op in FULL else share


def names(data):
    version = data.get("libraries", {}).get("nccl", "2.28.9")
    return {"ours": "Hawser", "nccl": f"NCCL {version}"}


def scale(low, high, start, end):
    span = math.log10(high) - math.log10(low) or 1
    return lambda value: start + (math.log10(value) - math.log10(low)) / span * (end - start)


def curve(points, colour, style=""):
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{style}/>\n'


def line(x1, y1, x2, y2, colour="#ddd"):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def label(x, y, text, anchor, colour="black"):
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{colour}">{text}</text>\n'


def unit(count):
    for name in ("", "K", "M"):
        if count < 1024:
            return f"{count}{name}"
        count //= 1024
    return f"{count}G"


if __name__ == "__main__":
    main()
