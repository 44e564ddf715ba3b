#!/usr/bin/env python3
"""Says which marks the JSON of compare.py meets: bench/marks.py results.json [...]

The marks are those of one NVLink host of H200 with NVLink multicast off (bench/README.md): for each
collective and range of sizes the most time in parts of NVIDIA's, in one run, and on 8 GPUs also times in µs
and bus bandwidths in GB/s at some sizes. On fewer GPUs nothing may take longer than NVIDIA's library, and
small sizes have the marks of 8. Medians are compared as they are, without allowance for noise. Several files
are taken as one measurement: a size in a later file counts there. Prints a line for each mark with the worst
size; the exit code is 1 if one is missed."""

import json
import statistics
import sys

UNITS = ("", "K", "M", "G")
SMALL = 64 << 10
END = float("inf")
REST = ("broadcast", "reduce", "gather", "scatter")

# Collectives; first and last size; most time in parts of NVIDIA's.
RATIOS = (
    (("all_reduce",), 0, SMALL, 0.5),
    (("all_reduce",), 128 << 10, 1 << 20, 0.65),
    (("all_reduce",), 2 << 20, 16 << 20, 0.85),
    (("all_reduce",), 64 << 20, 64 << 20, 0.92),
    (("all_reduce",), 256 << 20, END, 1.0),
    (("all_gather", "reduce_scatter"), 0, SMALL, 0.65),
    (("all_gather", "reduce_scatter"), 1 << 20, 64 << 20, 0.85),
    (("all_gather", "reduce_scatter"), 256 << 20, END, 0.98),
    (("alltoall",), 0, SMALL, 0.75),
    (("alltoall",), 64 << 20, END, 0.92),
    (("sendrecv",), 1 << 20, 64 << 20, 0.4),
    (("sendrecv",), 128 << 20, 128 << 20, 0.5),
    (REST, 0, SMALL, 0.8),
    (REST, 0, END, 1.02),
)
# Collective, first and last size, most µs.
TIMES = (
    ("all_reduce", 0, SMALL, 8.0),
    ("all_reduce", 1 << 20, 1 << 20, 17.0),
    ("all_reduce", 4 << 20, 4 << 20, 38.0),
    ("all_reduce", 16 << 20, 16 << 20, 100.0),
    ("all_gather", 0, SMALL, 7.5),
    ("reduce_scatter", 0, SMALL, 7.5),
)
# Collective, size, least bus bandwidth in GB/s.
RATES = (
    ("all_reduce", 1 << 30, 360.0),
    ("all_gather", 1 << 30, 352.0),
    ("reduce_scatter", 1 << 30, 352.0),
    ("alltoall", 1 << 30, 360.0),
    ("sendrecv", 64 << 20, 300.0),
)


def main():
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    gpus, points = read(sys.argv[1:])
    print(f"{'mark':56} {'worst':>8}  {'at':>6}  missed at")
    missed = sum(not line for line in checks(gpus, points))
    print(f"\n{gpus} GPUs: {missed} marks missed" if missed else f"\n{gpus} GPUs: all marks met")
    sys.exit(1 if missed else 0)


def read(paths):
    """GPUs, and for each collective and size: our time, their time in µs, our bus bandwidth in GB/s."""
    gpus, points = None, {}
    for path in paths:
        with open(path) as file:
            data = json.load(file)
        if gpus not in (None, data["gpus"]):
            sys.exit(f"{path} is of {data['gpus']} GPUs, the files before are of {gpus}")
        gpus = data["gpus"]
        for row in data["rows"]:
            ours, nccl = (
                [statistics.median(column) for column in zip(*row[side])] for side in ("ours", "nccl")
            )
            points[row["op"], row["bytes"]] = (ours[0], nccl[0], ours[1])
    return gpus, points


def checks(gpus, points):
    """Prints a line for each mark that has points; whether it is met."""

    def mark(ops, first, last, text, value, holds):
        values = {
            key: value(point) for key, point in points.items() if key[0] in ops and first <= key[1] <= last
        }
        if not values:
            return
        bad = [key for key, at in values.items() if not holds(at)]
        order = sorted(values, key=values.get)
        worst = order[-1] if holds(0) else order[0]
        names = ", ".join(f"{op} {size(at)}" if len(ops) > 1 else size(at) for op, at in bad)
        label = f"{', '.join(ops)} {span(first, last)}: {text}"
        print(f"{label:56} {values[worst]:8.2f}  {size(worst[1]):>6}  {names}")
        yield not bad

    for ops, first, last, most in RATIOS:
        if gpus < 8 and (last > SMALL or first > 0):
            continue
        yield from mark(ops, first, last, f"time <= {most:g}", lambda p: p[0] / p[1], lambda v: v <= most)
    if gpus < 8:
        for op in dict.fromkeys(op for op, _ in points):
            yield from mark((op,), 0, END, "time <= 1", lambda p: p[0] / p[1], lambda v: v <= 1)
        return
    for op, first, last, most in TIMES:
        yield from mark((op,), first, last, f"<= {most:g} us", lambda p: p[0], lambda v: v <= most)
    for op, at, least in RATES:
        yield from mark((op,), at, at, f">= {least:g} GB/s", lambda p: p[2], lambda v: v >= least)


def span(first, last):
    if first == last:
        return size(first)
    return f"{size(first) if first else ''}..{size(last) if last != END else ''}"


def size(number):
    unit = 0
    while number and number % 1024 == 0 and unit < len(UNITS) - 1:
        number, unit = number // 1024, unit + 1
    return f"{number}{UNITS[unit]}"


if __name__ == "__main__":
    main()
