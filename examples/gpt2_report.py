"""What train_gpt2.py says of its measurements: how far curves and gradients lie apart, the checks, tables, a picture.

Two correct attentions give different losses, since rounding differs and training carries every difference on. How far
is chance, and measured in the same run, on the same batches: the spread is the largest distance of any two curves of
other, correct attentions: torch's own and the textbook at our precision, the textbook in float32, and that once more
with its sums in another order. Ours may lie FACTOR times the spread from the float32 textbook, and SLACK of the loss,
as in the library's tests. Two distances are held to that.

At the end: means of windows over the last third, which a lasting difference moves and chance cancels in.
Step by step: the RMS of a window's differences, each window beside its own spread, since chance grows while training
goes on: in bench/results/h200-training.json from 0.0005 nats in the first ten steps to about 0.02 after thirty. What is
wrong from the start shows early; by one spread for all windows it would drown in the late ones. The verdict is the
worst third of the curve, of each the RMS over its windows of distance over bound: one window is chance, a third is not.

Whether that tells a wrong attention from a right one is part of the run: ours without the gradients of q and k, the
control, must lie farther, step by step. (At the end it need not: in the file named above it did not, after 120 steps.)
Loss still says little of small errors, so gradients are held to the others' errors beside the textbook in float64, q's,
k's and v's of each layer alone.
"""

from __future__ import annotations

import itertools
import json
import math
import pathlib
from typing import Any

FACTOR = 2.0
SLACK = {"float32": 2e-6, "bfloat16": 1e-5}  # of the loss; the tests' terms for these types
WINDOW = 10  # steps; their losses are averaged where curves are compared at the end
OURS, REFERENCE, CONTROL = "tessera", "textbook f32", "tessera, dv alone"


