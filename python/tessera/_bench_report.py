"""Rows of python -m tessera.bench as lines of text and as a picture.

The figures of others come from the same run; beside them stands what the peers reached over cuDNN on the day of
bench/h200-peers.json, where the tree that holds this package has that file: `aim` is AIM times that ratio.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from . import Problem

PEERS = ("flash", "cudnn", "fa3", "fa4", "efficient", "math", "textbook")
NO_RIVALS = ("efficient", "math", "textbook")  # shown, but the best of peers is sought among the others
KNOWN_PEERS = Path(__file__).resolve().parents[2] / "bench" / "h200-peers.json"
AIM = 0.97
ESTIMATE_FROM = 2048  # lengths at which estimates are judged


def label(problem: str) -> str:
    p = Problem(problem)
    words = problem.split()
    heads = f"h{p.heads_q}" + (f"/{p.heads_kv}" if p.heads_kv != p.heads_q else "")
    mask = "causal" if p.right == 0 and p.left == -1 else f"win{p.left}" if p.left >= 0 else "full"
    packed = " packed" if "packed" in words else ""
    return f"{words[1]} b{p.batch} {heads} N{p.seqlen_q} d{p.head_dim_qk} {mask}{packed}"


@lru_cache(maxsize=1)
def known_peers() -> dict[tuple[int, int, bool], dict[str, float]]:
    """The committed peers' figures, by head dim, length and whether causal; empty without the file."""
    if not KNOWN_PEERS.is_file():
        return {}
    rows = json.loads(KNOWN_PEERS.read_text())["rows"]
    return {grid_cell(row["problem"]): row for row in rows}


def grid_cell(problem: str) -> tuple[int, int, bool] | None:
    """Where a problem of 16k tokens and hidden size 2048 lies in the grid; None: it is another."""
    p = Problem(problem)
    dense = "packed" not in problem.split() and p.left == -1 and p.heads_q == p.heads_kv
    if not dense or p.batch * p.seqlen_q != 16384 or p.heads_q * p.head_dim_qk != 2048 or p.seqlen_q != p.seqlen_k:
        return None
    return p.head_dim_qk, p.seqlen_q, p.right == 0


def rate(row: dict[str, Any], name: str) -> float | None:
    return row["peers"][name]["tflops"] if name in row["peers"] else None


def rivals(row: dict[str, Any]) -> dict[str, float]:
    """TFLOP/s of the peers that count, which other rows of ours do not."""
    names = [name for name in row["peers"] if name in PEERS and name not in NO_RIVALS]
    return {name: row["peers"][name]["tflops"] for name in names}


def ratios(row: dict[str, Any]) -> dict[str, float]:
    """Ours over the best rival, over cuDNN, over the better of cuDNN and FlashAttention-2; the aim over cuDNN; the
    estimate over the measured time; RMS error over FlashAttention-2's. What is unknown is absent."""
    found, others = {}, rivals(row)
    if others:
        found["best"] = row["tflops"] / max(others.values())
    base = [others[name] for name in ("flash", "cudnn") if name in others]
    if base:
        found["base"] = row["tflops"] / max(base)
    if "cudnn" in others:
        found["cudnn"] = row["tflops"] / others["cudnn"]
    known = known_peers().get(grid_cell(row["problem"]))
    if known:
        found["aim"] = AIM * known["best"] / known["cudnn"]
    if row.get("estimate_seconds"):
        found["estimate"] = row["estimate_seconds"] / row["seconds_median"]
    if row["rms_error"] and "flash" in row["peers"] and row["peers"]["flash"]["rms_error"]:
        found["rms"] = row["rms_error"] / row["peers"]["flash"]["rms_error"]
    return found


def table_head(peers: list[str]) -> str:
    columns = "".join(f"{name:>9s}" for name in ["ours", *peers])
    return f"{'TFLOP/s':38s}{columns}   /best       /cudnn  (aim)  estimate   rms/flash"


def cell_of(tflops: float | None) -> str:
    return "        -" if tflops is None else f"{tflops:9.1f}" if tflops >= 10 else f"{tflops:9.3f}"


def table_line(row: dict[str, Any], peers: list[str]) -> str:
    """`-` marks what was not measured, `<` what misses: 1.05 of the best, the aim over cuDNN, 25 % of the estimate."""
    if row["status"] != "ran":
        return f"{label(row['problem']):38s}  {row['status']}: {row['reason']}"
    found, others = ratios(row), rivals(row)
    columns = [row["tflops"], *(rate(row, name) for name in peers)]
    text = f"{label(row['problem']):38s}" + "".join(map(cell_of, columns))

    def cell(name: str, missed: bool) -> str:
        return f"{found[name]:6.3f}{'<' if missed else ' '}" if name in found else "     - "

    best = max(others, key=lambda name: others[name]) if others else ""
    text += f"  {cell('best', found.get('best', 2) < 1.05)}{best:6s}"
    text += f" {cell('cudnn', found.get('cudnn', 2) < found.get('aim', 0))}"
    text += f"({found['aim']:.3f})" if "aim" in found else "       "
    text += f" {cell('estimate', abs(found.get('estimate', 1) - 1) > 0.25)}  {cell('rms', False)}"
    for name in row["peers"]:
        if name not in PEERS:
            text += f"  {name} {row['peers'][name]['tflops']:.1f} ({row['tflops'] / row['peers'][name]['tflops']:.3f}x)"
    slow = [name for name, peer in row["peers"].items() if peer.get("eager")] + (["ours"] if row.get("eager") else [])
    return text.rstrip() + (f"  eager: {', '.join(slow)}" if slow else "")


