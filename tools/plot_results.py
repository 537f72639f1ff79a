#!/usr/bin/env python3
"""Draws the plots of bench commands: one SVG for each plot that a CSV file names.

    tools/plot_results.py POINTS.csv DIRECTORY

POINTS.csv has the columns plot, series, label, x, y (`expertplex bench apk --points`). What the axes
mean follows from the plot's name: `sharing_*`, `saturation_*`, `footprint_*_tokens`,
`footprint_*_experts`.
"""

import csv
import math
import pathlib
import sys
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 760, 480
LEFT, RIGHT, TOP, BOTTOM = 70, 200, 40, 50
COLOURS = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#e377c2", "#17becf",
           "#7f7f7f", "#bcbd22"]
# Name's beginning, name's end: x axis, y axis, logarithmic x, logarithmic y, points joined.
AXES = [
    ("sharing_", "", "decode, us (median)", "prefill lost by each decode operation, us", True, True, False),
    ("saturation_", "", "prefill rate / exclusive", "decode rate / exclusive", False, False, False),
    ("footprint_", "_tokens", "rows of the operation", "decode, us", True, False, True),
    ("footprint_", "_experts", "experts that have rows", "decode, us", False, False, True),
]


def axes_of(plot):
    for begin, end, *axes in AXES:
        if plot.startswith(begin) and plot.endswith(end):
            return axes
    sys.exit(f"plot {plot!r}: no axes are known; expected a name that begins with sharing_, saturation_ or footprint_")


def scale_of(values, logarithmic, first, last):
    """A function from value to pixel, and the values of the ticks."""
    low, high = min(values), max(values)
    if logarithmic:
        low, high = math.log10(max(low, 1)), math.log10(max(high, 10))
        low, high = low - 0.05 * (high - low + 0.1), high + 0.05 * (high - low + 0.1)
        ticks = [m * 10**e for e in range(int(low) - 1, int(high) + 1) for m in (1, 2, 5)]
        at = lambda v: first + (math.log10(max(v, 1)) - low) / (high - low) * (last - first)
        return at, [t for t in ticks if low <= math.log10(t) <= high]
    low, high = min(low, 0), high * 1.05
    step = 10 ** math.floor(math.log10((high - low) / 4))
    while (high - low) / step > 8:
        step *= 2
    at = lambda v: first + (v - low) / (high - low) * (last - first)
    return at, [i * step for i in range(int(high / step) + 1)]


def draw(plot, points):
    x_name, y_name, log_x, log_y, joined = axes_of(plot)
    x_at, x_ticks = scale_of([p["x"] for p in points], log_x, LEFT, WIDTH - RIGHT)
    y_at, y_ticks = scale_of([p["y"] for p in points], log_y, HEIGHT - BOTTOM, TOP)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
           'font-family="sans-serif" font-size="11">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
           f'<text x="{LEFT}" y="20" font-size="14">{escape(plot)}</text>']
    for tick in x_ticks:
        x = x_at(tick)
        out.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#ddd"/>')
        out.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{tick:g}</text>')
    for tick in y_ticks:
        y = y_at(tick)
        out.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 12}" text-anchor="middle">{x_name}</text>')
    out.append(f'<text transform="translate(16 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">{y_name}</text>')
    for i, series in enumerate(dict.fromkeys(p["series"] for p in points)):
        colour = COLOURS[i % len(COLOURS)]
        mine = [p for p in points if p["series"] == series]
        places = [(x_at(p["x"]), y_at(p["y"])) for p in mine]
        if joined or len(mine) > 1:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            out.append(f'<polyline points="{path}" fill="none" stroke="{colour}"/>')
        for p, (x, y) in zip(mine, places):
            out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}">'
                       f'<title>{escape(p["label"])}: {p["x"]:g}, {p["y"]:g}</title></circle>')
        y = TOP + 16 * i
        out.append(f'<circle cx="{WIDTH - RIGHT + 20}" cy="{y}" r="4" fill="{colour}"/>')
        out.append(f'<text x="{WIDTH - RIGHT + 30}" y="{y + 4}">{escape(series)}</text>')
    return "\n".join(out + ["</svg>", ""])


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1], newline="") as file:
        points = [dict(row, x=float(row["x"]), y=float(row["y"])) for row in csv.DictReader(file)]
    directory = pathlib.Path(sys.argv[2])
    directory.mkdir(parents=True, exist_ok=True)
    for plot in dict.fromkeys(p["plot"] for p in points):
        (directory / f"{plot}.svg").write_text(draw(plot, [p for p in points if p["plot"] == plot]))


if __name__ == "__main__":
    main()
