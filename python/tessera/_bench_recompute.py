"""The suite `recompute` of python -m tessera.bench: attention's forward and backward pass as one step, by recomputation
beside the textbook, which keeps S and P in device memory. Recomputation does more FLOPs, moves fewer bytes and needs
O(N) memory; the suite sets times and memory as measured beside FLOPs and bytes of a model.

The model. A product of N x N by d is 2 N^2 d FLOPs. The textbook does six of them (S, o, dV, dP, dQ, dK) on all pairs,
masked or not; recomputation seven (S a second time) on the pairs that the mask keeps. Each kernel reads and writes each
of its operands once, in device memory: what a kernel reads again comes from a cache.

textbook   a pair of query and key: S and dP written and read in 4 bytes, P written once and read three times, dS
           written once and read twice in 2: 30 bytes. Then the operands of six products and of delta, in 2 bytes.
recompute  forward q, k, v, o, lse; backward o, d_o, lse, delta and the float32 sums of dq zeroed; then q, k, v, d_o,
           lse, delta, the sums read and written, dk, dv; then the sums read and dq written. Nothing a pair.

The step of the textbook is cuda.textbook.step of libtessera_baselines.so: one run, P kept between the passes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any, Callable, NamedTuple

import torch

from . import Problem, _c
from . import _bench_ncu as ncu
from ._bench_backward import BackwardCase, BackwardRunner, BackwardTextbook, Gradients, bind_gradients
from ._bench_case import FREE_WORDS, Baselines
from ._bench_output import Parser, ended

TEXTBOOK = "textbook"
NCU_SECONDS = 60


def suite(dtype: str) -> list[str]:
    return [f"bwd {dtype} b4 hq16 sq{length} d{dim} cuda" for dim in (64, 128) for length in (1024, 2048, 4096, 8192)]


class Work(NamedTuple):
    """Of a forward and a backward pass: FLOPs, and bytes of device memory traffic."""

    flops: int
    bytes: int


def kept_pairs(p: Problem) -> int:
    """Pairs of a query and a key that it sees, in one head of one sequence; dense, bottom-right."""
    pairs = 0
    for row in range(p.seqlen_k - p.seqlen_q, p.seqlen_k):
        end = p.seqlen_k if p.right < 0 else min(p.seqlen_k, row + p.right + 1)
        pairs += max(0, end - (0 if p.left < 0 else max(0, row - p.left)))
    return pairs


def textbook_work(p: Problem) -> Work:
    d, dv, heads = p.head_dim_qk, p.head_dim_v, p.batch * p.heads_q
    rows_q, rows_k, pairs = heads * p.seqlen_q, p.batch * p.heads_kv * p.seqlen_k, heads * p.seqlen_q * p.seqlen_k
    moved = 30 * pairs + 2 * rows_q * (3 * d + 5 * dv) + 2 * rows_k * (3 * d + 3 * dv)
    moved += 12 * rows_q  # lse written, delta written and read
    if p.heads_q > p.heads_kv:  # float32 sums of each query head's dk and dv
        moved += 8 * heads * p.seqlen_k * (d + dv)
    return Work(2 * pairs * (3 * d + 3 * dv), moved)


def recompute_work(p: Problem) -> Work:
    d, dv, heads = p.head_dim_qk, p.head_dim_v, p.batch * p.heads_q
    rows_q, rows_k = heads * p.seqlen_q, p.batch * p.heads_kv * p.seqlen_k
    moved = 2 * rows_q * (3 * d + 4 * dv) + 2 * rows_k * (3 * d + 3 * dv)
    moved += rows_q * (16 * d + 24)  # dq's sums written twice and read twice; lse four times, delta twice
    return Work(2 * heads * kept_pairs(p) * (4 * d + 3 * dv), moved)


class StepCase(BackwardCase):
    """A dense backward problem, as the models count."""

    WORDS = ("dv", "causal", "window=", *FREE_WORDS)
    KIND = "a dense f16, bf16 or f32 problem backward, full, causal or window=n,0"


class Step:
    """Our forward and backward pass on one stream, o and lse between them. `kernel` pins the backward row."""

    def __init__(self, case: BackwardCase, kernel: str = ""):
        self.forward, self.backward = case.forward, BackwardRunner(case, kernel)
        # Their workspaces are used one after the other.
        self.workspace_bytes = max(self.forward.workspace_bytes, self.backward.workspace_bytes)

    def __call__(self) -> Gradients:
        self.forward()
        return self.backward()  # type: ignore[no-any-return]


class TextbookStep(BackwardTextbook):
    """Both passes of cuda.textbook in one run, with o and lse of its own."""

    kernel = "cuda.textbook.step"

    def bind(self) -> tuple[Gradients, _c.Tensors]:
        self.o, self.lse = self.case.outputs()
        return bind_gradients(self.case, self.o, self.lse)


Calls = dict[str, Callable[[], Gradients]]


def steps_of(case: BackwardCase, kernels: list[str], baselines: Baselines | None) -> tuple[Calls, dict[str, str]]:
    """The steps that run on a case by name, ours first, and why the others do not."""
    calls: Calls = {}
    refused: dict[str, str] = {}
    for kernel in kernels or [""]:
        try:
            step = Step(case, kernel)
            calls[step.backward.plan.kernel] = step
        except NotImplementedError as error:
            refused[kernel or "tessera"] = str(error)
    try:
        if baselines is None:
            raise RuntimeError("libtessera_baselines.so was not loaded")
        calls[TEXTBOOK] = TextbookStep(baselines, case)
    except RuntimeError as error:  # torch's out of memory is one
        refused[TEXTBOOK] = str(error).splitlines()[0]
    return calls, refused


def models_of(p: Problem) -> dict[str, Any]:
    return {TEXTBOOK: textbook_work(p)._asdict(), "recompute": recompute_work(p)._asdict()}


def measure(text: str, options: argparse.Namespace, baselines: Baselines | None, sample: Any) -> dict[str, Any]:
    case = StepCase(text)
    calls, refused = steps_of(case, options.kernel, baselines)
    row: dict[str, Any] = {"problem": str(case.problem), "model": models_of(case.problem), "steps": {}}
    reference = None if options.no_errors else case.exact(1)
    for one in sample(calls, case, options):
        row["steps"][one.name] = {
            "seconds_median": statistics.median(one.seconds),
            "seconds_min": min(one.seconds),
            "seconds_max": max(one.seconds),
            "samples": len(one.seconds),
            "extra_bytes": one.memory + case.lse.numel() * 4,
            "rms_error": None if reference is None else case.rms_error(one.out, reference),
            **({"eager": one.eager} if one.eager else {}),
        }
    return {**row, "refused": refused}


HEAD = (
    f"{'textbook / recompute / ratio':36s}{'GFLOP':>22s}{'model GB':>22s}{'measured ms':>26s}{'extra MiB':>26s}"
    f"  {'RMS':>18s}"
)


def table_line(row: dict[str, Any], kernel: str | None = None) -> str:
    """One line of a cell, for `kernel` of ours (default: the first that ran)."""
    p, steps = Problem(row["problem"]), row.get("steps", {})
    ours = kernel or next((name for name in steps if name != TEXTBOOK), None)
    mask = "full" if p.left < 0 and p.right < 0 else "masked"
    model = row["model"]

    def pair(slow: float | None, fast: float | None, digits: int) -> str:
        known = slow is not None and fast is not None
        cells = [f"{x:.{digits}f}" if x is not None else "-" for x in (slow, fast)]
        return " ".join(cells) + (f" {slow / fast:7.2f}x" if known and fast else "       - ")  # type: ignore[operator]

    def measured(key: str, unit: float) -> list[float | None]:
        return [steps[name][key] / unit if name in steps else None for name in (TEXTBOOK, ours)]

    def modelled(key: str) -> list[float]:
        return [model[name][key] * 1e-9 for name in (TEXTBOOK, "recompute")]

    text = f"{row['problem'].split()[1]} b{p.batch} h{p.heads_q} N{p.seqlen_q} d{p.head_dim_qk} {mask}"
    text = f"{text:36s}{pair(*modelled('flops'), 0):>22s}{pair(*modelled('bytes'), 2):>22s}"
    text += f"{pair(*measured('seconds_median', 1e-3), 3):>26s}{pair(*measured('extra_bytes', 1 << 20), 1):>26s}"
    errors = [steps[name]["rms_error"] if name in steps else None for name in (TEXTBOOK, ours)]
    text += "  " + " ".join("-" if x is None else f"{x:.2e}" for x in errors)
    return f"{text}  {ours}" if ours else text


def model_table(problems: list[str]) -> str:
    """The table without what takes a device."""
    rows = [{"problem": text, "model": models_of(Problem(text))} for text in problems]
    return "\n".join([HEAD, *map(table_line, rows)])


def short_table(data: dict[str, Any]) -> str:
    """The lines of a result file, one for each row of ours in a cell."""
    return "\n".join([HEAD, *(line for row in data["rows"] for line in lines_of(row))])


def lines_of(row: dict[str, Any]) -> list[str]:
    return [table_line(row, kernel) for kernel in [name for name in row["steps"] if name != TEXTBOOK] or [None]]


def main(options: argparse.Namespace, baselines: Baselines | None, results: dict[str, Any], sample: Any) -> int:
    """Every cell as it is measured, and the result file after each."""
    print(HEAD, flush=True)
    for text in options.problems:
        row = measure(text, options, baselines, sample)
        results["rows"].append(row)
        print("\n".join(lines_of(row)), flush=True)
        for name, reason in row["refused"].items():
            print(f"  {name} left out: {reason}", flush=True)
        torch.cuda.empty_cache()
        if options.out:
            Path(options.out).write_text(json.dumps(results, indent=1) + "\n")
    return 0


def profile(text: str) -> int:
    """A step of each way, in the process that ncu profiles."""
    ncu.check([text], StepCase)
    torch.set_grad_enabled(False)
    calls, _ = steps_of(StepCase(text), [], Baselines.load())
    for name, call in calls.items():
        ncu.run_profiled([name], call)
    return 0


def print_bytes(text: str) -> int:
    """What a step of each way moves, as ncu counts it."""
    ncu.check([text], StepCase)
    ncu.installed()
    try:
        counts = ncu.count_bytes("tessera._bench_recompute", ["--profile", text], NCU_SECONDS)
    except ValueError as error:
        print(f"bytes of device memory not counted: {error}")
        return 1
    print(f"bytes of device memory, {text}")
    for (name,), part in counts.items():
        read, written = part["read"] * 1e-9, part["written"] * 1e-9
        total = f"{read + written:.3f} GB in {part['kernels']} kernels"
        print(f"  {name}: {read:.3f} GB read, {written:.3f} GB written, {total}")
    return 0 if counts else 1


def main_of_module(arguments: list[str] | None = None) -> int:
    parser = Parser("tessera._bench_recompute", "Bytes of device memory that a step of a problem moves, as ncu counts.")
    parser.add_argument("problem", metavar="PROBLEM")
    parser.add_argument("--profile", action="store_true", help="the steps themselves, for the profiler")
    options = parser.parse_args(arguments)
    return ended(parser.prog, lambda: (profile if options.profile else print_bytes)(options.problem))


if __name__ == "__main__":
    sys.exit(main_of_module())
