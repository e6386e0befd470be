#!/usr/bin/env python3
"""Draw time and extra memory over sequence length, the textbook method beside the tiled kernels.

Reads what `tessera bench` writes: result files (--out FILE) or JSON lines (--json), from files or standard input.

    for n in 512 1024 2048 4096 8192; do tessera bench --json "f32 hq4 sq$n d64"; done > bench.jsonl
    python3 scripts/plot.py bench.jsonl --out attention.svg
"""

import argparse
import json
import re
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (the backend is chosen first)
from matplotlib.ticker import FuncFormatter, NullLocator  # noqa: E402

TEXTBOOK_COLOUR = "#c2571a"
KERNEL_COLOURS = ["#1f5fa8", "#2a8f6d", "#7a4fa3", "#5b6770", "#b03a6f"]
MARKERS = "osD^v"
KIB = 1024.0


def read_rows(path):
    """The bench objects of a result file or of JSON lines; '-' is standard input."""
    with sys.stdin if path == "-" else open(path, encoding="utf-8") as file:
        text = file.read()
    try:
        whole = json.loads(text)
        rows = whole["rows"] if "rows" in whole else [whole]
    except json.JSONDecodeError:
        rows = [json.loads(line) for line in text.splitlines() if line.strip()]
    for row in rows:
        if not isinstance(row, dict) or "problem" not in row or "seconds_median" not in row:
            raise ValueError("not an object of `tessera bench`")
    return rows


def length_of(problem):
    """Key length (sk, else sq) of a problem line."""
    for word in ("sk", "sq"):
        found = re.search(rf"(?:^| ){word}(\d+)", problem)
        if found:
            return int(found.group(1))
    raise ValueError(f"no sk or sq in '{problem}'")


def family_of(problem):
    """The problem line without lengths: rows that differ only in them form one curve."""
    words = [word for word in problem.split() if not re.fullmatch(r"s[qk]\d+|kernel=.*", word)]
    return " ".join(words)


def collect(rows):
    """{(family, kernel): {length: row}}; a length measured twice keeps its last row."""
    series = {}
    for row in rows:
        if row["status"] == "ran" and row["seconds_median"]:
            series.setdefault((family_of(row["problem"]), row["kernel"]), {})[length_of(row["problem"])] = row
    return series


def seconds_label(value, _position=None):
    for limit, unit, scale in ((1e-3, "µs", 1e6), (1.0, "ms", 1e3)):
        if value < limit * 0.9995:
            return f"{value * scale:.4g} {unit}"
    return f"{value:.4g} s"


def bytes_label(value, _position=None):
    for unit in ("B", "KiB", "MiB"):
        if value < KIB:
            return f"{value:.4g} {unit}"
        value /= KIB
    return f"{value:.4g} GiB"


def length_label(value, _position=None):
    return f"{value / KIB:.4g}k" if value >= KIB and value % KIB == 0 else f"{value:.0f}"


def style_axes(axes, lengths, title, formatter, base):
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=base)
    axes.set_xticks(lengths)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(length_label))
    axes.yaxis.set_major_formatter(FuncFormatter(formatter))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("sequence length (keys)")
    axes.set_title(title, loc="left", fontsize=11)
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def note_ratio(axes, series, key, words, height):
    """Writes, at the longest length, how many times the textbook takes what the one tiled kernel takes."""
    textbook = [points for points in series.values() if any(row["baseline"] for row in points.values())]
    tiled = [points for points in series.values() if not any(row["baseline"] for row in points.values())]
    if len(textbook) != 1 or len(tiled) != 1 or not textbook[0].keys() & tiled[0].keys():
        return
    longest = max(textbook[0].keys() & tiled[0].keys())
    high, low = textbook[0][longest][key], tiled[0][longest][key]
    if not low or not high:
        return
    axes.text(0.99, height, f"at {length_label(longest)}: {high / low:.3g}x {words}", transform=axes.transAxes,
              ha="right", fontsize=9, color=KERNEL_COLOURS[0])


def draw(series, title, out):
    figure, (time_axes, memory_axes) = plt.subplots(1, 2, figsize=(10, 4.3))
    families = sorted({family for family, _ in series})
    lengths = sorted({length for points in series.values() for length in points})
    colours = {}
    for index, ((family, kernel), points) in enumerate(sorted(series.items())):
        textbook = any(row["baseline"] for row in points.values())
        if not textbook:
            colours.setdefault(kernel, KERNEL_COLOURS[len(colours) % len(KERNEL_COLOURS)])
        colour = TEXTBOOK_COLOUR if textbook else colours[kernel]
        x = sorted(points)
        label = ("textbook (writes every score)" if textbook else kernel) + (f", {family}" if len(families) > 1 else "")
        line = dict(color=colour, marker=MARKERS[index % len(MARKERS)], markersize=4.5, linewidth=1.8,
                    linestyle="--" if textbook else "-", label=label)
        time_axes.plot(x, [points[n]["seconds_median"] for n in x], **line)
        memory = [(n, points[n]["workspace_bytes"]) for n in x if points[n]["workspace_bytes"]]
        if memory:
            memory_axes.plot(*zip(*memory), **line)
    style_axes(time_axes, lengths, "Time of one run (median)", seconds_label, 10)
    style_axes(memory_axes, lengths, "Memory beyond inputs and outputs", bytes_label, 2)
    note_ratio(time_axes, series, "seconds_median", "as fast", 0.05)
    note_ratio(memory_axes, series, "workspace_bytes", "less", 0.45)
    time_axes.legend(frameon=False, fontsize=9)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    figure.tight_layout()
    figure.savefig(out, dpi=160)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", help="result files or JSON lines of `tessera bench`; - is standard input")
    parser.add_argument("--out", default="bench.svg", help="picture: .svg, .png or .pdf (default bench.svg)")
    parser.add_argument("--title", help="default: the problem and the device")
    arguments = parser.parse_args()
    try:
        rows = [row for path in arguments.files for row in read_rows(path)]
        series = collect(rows)
        if not series:
            raise ValueError("no row that ran")
        title = arguments.title
        if title is None:
            families = sorted({family for family, _ in series})
            devices = sorted({row["device"] for row in rows if row["device"]})
            title = f"{families[0] if len(families) == 1 else 'attention'} on {', '.join(devices)}"
        draw(series, title, arguments.out)
    except (OSError, ValueError, KeyError) as error:
        print(f"plot.py: {', '.join(arguments.files)}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
