"""The suite `ablations` of python -m tessera.bench: what each step of FlashAttention-2 and -3 gives, by our own kernels
with that step taken back, beside the full kernel, in one process on the same tensors. The rows are in a library that
was built with -DTESSERA_ABLATIONS=ON; each is the full kernel's source under another switch.

The result file also has what the device reads of its shared and of its device memory a second.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from . import Plan
from ._bench_case import Baselines, Case, Runner
from ._bench_output import BadInput
from ._bench_report import label

# The full kernels, and what their ablations take back, in the order of the tables.
ABLATIONS = {
    "cuda.sm90.forward": (
        "no_pingpong",
        "no_overlap",
        "no_pingpong_no_overlap",
        "other_rescale",
        "no_producer",
        "one_tile",
    ),
    "cuda.sm80.forward": ("one_block_a_head", "normalised", "keys_over_warps"),
}


def kernels() -> list[str]:
    return [name for full, steps in ABLATIONS.items() for name in (full, *(f"{full}.{step}" for step in steps))]


def check(text: str) -> None:
    """BadInput, where no ablation takes the problem."""
    problem, refused = Case.taken(text), []
    for name in (name for name in kernels() if name not in ABLATIONS):
        problem.kernel = name
        try:
            Plan(problem)
            return
        except NotImplementedError as error:
            refused.append(str(error).splitlines()[0])
    raise BadInput(
        f"{text!r}: no ablation runs, expected a library built with -DTESSERA_ABLATIONS=ON and a problem that they "
        f"take ({'; '.join(dict.fromkeys(refused))})"
    )


def measure(text: str, options: argparse.Namespace, sample: Any) -> dict[str, Any]:
    case = Case(text)
    calls: dict[str, Any] = {}
    refused: dict[str, str] = {}
    for name in kernels():
        try:
            calls[name] = Runner(case, name)
        except NotImplementedError as error:
            refused[name] = str(error).splitlines()[0]
    reference = None if options.no_errors or not calls else case.exact(1)
    flops = case.flops()
    rows = {}
    for one in sample(calls, case, options):
        median = statistics.median(one.seconds)
        rows[one.name] = {
            "seconds_median": median,
            "seconds_min": min(one.seconds),
            "seconds_max": max(one.seconds),
            "samples": len(one.seconds),
            "tflops": flops / median * 1e-12,
            "tile": [calls[one.name].plan.explain(json=True)[key] for key in ("tile_m", "tile_n")],
            "rms_error": None if reference is None else case.rms_error(one.out, reference),
        }
    return {"problem": str(case.problem), "flops": flops, "rows": rows, "refused": refused}


def lines_of(cell: dict[str, Any]) -> list[str]:
    """A cell's line, and of each row its time and that over the full kernel's."""
    lines, rows = [label(cell["problem"])], cell["rows"]
    for name, row in rows.items():
        full = next((rows[one] for one in ABLATIONS if name.startswith(one) and one in rows), None)
        ratio = f"{row['seconds_median'] / full['seconds_median']:7.3f} of the full kernel's time" if full else ""
        error = "" if row["rms_error"] is None else f"  rms {row['rms_error']:.2e}"
        lines.append(f"  {name:42s}{row['seconds_median'] * 1e6:10.1f} us{row['tflops']:8.1f} TFLOP/s{ratio}{error}")
    return lines + [f"  {name:42s}left out: {reason}" for name, reason in cell["refused"].items()]


def bandwidth_line(results: dict[str, Any]) -> str:
    shared, device = results["shared_bytes_per_s"], results["read_bytes_per_s"]
    rates = f"shared memory {shared * 1e-12:.2f} TB/s, device memory {device * 1e-12:.2f}"
    return f"read probes: {rates}, {shared / device:.1f} to 1"


def short_table(results: dict[str, Any]) -> str:
    lines = [line for cell in results["rows"] for line in lines_of(cell)]
    return "\n".join(([bandwidth_line(results)] if "shared_bytes_per_s" in results else []) + lines)


def main(options: argparse.Namespace, baselines: Baselines | None, results: dict[str, Any], sample: Any) -> int:
    """Both bandwidths, then every cell as it is measured, and the result file after each."""
    for text in options.problems:
        check(text)
    begin = time.perf_counter()
    results["suite"] = "ablations"
    if baselines is not None:
        results["shared_bytes_per_s"], results["read_bytes_per_s"] = baselines.bandwidth()
        print(bandwidth_line(results), flush=True)
    for text in options.problems:
        cell = measure(text, options, sample)
        results["rows"].append(cell)
        print("\n".join(lines_of(cell)), flush=True)
        torch.cuda.empty_cache()
        if options.out:
            Path(options.out).write_text(json.dumps(results, indent=1) + "\n")
    print(f"{len(results['rows'])} cells in {time.perf_counter() - begin:.0f} s")
    return 0
