"""The suite `fp8` of python -m tessera.bench: attention on e4m3 operands, beside bf16 and FlashAttention-3's e4m3.

One bfloat16 case a cell, of which tessera.quantize makes the operands: q and k rotated by one seed, scales by head, v
by rows and once more in the order that Hopper's tensor cores read (v_order 1). A row of the result file is ours on v by
rows; beside it, as peers, ours on v_order 1 (`v_order`), our row on bfloat16 (by its name), cuDNN's on bfloat16 and
FlashAttention-3's on the same e4m3 tensors and scales. `quantise_seconds` is what making q, k and v of v_order 1 takes.
Errors are against float64 on the bfloat16 tensors.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any, Callable

import torch

from . import Problem, _c, attention, plan, quantize
from . import _bench_peers as peers
from ._bench_case import Case, Runner
from ._bench_output import BadInput
from ._bench_report import label, rate
from .fp8_accuracy import pinned

KERNEL = "cuda.sm90.forward_fp8"
ORDERED, QUANTISE = "v_order", "quantise"
SEED = 1
Call = Callable[[], Any]


def suite(dtype: str) -> list[str]:
    """The grid of the forward suite, of the e4m3 that `dtype` becomes."""
    return [
        f"fwd e4m3 b{16384 // length} hq{2048 // dim} sq{length} d{dim}{mask} cuda"
        for dim in (64, 128, 256)
        for length in (512, 1024, 2048, 4096, 8192, 16384)
        for mask in ("", " causal")
    ]


class Fp8Case(Case):
    """A cell: the bfloat16 case of the same shape, and what the quantiser makes of it."""

    WORDS = ("dv", "causal")
    TYPES = (_c.E4M3,)
    KIND = "a dense e4m3 problem forward, full or causal, hkv = hq"

    def __init__(self, text: str, dtype: str):
        self.problem = self.taken(text)
        self.case = Case(text.replace("e4m3", dtype, 1))
        self.q, self.k, self.v, self.ordered = self.quantise(0) + self.quantise(1)[2:]

    @classmethod
    def taken(cls, text: str) -> Problem:
        p = super().taken(text)
        if p.heads_q != p.heads_kv:
            raise BadInput(f"'hkv{p.heads_kv}' in {text!r}: expected {cls.KIND}")
        return p

    def quantise(self, order: int) -> tuple[Any, Any, Any]:
        c = self.case
        return quantize(c.q, rotate=SEED), quantize(c.k, rotate=SEED), quantize(c.v, order=order)

    def arguments(self, v: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        scales = {"q_scale": self.q.scale, "k_scale": self.k.scale, "v_scale": v.scale}
        order = int(v is self.ordered)
        return (self.q.data, self.k.data, v.data), {**scales, "v_order": order, "causal": self.case.causal}

    def call(self, v: Any, kernel: str) -> Call:
        tensors, options = self.arguments(v)

        def run() -> torch.Tensor:
            with pinned(kernel):
                return attention(*tensors, **options)

        return run

    def plan(self, kernel: str) -> Any:
        tensors, options = self.arguments(self.v)
        with pinned(kernel):
            return plan(*tensors, **options)

    def make(self) -> tuple[torch.Tensor, ...]:
        return tuple(one.scale for one in self.quantise(1))

    def fa3(self) -> Call:
        module = peers.installed("fa3_fwd_interface")
        if peers.installed("fa3_fwd_config").CONFIG["build_flags"].get("FLASHATTENTION_DISABLE_FP8"):
            raise peers.Refused("built without e4m3")
        q, k, v = self.q, self.k, self.v
        # One a sequence and key head.
        scales = {f"{name}_descale": one.scale[:, 0].contiguous() for name, one in (("q", q), ("k", k), ("v", v))}
        return lambda: module.flash_attn_func(q.data, k.data, v.data, causal=self.case.causal, **scales)

    def calls(self, kernel: str, names: list[str]) -> tuple[dict[str, Call], dict[str, str]]:
        """What is timed, ours on v by rows first, and why the rest is not."""
        makers: dict[str, Callable[[], dict[str, Call]]] = {
            kernel: lambda: {"": self.call(self.v, kernel)},
            ORDERED: lambda: {"": self.call(self.ordered, kernel)},
            QUANTISE: lambda: {"": self.make},
            "bf16": lambda: {"": Runner(self.case)},
            "cudnn": lambda: peers.cudnn(self.case),
            "fa3": lambda: {"": self.fa3()},
        }
        calls: dict[str, Call] = {}
        refused: dict[str, str] = {}
        for name, make in makers.items():
            if name in peers.PEERS and name not in names:
                continue
            try:
                for variant, call in make().items():
                    call()
                    calls[f"{name} {variant}".strip()] = call
            except Exception as error:  # a peer may throw anything; the bench goes on and says so
                refused[name] = peers.first_line(error) or type(error).__name__
        return calls, refused


def measure(text: str, options: argparse.Namespace, sample: Any) -> tuple[dict[str, Any], dict[str, str]]:
    kernel = options.kernel[0] if options.kernel else KERNEL
    cell = Fp8Case(text, options.dtype)
    calls, refused = cell.calls(kernel, options.peers)
    row: dict[str, Any] = {"problem": str(cell.problem), "kernel": kernel, "baseline": False, "peers": {}}
    row["quantise_seconds"] = None
    if kernel not in calls:
        return {**row, "status": "refused", "reason": refused.pop(kernel)}, refused
    reference = None if options.no_errors else cell.case.exact(min(2, cell.problem.heads_q))
    flops, quantise_seconds = cell.case.flops(), None
    figures: dict[str, dict[str, Any]] = {}
    for one in sample(calls, cell.case, options):
        median = statistics.median(one.seconds)
        if one.name == QUANTISE:
            quantise_seconds = median
            continue
        name, _, variant = one.name.partition(" ")
        rms = None if reference is None else cell.case.rms_error(one.out, reference)
        found = {"seconds_median": median, "tflops": flops / median * 1e-12, "rms_error": rms}
        found.update({key: value for key, value in (("variant", variant), ("eager", one.eager)) if value})
        name = calls[one.name].plan.kernel if name == "bf16" else name  # type: ignore[attr-defined]
        if name not in figures or median < figures[name]["seconds_median"]:
            figures[name] = found
    own = figures.pop(kernel)
    explained = cell.plan(kernel).explain(json=True)
    row.update(status="ran", reason="", **own, flops=flops, quantise_seconds=quantise_seconds, host_seconds=None)
    row.update(estimate_seconds=explained.get("estimate_seconds"), peers=figures)
    return row, refused


def table_head(names: list[str]) -> str:
    columns = "".join(f"{name:>9s}" for name in ["by rows", ORDERED, "quantise", "bf16", *names])
    return f"{'TFLOP/s, quantise: us':34s}{columns}   /fa3  v_order + quantise   rms error, fa3's"


def table_line(row: dict[str, Any], names: list[str]) -> str:
    """`/fa3`: of the faster order of v. `v_order + quantise`: both together, from bfloat16 tensors to o."""
    text = f"{label(row['problem']):34s}"
    if row["status"] != "ran":
        return f"{text}  {row['status']}: {row['reason']}"

    def cell(value: float | None, width: int = 9) -> str:
        return "-".rjust(width) if value is None else f"{value:{width}.1f}"

    def error(value: float | None) -> str:
        return "-" if value is None else f"{value:.2e}"

    ordered, seconds = row["peers"].get(ORDERED), row["quantise_seconds"]
    wide = next((name for name in row["peers"] if name not in (ORDERED, *peers.PEERS)), "")
    text += cell(row["tflops"]) + cell(rate(row, ORDERED)) + cell(seconds and seconds * 1e6) + cell(rate(row, wide))
    text += "".join(cell(rate(row, name)) for name in names)
    fa3 = row["peers"].get("fa3")
    best = max(row["tflops"], rate(row, ORDERED) or 0)
    text += f"{best / fa3['tflops']:7.3f}" if fa3 else "      -"
    both = row["flops"] / (ordered["seconds_median"] + seconds) * 1e-12 if ordered and seconds else None
    return text + f"{cell(both, 10)}           {error(row['rms_error'])} {error(fa3 and fa3['rms_error'])}"


def short_table(results: dict[str, Any]) -> str:
    """The lines of a result file."""
    rows = results["rows"]
    names = [name for name in ("cudnn", "fa3") if any(name in row["peers"] for row in rows)]
    return "\n".join([table_head(names), *(table_line(row, names) for row in rows)])


def main(options: argparse.Namespace, results: dict[str, Any], sample: Any) -> int:
    """Every cell as it is measured, and the result file after each."""
    names = [name for name in ("cudnn", "fa3") if name in options.peers]
    print(table_head(names), flush=True)
    told = set()
    for text in options.problems:
        row, refused = measure(text, options, sample)
        results["rows"].append(row)
        for name, reason in refused.items():
            if (name, reason) not in told:
                told.add((name, reason))
                print(f"  {name} left out: {reason} (first at {text})", flush=True)
        print(table_line(row, names), flush=True)
        torch.cuda.empty_cache()
        if options.out:
            Path(options.out).write_text(json.dumps(results, indent=1) + "\n")
    return 0
