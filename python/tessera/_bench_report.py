"""Rows of python -m tessera.bench as lines of text and as a picture."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from . import Problem

PEERS = ("flash", "cudnn", "efficient", "math", "textbook")


def table_line(row: dict[str, Any]) -> str:
    peers = row["peers"]
    cells = [f"{row['problem']:58s} {row['tflops']:7.1f}"]
    for name in PEERS:
        peer = peers.get(name)
        ratio = f"{peer['tflops']:6.1f} ({row['tflops'] / peer['tflops']:5.2f}x)" if peer else "     -         "
        cells.append(f"{name} {ratio}")
    if row["rms_error"] and "flash" in peers:
        cells.append(f"rms {row['rms_error']:.2e} ({row['rms_error'] / peers['flash']['rms_error']:.3f} of flash)")
    return "  ".join(cells)


def short_table(results: str) -> str:
    """A line a head dim and mask: TFLOP/s over FlashAttention-2's by length; what misses 1.0 (d 64 and 128 from N 2048
    on) or 0.95; and the largest RMS error over FlashAttention-2's."""
    rows = [row for row in json.loads(Path(results).read_text())["rows"] if "flash" in row["peers"]]
    lines: dict[str, list[str]] = {}
    missed, worst_rms, host = [], 0.0, []
    for row in rows:
        p, flash = Problem(row["problem"]), row["peers"]["flash"]
        ratio = row["tflops"] / flash["tflops"]
        key = f"d {p.head_dim_qk:3d} {'causal' if p.right == 0 else 'full'}"
        lines.setdefault(key, []).append(f"{p.seqlen_q} {row['tflops']:.0f} ({ratio:.2f})")
        if ratio < (1.0 if p.seqlen_q >= 2048 and p.head_dim_qk <= 128 else 0.95):
            missed.append(f"{key} N {p.seqlen_q}: {ratio:.3f}")
        if row["rms_error"] and flash["rms_error"]:
            worst_rms = max(worst_rms, row["rms_error"] / flash["rms_error"])
        if row["host_seconds"]:
            host.append(row["host_seconds"])
    text = ["TFLOP/s by N (over FlashAttention-2)"]
    text += [f"  {key:12s} " + "  ".join(cells) for key, cells in lines.items()]
    text.append(f"  below the aim: {'; '.join(missed) or 'none'}")
    text.append(f"  RMS error at most {worst_rms:.3f} of FlashAttention-2's")
    if host:
        text.append(f"  host time of a run: {statistics.median(host) * 1e6:.1f} us, at most {max(host) * 1e6:.1f}")
    return "\n".join(text)


def draw(results: str, picture: str) -> None:
    """TFLOP/s over N, a panel a head dim and mask."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    data = json.loads(Path(results).read_text())
    panels: dict[tuple[int, bool], list[dict[str, Any]]] = {}
    for row in data["rows"]:
        problem = Problem(row["problem"])
        row["length"] = problem.seqlen_q
        panels.setdefault((problem.head_dim_qk, problem.right == 0), []).append(row)
    dims = sorted({dim for dim, _ in panels})
    figure, axes = plt.subplots(2, len(dims), figsize=(4.2 * len(dims), 6.4), squeeze=False, sharex=True)
    for (dim, causal), rows in panels.items():
        rows.sort(key=lambda row: row["length"])
        axis = axes[int(causal)][dims.index(dim)]
        lengths = [row["length"] for row in rows]
        axis.plot(lengths, [row["tflops"] for row in rows], "o-", color="black", label=rows[0]["kernel"])
        for name in PEERS:
            points = [(row["length"], row["peers"][name]["tflops"]) for row in rows if name in row["peers"]]
            if points:
                axis.plot(*zip(*points), ".--", label=name)
        axis.set_xscale("log", base=2)
        axis.set_ylim(bottom=0)
        axis.set_title(f"d {dim}, {'causal' if causal else 'full'}")
        axis.grid(alpha=0.3)
        if causal:
            axis.set_xlabel("N (queries = keys)")
    axes[0][0].set_ylabel("TFLOP/s")
    axes[1][0].set_ylabel("TFLOP/s")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=len(labels), frameon=False)
    figure.suptitle(f"{data['device']}, bf16 forward, 16k tokens, hidden 2048 ({data['date']})")
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    figure.savefig(picture, dpi=110)