def count(rows: list[dict[str, Any]], name: str, holds: Any) -> str:
    """How many rows hold, of those of which the ratio is known, and which do not."""
    known = [(row, ratios(row)) for row in rows]
    known = [(row, found) for row, found in known if name in found]
    missed = [row for row, found in known if not holds(found)]
    worst = f"; not: {', '.join(label(row['problem']).split(' ', 1)[1] for row in missed)}" if missed else ""
    return f"{len(known) - len(missed)} of {len(known)}{worst if len(missed) <= 6 else ''}"


def summary(rows: list[dict[str, Any]]) -> str:
    ran = [row for row in rows if row["status"] == "ran"]
    long = [row for row in ran if Problem(row["problem"]).seqlen_q >= ESTIMATE_FROM]
    lines = [
        f"cells: {len(ran)} ran, {len(rows) - len(ran)} refused",
        f"at least 1.00 of the better of cuDNN and FlashAttention-2: {count(ran, 'base', lambda r: r['base'] >= 1)}",
        f"at least 1.05 of the best peer: {count(ran, 'best', lambda r: r['best'] >= 1.05)}",
        f"at least 1.00 of the best peer: {count(ran, 'best', lambda r: r['best'] >= 1)}",
        f"ours / cuDNN reaches {AIM} of what the best peer had: "
        f"{count([row for row in ran if 'aim' in ratios(row)], 'cudnn', lambda r: r['cudnn'] >= r['aim'])}",
        f"estimate within 25 % from N {ESTIMATE_FROM} on: "
        f"{count(long, 'estimate', lambda r: abs(r['estimate'] - 1) <= 0.25)}",
    ]
    errors = [found["rms"] for found in map(ratios, ran) if "rms" in found]
    if errors:
        lines.append(f"RMS error at most {max(errors):.3f} of FlashAttention-2's")
    hosts = sorted(row["host_seconds"] for row in ran if row["host_seconds"])
    if hosts:
        lines.append(f"host time of a run: median {hosts[len(hosts) // 2] * 1e6:.1f} us, at most {hosts[-1] * 1e6:.1f}")
    return "\n".join(lines + shares(ran))


def shares(ran: list[dict[str, Any]]) -> list[str]:
    """Rates per useful FLOP of GQA, packed and window cells over that of a dense cell of the same run and head dim, in
    the free order of additions."""
    ran = [row for row in ran if "deterministic" not in row["problem"].split()]
    dense = {grid_cell(row["problem"]): row["tflops"] for row in ran}
    lines = []
    for row in ran:
        p = Problem(row["problem"])
        kind = (
            ("GQA", 4096, 0.95)
            if p.heads_q != p.heads_kv
            else ("packed", 4096, 0.85)
            if "packed" in row["problem"].split()
            else ("window", 16384, 0.75)
            if p.left >= 0
            else None
        )
        beside = kind and dense.get((p.head_dim_qk, kind[1], True))
        if kind and beside:
            share = row["tflops"] / beside
            lines.append(f"{kind[0]} over dense causal N {kind[1]} d {p.head_dim_qk}: {share:.3f} (aim {kind[2]})")
    return lines


def short_table(data: dict[str, Any]) -> str:
    """The lines and the summary of a result file."""
    rows = data["rows"]
    names = [name for name in PEERS if any(name in row["peers"] for row in rows)]
    return "\n".join([table_head(names), *(table_line(row, names) for row in rows), summary(rows)])


def draw(data: dict[str, Any], picture: str) -> None:
    """TFLOP/s over N, a panel a head dim and mask; grid cells alone."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels: dict[tuple[int, bool], list[dict[str, Any]]] = {}
    for row in data["rows"]:
        problem = Problem(row["problem"])
        if row["status"] != "ran" or "deterministic" in row["problem"].split():
            continue
        if problem.heads_q != problem.heads_kv or problem.left >= 0 or "packed" in row["problem"].split():
            continue
        row["length"] = problem.seqlen_q
        panels.setdefault((problem.head_dim_qk, problem.right == 0), []).append(row)
    if not panels:
        raise ValueError("no cell of the grid that ran")
    dims = sorted({dim for dim, _ in panels})
    figure, axes = plt.subplots(2, len(dims), figsize=(4.2 * len(dims), 6.4), squeeze=False, sharex=True)
    for (dim, causal), rows in panels.items():
        rows.sort(key=lambda row: row["length"])
        axis = axes[int(causal)][dims.index(dim)]
        lengths = [row["length"] for row in rows]
        axis.plot(lengths, [row["tflops"] for row in rows], "o-", color="black", label=rows[0]["kernel"])
        others = [name for name in rows[0]["peers"] if name not in PEERS]  # rows of ours
        for name in [*PEERS, *others]:
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
    kind, dtype = data["rows"][0]["problem"].split()[:2]
    kind = "backward" if kind == "bwd" else "forward"
    figure.suptitle(f"{data['device']}, {dtype} {kind}, 16k tokens, hidden 2048 ({data['date']})")
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    figure.savefig(picture, dpi=110)
