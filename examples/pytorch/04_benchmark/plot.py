"""Draws the rows of the benchmark as an SVG file: time and bus bandwidth against size, one panel each."""

import html
import math

WIDTH, HEIGHT, LEFT, TOP, GAP = 380, 260, 80, 70, 90


def draw(path, title, subtitle, rows):
    """`rows` are (bytes, microseconds, GB/s)."""
    sizes = [size for size, _, _ in rows]
    panels = [
        ("time per operation", "µs", "#c0392b", [time for _, time, _ in rows]),
        ("bus bandwidth", "GB/s", "#2471a3", [busbw for _, _, busbw in rows]),
    ]
    width, height = 2 * (LEFT + WIDTH) + GAP - 30, TOP + HEIGHT + 60
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'font-family="sans-serif" font-size="12">',
        f"<title>{html.escape(title)}</title>",
        f"<desc>Time per operation in µs and bus bandwidth in GB/s against size. {html.escape(subtitle)}</desc>",
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-size="16">{html.escape(title)}</text>',
        f'<text x="{LEFT}" y="42" fill="#555">{html.escape(subtitle)}</text>',
    ]
    for place, (name, unit, colour, values) in enumerate(panels):
        x = LEFT + place * (WIDTH + GAP)
        parts.append(f'<g transform="translate({x},{TOP})">{panel(name, unit, colour, sizes, values)}</g>')
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join([*parts, "</svg>", ""]))


def panel(name, unit, colour, sizes, values):
    """Both axes are logarithmic."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)
    x = lambda size: WIDTH * math.log(size / sizes[0]) / max(math.log(sizes[-1] / sizes[0]), 1)
    y = lambda value: HEIGHT * (high - math.log10(value)) / (high - low)
    out = f'<text x="0" y="-8" font-size="13">{name} ({unit})</text>'
    for power in range(low, high + 1):
        at = y(10**power)
        out += f'<line x1="0" y1="{at:.1f}" x2="{WIDTH}" y2="{at:.1f}" stroke="#ddd"/>'
        out += f'<text x="-8" y="{at + 4:.1f}" text-anchor="end">{10**power:g}</text>'
    for size in sizes[:: max(1, math.ceil(len(sizes) / 6))]:
        at = x(size)
        out += f'<line x1="{at:.1f}" y1="0" x2="{at:.1f}" y2="{HEIGHT}" stroke="#eee"/>'
        out += f'<text x="{at:.1f}" y="{HEIGHT + 18}" text-anchor="middle">{short(size)}</text>'
    out += f'<text x="{WIDTH / 2}" y="{HEIGHT + 40}" text-anchor="middle">size</text>'
    points = " ".join(f"{x(size):.1f},{y(value):.1f}" for size, value in zip(sizes, values))
    out += f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
    for size, value in zip(sizes, values):
        out += f'<circle cx="{x(size):.1f}" cy="{y(value):.1f}" r="3" fill="{colour}"/>'
    return out


def short(size):
    """A number of bytes in its largest unit."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:g} {unit}"
    return f"{size} B"
