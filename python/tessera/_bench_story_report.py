"""Rows of the suite `story` as lines, as the lengths from which on tiles win, and as a picture."""

from __future__ import annotations

from typing import Any

from . import Problem
from ._bench_report import label
from ._bench_story import BUDGETS, TEXTBOOK

NAMES = {TEXTBOOK: "textbook", "fa1": "FlashAttention-1", "fa2": "FlashAttention-2", "fa3": "FlashAttention-3"}
COLORS = {TEXTBOOK: "tab:red", "fa1": "tab:orange", "fa2": "tab:blue", "fa3": "black"}


def lines_of(cell: dict[str, Any]) -> list[str]:
    """A cell's line and one for each of its rows."""
    lines = [f"{cell['table']:7s}{label(cell['problem'])}"]
    for name, row in cell["rows"].items():
        rate = f"{row['tflops']:8.1f} TFLOP/s" if row["tflops"] >= 1 else f"{row['tflops'] * 1e3:8.1f} GFLOP/s"
        line = f"  {name:9s}{row['kernel']:24s}{row['seconds_median'] * 1e3:10.3f} ms{rate}"
        line += f"{row['extra_bytes'] / 2**20:11.1f} MiB extra{row['model_bytes'] * 1e-9:9.3f} GB by model"
        if (counted := dram_gb(row)) is not None:
            line += f"{counted:9.3f} GB by ncu"
        if "paper_bytes" in row:
            line += f"{row['paper_bytes'] * 1e-9:9.3f} GB N^2d^2/M, tile {row['tile'][0]} x {row['tile'][1]}"
        if row["rms_error"] is not None:
            line += f"  rms {row['rms_error']:.2e}"
        lines.append(line)
    return lines + [f"  {name:9s}left out: {reason}" for name, reason in cell["refused"].items()]


