#!/usr/bin/env python3
"""Draws the JSON of compare.py: bench/plot.py results.json picture.svg [--limit GB/s] [operation ...]

Two panels per operation, medians against size, whose axis is logarithmic: the time, logarithmic too, and the
bus bandwidth; in both what the links would need or give at the limit. Below the time stands the ratio of the
two times."""

import argparse
import html
import json
import math
import statistics

TIME, BUS, HEIGHT, STRIP, LEFT, BETWEEN, TOP, FOOT, GAP, COLUMNS = 300, 230, 240, 76, 72, 58, 50, 44, 24, 2
HEAD = 40
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
    with open(args.results, encoding="utf-8") as file:
        data = json.load(file)
    operations = args.operations or list(dict.fromkeys(row["op"] for row in data["rows"]))
    for missing in set(operations) - {row["op"] for row in data["rows"]}:
        parser.error(f"{args.results} has no rows of {missing}")
    with open(args.picture, "w", encoding="utf-8") as out:
        out.write(picture(data, operations, args.limit))


def picture(data, operations, limit):
    columns = min(COLUMNS, len(operations))
    across, down = LEFT + TIME + BETWEEN + BUS + GAP, TOP + HEIGHT + STRIP + FOOT
    width, height = columns * across, HEAD + math.ceil(len(operations) / columns) * down
    how = ", CUDA graphs" if data.get("graph") else ""
    title = f"Hawser and {names(data)['nccl']} on {data['gpus']} GPUs{how}"
    text = begin(width, height, title, description(data, operations))
    text += label(LEFT, 26, title, "start", size=16)
    for index, op in enumerate(operations):
        left, top = LEFT + index % columns * across, HEAD + TOP + index // columns * down
        text += f'<g transform="translate({left},{top})">\n{panels(data, op, limit)}</g>\n'
    return text + "</svg>\n"