def tail(losses: list[float]) -> list[float]:
    """The last third of a curve, averaged over windows."""
    last = losses[len(losses) - max(1, len(losses) // (3 * WINDOW)) * WINDOW :]
    return [sum(last[i : i + WINDOW]) / WINDOW for i in range(0, len(last), WINDOW)]


def distance(losses: list[float], reference: list[float]) -> float:
    """Mean |difference| of two curves' windows over their last third, in nats; not finite where a loss is not."""
    pairs = list(zip(tail(losses), tail(reference)))
    return sum(abs(a - b) for a, b in pairs) / len(pairs)


def rms(values: list[float]) -> float:
    return math.sqrt(sum(x * x for x in values) / len(values))


def window_distances(losses: list[float], reference: list[float]) -> list[float]:
    """RMS differences of whole windows from the first step on, in nats; NaN where a loss is no number."""
    differences = [a - b for a, b in zip(losses, reference)]
    return [rms(differences[i : i + WINDOW]) for i in range(0, len(differences) - WINDOW + 1, WINDOW)]


def worst_third(shares: list[float]) -> float:
    """Of windows' shares of their bounds: the RMS over each third of the curve, the largest of the three."""
    third = max(1, len(shares) // 3)
    parts = [rms(part) for part in (shares[:third], shares[third:-third], shares[-third:]) if part]
    return math.nan if any(map(math.isnan, parts)) else max(parts)


def check(name: str, value: float, bound: float, below: bool = True) -> dict[str, Any]:
    """A check that passes where value <= bound, or with `below` false where value > bound; never on NaN."""
    passed = value <= bound if below else value > bound
    expected = "at most" if below else "more than"
    return {"check": name, "value": value, "expected": expected, "bound": bound, "passed": bool(passed)}


def curve_checks(curves: dict[str, list[float]], entropy: float, dtype: str) -> list[dict[str, Any]]:
    reference = curves[REFERENCE]
    correct = [losses for name, losses in curves.items() if name not in (OURS, CONTROL)]
    pairs = list(itertools.combinations(correct, 2))
    end = tail(curves[REFERENCE])[-1]
    bound = FACTOR * max(distance(a, b) for a, b in pairs) + SLACK[dtype] * max(1.0, end)
    spreads = [max(found) for found in zip(*(window_distances(a, b) for a, b in pairs))]
    levels = [max(1.0, sum(reference[i * WINDOW : (i + 1) * WINDOW]) / WINDOW) for i in range(len(spreads))]
    bounds = [FACTOR * spread + SLACK[dtype] * level for spread, level in zip(spreads, levels)]

    def share(name: str) -> float:
        return worst_third([a / b for a, b in zip(window_distances(curves[name], reference), bounds)])

    return [
        check("loss of the last steps, nats, beside the entropy of single bytes", tail(curves[OURS])[-1], entropy),
        check("loss apart from the float32 textbook's, nats", distance(curves[OURS], reference), bound),
        check("the same step by step, over its bound, worst third", share(OURS), 1.0),
        check("the same of the control, without dq and dk", share(CONTROL), 1.0, below=False),
    ]


def gradient_checks(errors: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    """Of errors beside float64, by attention and by part of the weights: the worst part's share of the bound."""
    peers = [parts for name, parts in errors.items() if name not in (OURS, CONTROL)]

    def worst(name: str) -> float:
        bounds = {part: max(FACTOR * max(peer[part] for peer in peers), 1e-30) for part in errors[name]}
        shares = [error / bounds[part] for part, error in errors[name].items()]
        return math.nan if any(map(math.isnan, shares)) else max(shares)

    return [
        check("error of the weights' gradients over its bound, worst layer", worst(OURS), 1.0),
        check("the same of the control", worst(CONTROL), 1.0, below=False),
    ]


def check_lines(checks: list[dict[str, Any]]) -> str:
    return "\n".join(
        f"{'ok  ' if one['passed'] else 'FAIL'} {one['check']}: {one['value']:.4g}, expected {one['expected']} "
        f"{one['bound']:.4g}"
        for one in checks
    )


def curve_table(curves: dict[str, list[float]]) -> str:
    """Losses at some steps, averaged over the window that ends there, and the distance from the reference."""
    steps = len(curves[REFERENCE])
    ends = sorted({max(WINDOW, steps * part // 6) for part in range(1, 7)})
    lines = [f"{'loss at step':22s}{1:>9d}" + "".join(f"{end:9d}" for end in ends) + "   apart, nats"]
    for name, losses in curves.items():
        means = [losses[0], *(sum(losses[end - WINDOW : end]) / WINDOW for end in ends)]
        apart = distance(losses, curves[REFERENCE])
        lines.append(f"{name:22s}" + "".join(f"{x:9.4f}" for x in means) + f"{apart:14.2e}")
    return "\n".join(lines)


def gradient_table(errors: dict[str, dict[str, float]]) -> str:
    lines = [f"{'relative error of':22s}{'q':>10s}{'k':>10s}{'v':>10s}   weights' gradients, the worst layer of each"]
    for name, parts in errors.items():
        worst = [max(error for part, error in parts.items() if part.endswith(kind)) for kind in ("q", "k", "v")]
        lines.append(f"{name:22s}" + "".join(f"{x:10.2e}" for x in worst))
    return "\n".join(lines)


def step_head() -> str:
    return f"{'context':>8s}{'batch':>7s}  {'attention':12s}{'ms a step':>11s}{'tokens/s':>11s}{'peak GiB':>10s}"


def step_line(context: int, batch: int, name: str, cell: dict[str, Any]) -> str:
    head = f"{context:8d}{batch:7d}  {name:12s}"
    if cell["status"] != "ran":
        return f"{head} {cell['status']}: {cell['reason']}"
    memory = "-" if cell["peak_bytes"] is None else f"{cell['peak_bytes'] / 2**30:.2f}"
    return f"{head}{cell['seconds_median'] * 1e3:11.2f}{cell['tokens_per_s']:11.0f}{memory:>10s}"


def draw(results_file: str, picture: str) -> None:
    """Loss, its difference from the float32 textbook's, and step time and memory over the context, of a result file."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    results = json.loads(pathlib.Path(results_file).read_text())
    figure, axes = plt.subplots(2, 2, figsize=(11, 7.4))
    curves = results["curves"]
    for name, losses in curves.items():
        windows = len(losses) // WINDOW
        x = [(i + 0.5) * WINDOW for i in range(windows)]

        def means(values, windows=windows):
            return [sum(values[i * WINDOW : (i + 1) * WINDOW]) / WINDOW for i in range(windows)]

        style = {OURS: "k-", REFERENCE: "C3--", CONTROL: "C7:"}.get(name, "-")
        axes[0][0].plot(x, means(losses), style, label=name, linewidth=1.2)
        if name != REFERENCE:
            apart = [abs(a - b) or math.nan for a, b in zip(means(losses), means(curves[REFERENCE]))]  # 0 has no log
            axes[0][1].plot(x, apart, style, label=name, linewidth=1.2)
    axes[0][0].set(title="loss, nats", xlabel="step")
    axes[0][1].set(title=f"|loss - {REFERENCE}|, nats", xlabel="step", yscale="log")
    cells: dict[str, list[tuple[int, float, float | None]]] = {}
    for row in results["rows"]:
        for name, cell in {OURS: row, **row["peers"]}.items():
            if cell["status"] == "ran":
                cells.setdefault(name, []).append((row["context"], cell["seconds_median"] * 1e3, cell["peak_bytes"]))
    for name, points in cells.items():
        style = "ko-" if name == OURS else ".--"
        lengths = [point[0] for point in points]
        axes[1][0].plot(lengths, [point[1] for point in points], style, label=name)
        if points[0][2] is not None:
            axes[1][1].plot(lengths, [point[2] / 2**30 for point in points], style, label=name)
    axes[1][0].set(title="milliseconds a step", xlabel="context")
    axes[1][1].set(title="peak memory, GiB", xlabel="context")
    for axis in axes.flat:
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8) if axis.lines else axis.set_visible(False)
    for axis in axes[1]:
        axis.set_ylim(bottom=0)
        axis.set_xticks([row["context"] for row in results["rows"]])
    figure.suptitle(f"{results['model']['name']}, {results['device']} ({results['date']})")
    figure.tight_layout()
    figure.savefig(picture, dpi=110)
    plt.close(figure)