def series(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Cells that differ in length, shortest first: the wide ones, the narrow ones, the grid's by head dim."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        p = Problem(row["problem"])
        heads = f"b{p.batch} h{p.heads_q}" if row["table"] != "grid" else f"{p.batch * p.seqlen_q} tokens"
        found.setdefault(f"{row['table']}, {heads} d{p.head_dim_qk}", []).append(row)
    for cells in found.values():
        cells.sort(key=lambda row: Problem(row["problem"]).seqlen_q)
    return found


def crossovers(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each series and row the shortest measured length from which on it beats the textbook at every longer one
    (None: not at the longest), and the shortest that was measured."""
    found = []
    for name, cells in series(rows).items():
        for row_name in [one for one in NAMES if one != TEXTBOOK]:
            both = [cell for cell in cells if row_name in cell["rows"] and TEXTBOOK in cell["rows"]]
            if not both:
                continue
            wins_from = None
            for cell in reversed(both):
                if cell["rows"][row_name]["seconds_median"] >= cell["rows"][TEXTBOOK]["seconds_median"]:
                    break
                wins_from = Problem(cell["problem"]).seqlen_q
            shortest = Problem(both[0]["problem"]).seqlen_q
            found.append({"series": name, "row": row_name, "wins_from": wins_from, "shortest": shortest})
    return found


def summary(results: dict[str, Any]) -> str:
    lines = []
    for one in results["crossover"]:
        where = "not at the longest length" if one["wins_from"] is None else f"from N {one['wins_from']} on"
        if one["wins_from"] == one["shortest"]:
            where += ", the shortest measured"
        lines.append(f"{one['row']} beats the textbook, {one['series']}: {where}")
    for cell in results["rows"]:
        found = {name: cell["rows"][name] for name in BUDGETS if name in cell["rows"]}
        if len(found) < 2:
            continue
        lines.append(f"fa1 by budget, {label(cell['problem'])}:")
        for name, row in found.items():
            line = f"  {BUDGETS[name]:4d} KiB {row['seconds_median'] * 1e3:9.3f} ms"
            unit = row["paper_bytes"] * 1e-9
            for source, gb in (("model", row["model_bytes"] * 1e-9), ("ncu", dram_gb(row))):
                line += f"  {source} {gb:8.3f} GB = {gb / unit:5.1f} N^2d^2/M" if gb is not None else ""
            lines.append(line)
    return "\n".join(lines)


def short_table(data: dict[str, Any]) -> str:
    lines = [line for cell in data["rows"] for line in lines_of(cell)]
    return "\n".join([*lines, summary(data)])


def draw(data: dict[str, Any], picture: str) -> None:
    """Rate over N of the wide cells and the grid's; memory and bytes over N of the wide ones; bytes over budgets."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    found = series(data["rows"])
    wide = next((name for name in found if name.startswith("wide")), None)
    figure, axes = plt.subplots(2, 3, figsize=(13, 7.2), squeeze=False)
    rates = [name for name in found if not name.startswith("narrow")][:3]
    fast = max(row["tflops"] for cell in data["rows"] for row in cell["rows"].values()) >= 1
    for axis, name in zip(axes[0], rates):
        curve(axis, found[name], lambda row: row["tflops"] * (1 if fast else 1e3))
        axis.set_title(f"{name}: {'TFLOP/s' if fast else 'GFLOP/s'}")
        axis.set_ylim(bottom=0)
    if wide is not None:
        curve(axes[1][0], found[wide], lambda row: row["extra_bytes"] / 2**20)
        axes[1][0].set_title(f"{wide}: MiB beyond the output")
        curve(axes[1][1], found[wide], lambda row: row["model_bytes"] * 1e-9)
        curve(axes[1][1], found[wide], dram_gb, "x")
        counted = any(dram_gb(row) is not None for cell in found[wide] for row in cell["rows"].values())
        axes[1][1].set_title(f"{wide}: GB by the model" + (" (x: ncu)" if counted else ""))
        for axis in axes[1][:2]:
            axis.set_yscale("log")
    draw_budgets(axes[1][2], data["rows"])
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=len(labels), frameon=False)
    dtype = data["rows"][0]["problem"].split()[1]
    figure.suptitle(f"{data['device']}, {dtype} forward ({data['date'][:10]})")
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    figure.savefig(picture, dpi=110)


def dram_gb(row: dict[str, Any]) -> float | None:
    return (row["dram"]["read"] + row["dram"]["written"]) * 1e-9 if "dram" in row else None


def curve(axis: Any, cells: list[dict[str, Any]], value: Any, marks: str = ".-") -> None:
    for name, text in NAMES.items():
        known = [(cell, value(cell["rows"][name])) for cell in cells if name in cell["rows"]]
        points = [(Problem(cell["problem"]).seqlen_q, y) for cell, y in known if y is not None]
        if points:
            axis.plot(*zip(*points), marks, color=COLORS[name], label=text)
    axis.set_xscale("log", base=2)
    axis.set_xlabel("N (queries = keys)")


def draw_budgets(axis: Any, rows: list[dict[str, Any]]) -> None:
    """The longest wide cell's bytes by model and by ncu over the budget, and N^2 d^2 / M."""
    cells = [row for row in rows if row["table"] == "wide" and "fa1.200k" in row["rows"]]
    if not cells:
        axis.axis("off")
        return
    cell = max(cells, key=lambda row: Problem(row["problem"]).seqlen_q)
    known = {kib: cell["rows"][name] for name, kib in BUDGETS.items() if name in cell["rows"]}
    for key, marks, color, text in (("model", "o-", COLORS["fa1"], "model"), ("paper", ":", "gray", "N²d²/M")):
        key += "_bytes"
        axis.plot(list(known), [row[key] * 1e-9 for row in known.values()], marks, color=color, label=text)
    counted = [(kib, dram_gb(row)) for kib, row in known.items() if "dram" in row]
    if counted:
        axis.plot(*zip(*counted), "x", color=COLORS["fa1"], label="ncu")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(list(known), [str(kib) for kib in known])
    axis.set_xlabel("KiB on chip")
    axis.set_title(f"FlashAttention-1, {label(cell['problem']).split(' ', 1)[1]}: GB")
    axis.legend(frameon=False)