def begin(width, height, title, text):
    """The beginning of a picture, with a title and a description for those who do not see it."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-labelledby="what text" font-family="sans-serif" '
        f'font-size="12">\n<title id="what">{html.escape(title)}</title>\n'
        f'<desc id="text">{html.escape(text)}</desc>\n<rect width="100%" height="100%" fill="white"/>\n'
    )


def description(data, operations):
    """For each operation the least and the greatest ratio of the times."""
    parts = []
    for op in operations:
        sizes, sides = medians(data, op)
        worst, best = [pick(zip(map(ratio, sides["ours"], sides["nccl"]), sizes)) for pick in (max, min)]
        at = f"from {best[0]:.2f} at {unit(best[1])} to {worst[0]:.2f} at {unit(worst[1])}"
        parts.append(f"{op} takes {at} of NCCL's time")
    return "Time per operation and bus bandwidth against size. " + "; ".join(parts) + "."


def ratio(ours, nccl):
    return ours / nccl


def medians(data, op):
    """The sizes of an operation, and the times in µs of both sides."""
    rows = sorted((row for row in data["rows"] if row["op"] == op), key=lambda row: row["bytes"])
    middle = lambda side: [statistics.median(us for us, _ in row[side]) for row in rows]
    sides = {side: middle(side) for side in ("ours", "nccl")}
    return [row["bytes"] for row in rows], sides


def panels(data, op, limit):
    sizes, sides = medians(data, op)
    out = label(0, -14, op, "start", size=15)
    out += time_panel(data, op, limit, sizes, sides)
    out += f'<g transform="translate({TIME + BETWEEN},0)">\n{bus_panel(data, op, limit, sizes, sides)}</g>\n'
    return out


def time_panel(data, op, limit, sizes, sides):
    every = sides["ours"] + sides["nccl"]
    low = math.floor(math.log10(min(every)))
    high = max(math.ceil(math.log10(max(every))), low + 1)
    x, y = scale(sizes[0], sizes[-1], 0, TIME), scale(10**low, 10**high, HEIGHT, 0)
    out = label(TIME, -6, "time per operation in µs", "end", "#555")
    for power in range(low, high + 1):
        at = y(10**power)
        out += line(0, at, TIME, at) + label(-6, at + 4, f"{10**power:g}", "end")
    out += size_axis(sizes, x, TIME, HEIGHT + STRIP)
    out += f'<rect width="{TIME}" height="{HEIGHT}" fill="none" stroke="#999"/>\n'
    if limit:
        out += limit_line(sizes, limit, factor(op, data["gpus"]), 10**low, x, y)
    for index, (side, times) in enumerate(sides.items()):
        out += curve([(x(size), y(us)) for size, us in zip(sizes, times)], COLOURS[side])
        out += label(14, 20 + 16 * index, names(data)[side], "start", COLOURS[side])
    if limit:
        out += label(14, 52, f"{limit:g} GB/s", "start", COLOURS["limit"])
    return out + ratios(sizes, list(map(ratio, sides["ours"], sides["nccl"])), x)


def bus_panel(data, op, limit, sizes, sides):
    bus = factor(op, data["gpus"])
    rates = {side: [size * bus / us / 1e3 for size, us in zip(sizes, times)] for side, times in sides.items()}
    height = HEIGHT + STRIP
    most = max([*rates["ours"], *rates["nccl"], limit or 0]) * 1.05
    x = scale(sizes[0], sizes[-1], 0, BUS)
    y = lambda rate: height * (1 - rate / most)
    out = label(BUS, -6, "bus bandwidth in GB/s", "end", "#555")
    for tick in round_ticks(most):
        out += line(0, y(tick), BUS, y(tick)) + label(-6, y(tick) + 4, f"{tick:g}", "end")
    out += size_axis(sizes, x, BUS, height)
    out += f'<rect width="{BUS}" height="{height}" fill="none" stroke="#999"/>\n'
    if limit:
        out += curve([(0, y(limit)), (BUS, y(limit))], COLOURS["limit"], ' stroke-dasharray="5 4"')
    for side, values in rates.items():
        out += curve([(x(size), y(rate)) for size, rate in zip(sizes, values)], COLOURS[side])
    return out


def size_axis(sizes, x, width, bottom):
    """Lines at some sizes, as many as have room for their names, and the name of the axis."""
    out = ""
    for size in sizes[:: max(1, math.ceil(len(sizes) * 58 / width))]:
        out += line(x(size), 0, x(size), bottom) + label(x(size), bottom + 16, unit(size), "middle")
    return out + label(width / 2, bottom + 34, "size", "middle", "#555")


def round_ticks(most):
    """Round numbers from 0 to a most: at most seven."""
    decade = 10 ** math.floor(math.log10(most / 5))
    step = next(part * decade for part in (1, 2, 5, 10) if part * decade >= most / 5)
    return [step * at for at in range(7) if step * at <= most]


def limit_line(sizes, limit, bus, least, x, y):
    """The time at which the bus bandwidth would be the limit, where it lies inside the panel."""
    us = lambda size: size * bus / limit / 1e3
    first = min(max(sizes[0], least / us(1)), sizes[-1])
    points = [(x(size), y(us(size))) for size in (first, sizes[-1]) if us(size) >= least * 0.999]
    return curve(points, COLOURS["limit"], ' stroke-dasharray="5 4"') if len(points) == 2 else ""


def ratios(sizes, values, x):
    """A strip below the panel: ours divided by NCCL's."""
    top = max(1.5, math.ceil(max(values) * 2) / 2)
    y = lambda value: HEIGHT + STRIP - value / top * (STRIP - 14)
    out = f'<rect y="{HEIGHT}" width="{TIME}" height="{STRIP}" fill="none" stroke="#999"/>\n'
    for mark in (0.5, 1.0):
        colour = "#999" if mark == 1 else "#ddd"
        out += line(0, y(mark), TIME, y(mark), colour) + label(-6, y(mark) + 4, f"{mark:g}", "end")
    out += label(TIME - 6, HEIGHT + 13, "Hawser's time / NCCL's", "end", "#555")
    return out + curve([(x(size), y(value)) for size, value in zip(sizes, values)], COLOURS["ours"])


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


def label(x, y, text, anchor, colour="black", size=12):
    large = f' font-size="{size}"' if size != 12 else ""
    place = f'x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{colour}"{large}'
    return f"<text {place}>{html.escape(text)}</text>\n"


def unit(count):
    for name in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:g} {name}"
        count /= 1024
    return f"{count:g} GiB"


if __name__ == "__main__":
    main()
