"""Tables of whole result files for the notes: a row a cell, every peer. readme_figures.py puts them into the pages."""

import re

DIMENSION = re.compile(r"\b(sq|sk|d|b|hq|hkv)(\d+)\b")


def shape(row):
    """The numbers of a row's problem by name."""
    return {name: int(value) for name, value in DIMENSION.findall(row["problem"])}


def mask(row):
    return "causal" if "causal" in row["problem"].split() else "full"


def markdown(titles, lines):
    return "\n".join([f"| {' | '.join(titles)} |", "|---" * len(titles) + "|", *lines]) + "\n"


def ran(results):
    """Rows of the grid: dense, as many heads of keys as of queries, all keys, as long as the queries."""
    for row in results["rows"]:
        if row["status"] != "ran":
            raise ValueError(f"{row['problem']}: {row['reason']}")
        at = shape(row)
        others = "window" in row["problem"] or "packed" in row["problem"].split()
        if at["hq"] == at["hkv"] and at["sq"] == at["sk"] and not others:
            yield row, at


def by_shape(rows):
    return sorted(rows, key=lambda cell: (cell[1]["d"], cell[1]["sq"], mask(cell[0]) == "causal"))


def rate(peers, name):
    value = peers.get(name, {}).get("tflops")
    return "-" if value is None else f"{value:.0f}"


def forward(results):
    """Forward's grid: TFLOP/s, then ratios to cuDNN and the best peer, of the estimate, and of the errors."""
    peers = ("flash", "cudnn", "fa3", "textbook")
    titles = ["d", "N", "mask", "Tessera", "FA2", "cuDNN", "FA3", "textbook", "/cuDNN", "/best", "estimate", "RMS"]
    lines = []
    for row, at in by_shape(ran(results)):
        best = max(row["peers"][name]["tflops"] for name in peers[:3] if name in row["peers"])
        ratios = (row["tflops"] / row["peers"]["cudnn"]["tflops"], row["tflops"] / best)
        estimate = row["estimate_seconds"] / row["seconds_median"]
        error = row["rms_error"] / row["peers"]["flash"]["rms_error"]
        cells = [f"{at['d']}", f"{at['sq']}", mask(row), f"{row['tflops']:.0f}"]
        cells += [rate(row["peers"], name) for name in peers]
        cells += [f"{ratio:.2f}" for ratio in (*ratios, estimate)] + [f"{error:.3f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return markdown(titles, lines)


def backward(results):
    """Backward's grid in the free order of additions."""
    peers = ("cuda.sm80.backward", "flash", "cudnn")
    titles = ["d", "N", "mask", "cuda.sm90", "cuda.sm80", "FA2", "cuDNN", "/cuDNN", "estimate", "RMS / FA2"]
    lines = []
    for row, at in by_shape(ran(results)):
        if "deterministic" in row["problem"]:
            continue
        cells = [f"{at['d']}", f"{at['sq']}", mask(row), f"{row['tflops']:.0f}"]
        cells += [rate(row["peers"], name) for name in peers]
        ratio = row["tflops"] / row["peers"]["cudnn"]["tflops"]
        estimate = row["estimate_seconds"] / row["seconds_median"]
        error = row["rms_error"] / row["peers"]["flash"]["rms_error"]
        lines.append(f"| {' | '.join([*cells, f'{ratio:.2f}', f'{estimate:.2f}', f'{error:.3f}'])} |")
    return markdown(titles, lines)


def ordered(results):
    """What a fixed order of additions leaves of the free order's rate, in both backward kernels."""
    free = {(at["d"], at["sq"], mask(row)): row for row, at in ran(results) if "deterministic" not in row["problem"]}
    titles = ["d", "N", "mask", "cuda.sm90", "of free order", "cuda.sm80", "of free order"]
    lines = []
    for row, at in by_shape(ran(results)):
        if "deterministic" not in row["problem"]:
            continue
        other = free[at["d"], at["sq"], mask(row)]
        own = row["tflops"]
        portable, other_portable = (r["peers"]["cuda.sm80.backward"]["tflops"] for r in (row, other))
        lines.append(
            f"| {at['d']} | {at['sq']} | {mask(row)} | {own:.0f} | {own / other['tflops']:.2f} | {portable:.0f} "
            f"| {portable / other_portable:.2f} |"
        )
    return markdown(titles, lines)


def both_passes(results):
    """Forward and backward together: milliseconds, and cuDNN's over ours."""
    titles = ["d", "N", "mask", "Tessera", "cuDNN", "FA2", "cuDNN's over ours"]
    lines = []
    for row in sorted(results["rows"], key=lambda row: (shape(row)["d"], shape(row)["sq"], mask(row) == "causal")):
        at, own = shape(row), row["seconds_median"]
        cudnn, flash = (row["peers"][name]["seconds_median"] for name in ("cudnn", "flash"))
        times = " | ".join(f"{x * 1e3:.2f}" for x in (own, cudnn, flash))
        lines.append(f"| {at['d']} | {at['sq']} | {mask(row)} | {times} | {cudnn / own:.2f} |")
    return markdown(titles, lines)


def decode(results):
    """Decode's cells: microseconds, TB/s of K and V, its share of the probe, and peers' microseconds."""
    peers = ("cudnn", "flash", "cuda.sm90.forward")
    titles = ["batch, query heads, keys", "cache", "us", "TB/s", "of the probe", "splits", "estimate"]
    titles += ["cuDNN", "FA2", "cuda.sm90.forward"]
    lines = []
    for row in results["rows"]:
        at, words = shape(row), row["problem"].split()
        kinds = [word for word in words if re.match(r"paged=|kv=|batch-invariant|splits=|causal", word)]
        cell = f"{at['b']}, {at['hq']}, {at['sk']}" + (f", {at['sq']} queries" if at["sq"] > 1 else "")
        speed = row["kv_bytes"] / row["seconds_median"]
        times = [row["peers"].get(name, {}).get("seconds_median") for name in peers]
        cells = [cell, ", ".join(kinds) or "dense", f"{row['seconds_median'] * 1e6:.1f}", f"{speed / 1e12:.2f}"]
        cells += [f"{speed / results['read_bytes_per_s']:.2f}", f"{row['num_splits']}"]
        cells += [f"{row['estimate_seconds'] * 1e6:.1f}"]
        cells += ["-" if time is None else f"{time * 1e6:.1f}" for time in times]
        lines.append(f"| {' | '.join(cells)} |")
    return markdown(titles, lines)
