#!/usr/bin/env python3
"""Draws the results of compare.py over time: bench/history.py writes docs/history.md and docs/history.svg

Each file of bench/results that compares Hawser with NCCL, in the order of dates, gives one value for each
operation and class of sizes: the median over its sizes of Hawser's time divided by NCCL's. With --check
nothing is written; it fails where the two files are not those of the results."""

import argparse
import json
import math
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS, PAGE, PICTURE = ROOT / "bench/results", ROOT / "docs/history.md", ROOT / "docs/history.svg"
CLASSES = (
    ("up to 64 KiB", 0, 64 << 10),
    ("above 64 KiB, below 16 MiB", (64 << 10) + 1, (16 << 20) - 1),
    ("from 16 MiB", 16 << 20, math.inf),
)
# As far apart as nine can be, for people who see red and green alike too.
COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00"),
    *("#56b4e9", "#7a5195", "#8c8c00", "#222222"),
)
LEFT, TOP, HEIGHT, STEP, GAP = 60, 50, 180, 90, 60
LOW, HIGH = 0.2, 2.0


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    runs = [run for run in map(read, sorted(RESULTS.glob("*.json"))) if run]
    for path, text in ((PAGE, page(runs)), (PICTURE, picture(runs))):
        if not args.check:
            path.write_text(text)
        elif not path.is_file() or path.read_text() != text:
            sys.exit(f"history.py: {path.name} is not that of bench/results: run bench/history.py")


def read(path):
    """The name of a run, and its ratios by class and operation; None for files of other programs."""
    data = json.loads(path.read_text())
    rows = [row for row in data.get("rows", []) if row.get("ours") and row.get("nccl")]
    if not rows:
        return None
    ratios = {}
    for row in rows:
        time = {side: statistics.median(us for us, _ in row[side]) for side in ("ours", "nccl")}
        for name, least, most in CLASSES:
            if least <= row["bytes"] <= most:
                ratios.setdefault(name, {}).setdefault(row["op"], []).append(time["ours"] / time["nccl"])
    median = lambda ops: {op: statistics.median(found) for op, found in ops.items()}
    return path.stem, {name: median(ops) for name, ops in ratios.items()}


def operations(runs):
    return list(dict.fromkeys(op for _, classes in runs for ops in classes.values() for op in ops))


def page(runs):
    text = "# Benchmark history\n\n"
    text += (
        "Hawser's time divided by NCCL's, less is better: the median over the sizes of a class, of every run "
        "of `bench/compare.py` whose results are kept. `bench/history.py` writes this page and its picture "
        "from the files. Runs are on different machines, with different sizes and rounds, so a step may be "
        "the machine's: [bench/README.md](../bench/README.md) says what each was.\n\n"
    )
    text += "![Ratios of times over all runs, by class of sizes](history.svg)\n"
    names = operations(runs)
    for title, _, _ in CLASSES:
        text += f"\n## Sizes {title}\n\n| run | {' | '.join(names)} |\n|---|{'---|' * len(names)}\n"
        for run, classes in runs:
            if title in classes:
                values = (classes[title].get(op) for op in names)
                cells = " | ".join("" if value is None else f"{value:.2f}" for value in values)
                text += f"| [{run}](../bench/results/{run}.json) | {cells} |\n"
    return text


def picture(runs):
    names = operations(runs)
    inner = STEP * (len(runs) - 1) + 40
    width, panel = LEFT + inner + 150, HEIGHT + GAP
    height = TOP + panel * len(CLASSES) + 40
    out = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
    out += f'viewBox="0 0 {width} {height}" role="img" aria-labelledby="title desc" '
    out += 'font-family="sans-serif" font-size="12">\n'
    out += '<title id="title">Benchmark history</title>\n'
    out += "<desc id=\"desc\">Hawser's time divided by NCCL's for each operation, in the order of runs, in a "
    out += "panel for each class of sizes. The values are in the tables of docs/history.md.</desc>\n"
    out += '<rect width="100%" height="100%" fill="white"/>\n'
    for number, (title, _, _) in enumerate(CLASSES):
        top = TOP + panel * number
        heading = f"Sizes {title}: time divided by NCCL's, less is better"
        out += f'<text x="{LEFT}" y="{top - 12}" font-size="14">{heading}</text>\n'
        for mark in (0.2, 0.5, 1, 2):
            colour, at = "#777" if mark == 1 else "#ddd", y(mark, top)
            out += f'<line x1="{LEFT}" y1="{at}" x2="{LEFT + inner}" y2="{at}" stroke="{colour}"/>\n'
            out += f'<text x="{LEFT - 6}" y="{at + 4}" text-anchor="end">{mark:g}</text>\n'
        for op, colour in zip(names, COLOURS):
            points = [
                (LEFT + 20 + STEP * at, y(classes[title][op], top))
                for at, (_, classes) in enumerate(runs)
                if op in classes.get(title, {})
            ]
            path = " ".join(f"{x},{height_}" for x, height_ in points)
            out += f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-opacity="0.5"/>\n'
            out += "".join(f'<circle cx="{x}" cy="{h}" r="3.5" fill="{colour}"/>\n' for x, h in points)
    for at, (run, _) in enumerate(runs):
        date, machine = run[:10], run[11:]
        x, bottom = LEFT + 20 + STEP * at, TOP + panel * len(CLASSES) - GAP + 16
        for text, below in ((date, 0), (machine, 13)):
            out += f'<text x="{x}" y="{bottom + below}" text-anchor="middle" font-size="10">{text}</text>\n'
    for at, (op, colour) in enumerate(zip(names, COLOURS)):
        x, top = LEFT + inner + 16, TOP + 14 + 18 * at
        out += f'<circle cx="{x}" cy="{top - 4}" r="4" fill="{colour}"/>'
        out += f'<text x="{x + 10}" y="{top}">{op}</text>\n'
    return out + "</svg>\n"


def y(ratio, top):
    """The height of a ratio in the panel that begins at `top`; what lies outside is at its edge."""
    share = math.log(min(max(ratio, LOW), HIGH) / LOW) / math.log(HIGH / LOW)
    return round(top + HEIGHT * (1 - share), 1)


if __name__ == "__main__":
    main()
