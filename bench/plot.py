#!/usr/bin/env python3
"""Draws the JSON of compare.py: bench/plot.py results.json picture.svg [operation ...]

One panel per operation, time against size, both axes logarithmic, medians.
"""

import json
import math
import sys

WIDTH, HEIGHT, LEFT, TOP, GAP = 380, 300, 72, 40, 30
COLOURS = {"ours": "#c0392b", "nccl": "#5d6d7e"}
NAMES = {"ours": "Hawser", "nccl": "NCCL 2.28.9"}


def main():
    data = json.load(open(sys.argv[1]))
    operations = sys.argv[3:] or ["all_reduce", "all_gather"]
    parts = [panel(data, op, index) for index, op in enumerate(operations)]
    width = len(operations) * (WIDTH + LEFT + GAP) + GAP
    text = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HEIGHT + TOP + 50}" font-family="sans-serif" font-size="12">\n'
    text += f'<rect width="100%" height="100%" fill="white"/>\n{"".join(parts)}</svg>\n'
    open(sys.argv[2], "w").write(text)


def panel(data, op, index):
    rows = sorted((r for r in data["rows"] if r["op"] == op), key=lambda r: r["bytes"])
    sides = {side: [(r["bytes"], median([us for us, _ in r[side]])) for r in rows] for side in COLOURS}
    every = [us for points in sides.values() for _, us in points]
    x = scale(rows[0]["bytes"], rows[-1]["bytes"], 0, WIDTH)
    y = scale(10 ** math.floor(math.log10(min(every))), 10 ** math.ceil(math.log10(max(every))), HEIGHT, 0)
    out = f'<g transform="translate({LEFT + index * (WIDTH + LEFT + GAP)},{TOP})">\n'
    out += f'<text x="0" y="-14" font-size="15">{op}, {data["gpus"]} GPUs: time per operation</text>\n'
    out += f'<rect width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999"/>\n'
    for power in range(math.floor(math.log10(min(every))), math.ceil(math.log10(max(every))) + 1):
        out += line(0, y(10**power), WIDTH, y(10**power)) + f'<text x="-6" y="{y(10**power) + 4:.0f}" text-anchor="end">{10**power:g} µs</text>\n'
    for row in rows[::2]:
        at = x(row["bytes"])
        out += line(at, 0, at, HEIGHT) + f'<text x="{at:.0f}" y="{HEIGHT + 16}" text-anchor="middle">{size(row["bytes"])}</text>\n'
    for number, (side, points) in enumerate(sides.items()):
        path = " ".join(f"{x(b):.1f},{y(us):.1f}" for b, us in points)
        out += f'<polyline points="{path}" fill="none" stroke="{COLOURS[side]}" stroke-width="2"/>\n'
        out += f'<text x="14" y="{20 + 16 * number}" fill="{COLOURS[side]}">{NAMES[side]}</text>\n'
    return out + "</g>\n"


def scale(low, high, start, end):
    span = math.log10(high) - math.log10(low)
    return lambda value: start + (math.log10(value) - math.log10(low)) / span * (end - start)


def line(x1, y1, x2, y2):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#ddd"/>'


def median(values):
    return sorted(values)[len(values) // 2]


def size(count):
    for unit in ("", "K", "M"):
        if count < 1024:
            return f"{count}{unit}"
        count //= 1024
    return f"{count}G"


if __name__ == "__main__":
    main()
