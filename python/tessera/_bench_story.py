"""The suite `story` of python -m tessera.bench: what each step from the textbook to today's schedules gave, measured on
one machine with the same instructions where they allow it.

textbook  S and P whole in memory, two products of a BLAS around a softmax (cuda.textbook, cpu.textbook)
fa1       FlashAttention-1's schedule: K and V outside, Q inside, O, l and m rewritten for each block of keys
          (cuda.fa1, cpu.fa1; tiles for 64 KiB on chip, beside them 32, 128 and 200 on some cells)
fa2       Q outside, O in registers, blocks of queries over the device (cuda.sm80.forward; the CPU's best row)
fa3       TMA, wgmma, producer and consumer warps (cuda.sm90.forward)

Tables: `wide`, many heads, where fa1's one block a (batch, head) fills the device; `grid`, as many tokens at every
length, where few long sequences leave it idle; `narrow`, one sequence, for the length from which on tiles win. A row
has time, rate, memory beyond the output (workspace and lse) and bytes of memory by its model: the textbook's kernels
read and write each operand once (a pair of query and key: S 4 + 4 bytes, P 2 + 2, in f32 4 + 4), the others' explain
has theirs. With --ncu also as the profiler counts them (dram__bytes). N^2 d^2 / M is the paper's count of accesses, M
the elements that the budget holds.

Without a CUDA device the same tables run on the CPU's rows in f32, smaller; every CPU of the affinity mask works.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable

import torch

from . import Problem
from . import _bench_ncu as ncu
from ._bench_case import DTYPES, Baselines, Case, Runner, Textbook
from ._bench_output import BadInput, Lacking, Parser, ended, read_results

TEXTBOOK = "textbook"
BUDGETS = {"fa1.32k": 32, "fa1": 64, "fa1.128k": 128, "fa1.200k": 200}  # KiB
BASELINES = (TEXTBOOK, *BUDGETS)  # rows of libtessera_baselines.so
PINS = {
    "cuda": {
        TEXTBOOK: "cuda.textbook",
        "fa1": "cuda.fa1",
        "fa2": "cuda.sm80.forward",
        "fa3": "cuda.sm90.forward",
    },
    "cpu": {TEXTBOOK: "cpu.textbook", "fa1": "cpu.fa1", "fa2": "cpu.*.forward"},
}
NCU_SECONDS = 110
MOST_TEXTBOOK_ROWS = 65536  # ncu takes seconds over what it launches, two products a sequence
FEWEST_CPU_ROUNDS = 5

Tables = dict[str, list[str]]


def backend() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def device_of(text: str) -> str:
    return "cuda" if Problem(text).device >= 0 else "cpu"


def tables(dtype: str, device: str) -> Tables:
    """The cells of each table."""
    cuda = device == "cuda"
    kind = f"fwd {dtype if cuda else 'f32'}"
    tokens, hidden = (16384, 2048) if cuda else (4096, 512)
    grid = (512, 1024, 2048, 4096, 8192, 16384) if cuda else (256, 512, 1024, 2048, 4096)
    wide, lengths = ("b64 hq16", (64, 128, 256, 512, 1024, 2048)) if cuda else ("b8 hq16", (64, 128, 256, 512, 1024))
    return {
        "wide": [f"{kind} {wide} sq{n} d64 {device}" for n in lengths],
        "grid": [f"{kind} b{tokens // n} hq{hidden // d} sq{n} d{d} {device}" for d in (64, 128) for n in grid],
        "narrow": [f"{kind} b1 hq{16 if cuda else 2} sq{n} d64 {device}" for n in (64, 128, 256, 512, 1024)],
    }


def suite(dtype: str) -> list[str]:
    return [text for cells in tables(dtype, backend()).values() for text in cells]


def table_of(text: str) -> str:
    """The table that a cell belongs to; `other` for one of none."""
    written = str(Problem(text))
    found = tables(text.split()[1], device_of(text)).items()
    return next((name for name, cells in found if written in (str(Problem(one)) for one in cells)), "other")


def has_budgets(text: str) -> bool:
    """Cells on which fa1 runs with every budget: enough heads for the device, several tiles."""
    table, length, long = table_of(text), Problem(text).seqlen_q, 512 if device_of(text) == "cuda" else 256
    return table == "wide" and length >= long or table == "grid" and length == 4 * long


def pins_of(text: str) -> dict[str, str]:
    pins = dict(PINS[device_of(text)])
    if has_budgets(text):
        pins.update({name: f"{pins['fa1']}{name[3:]}" for name in BUDGETS if name != "fa1"})
    return pins


def element_bytes(p: Problem) -> int:
    return DTYPES[p.q.dtype].itemsize


def textbook_bytes(p: Problem) -> int:
    """S written and read in 4 bytes, P written and read in the inputs' type, and the operands and lse once."""
    width, rows = element_bytes(p), p.heads_q * p.seqlen_q
    operands = (rows + p.heads_kv * p.seqlen_k) * (p.head_dim_qk + p.head_dim_v)
    return p.batch * ((8 + 2 * width) * rows * p.seqlen_k + width * operands + 4 * rows)


def paper_bytes(p: Problem, kib: int) -> float:
    """N^2 d^2 / M elements a head, M those of `kib` KiB, in bytes."""
    width = element_bytes(p)
    elements = p.seqlen_q * p.seqlen_k * p.head_dim_qk * p.head_dim_v / (kib * 1024 / width)
    return elements * width * p.batch * p.heads_q


def call_of(case: Case, name: str, pin: str, baselines: Baselines | None) -> Any:
    """The row on the case. NotImplementedError or RuntimeError where it refuses."""
    if name not in BASELINES:
        return Runner(case, pin)
    if baselines is None:
        raise RuntimeError("libtessera_baselines.so was not loaded")
    return Textbook(baselines, case, pin)


def explained(call: Any) -> dict[str, Any]:
    return dict(call.plan.explain(json=True) if isinstance(call, Runner) else call.explain())


Calls = dict[str, Callable[[], Any]]


def calls_of(case: Case, text: str, baselines: Baselines | None) -> tuple[Calls, dict[str, str]]:
    """The rows that run on a cell, and why the others do not."""
    calls: Calls = {}
    refused: dict[str, str] = {}
    for name, pin in pins_of(text).items():
        try:
            calls[name] = call_of(case, name, pin, baselines)
        except (NotImplementedError, RuntimeError) as error:  # torch's out of memory is one
            refused[name] = str(error).splitlines()[0]
    return calls, refused


def sample_cpu(calls: Calls, case: Case, options: argparse.Namespace) -> list[Any]:
    """Rounds over all calls in random order for about options.seconds, at least FEWEST_CPU_ROUNDS."""
    timed = [SimpleNamespace(name=n, seconds=[], memory=c.workspace_bytes, out=c()) for n, c in calls.items()]
    begin, rounds = time.perf_counter(), 0
    while rounds < FEWEST_CPU_ROUNDS or (rounds < options.rounds and time.perf_counter() - begin < options.seconds):
        for one in random.sample(timed, len(timed)):
            start = time.perf_counter()
            calls[one.name]()
            one.seconds.append(time.perf_counter() - start)
        rounds += 1
    return timed


def measure(text: str, options: argparse.Namespace, baselines: Baselines | None, sample: Any) -> dict[str, Any]:
    case = Case(text)
    calls, refused = calls_of(case, text, baselines)
    reference = None if options.no_errors else case.exact(1)
    flops, lse_bytes = case.flops(), 4 * case.q.numel() // case.problem.head_dim_qk
    rows: dict[str, Any] = {}
    for one in sample(calls, case, options) if case.device.type == "cuda" else sample_cpu(calls, case, options):
        plan, median = explained(calls[one.name]), statistics.median(one.seconds)
        rows[one.name] = {
            "kernel": plan["kernel"],
            "tile": [plan["tile_m"], plan["tile_n"]],
            "seconds_median": median,
            "seconds_min": min(one.seconds),
            "seconds_max": max(one.seconds),
            "samples": len(one.seconds),
            "tflops": flops / median * 1e-12,
            "extra_bytes": one.memory + lse_bytes,
            "model_bytes": textbook_bytes(case.problem) if one.name == TEXTBOOK else plan["schedule_bytes"],
            "rms_error": None if reference is None else case.rms_error(one.out, reference),
            **({"paper_bytes": paper_bytes(case.problem, BUDGETS[one.name])} if one.name in BUDGETS else {}),
        }
    problem = str(Problem(text))  # as result files have it, whatever words were left out
    return {"table": table_of(text), "problem": problem, "flops": flops, "rows": rows, "refused": refused}


def profile(cells: list[str]) -> int:
    """Each row of the cells once, in the process that ncu profiles."""
    ncu.check(cells, Case)
    torch.set_grad_enabled(False)
    baselines = Baselines.load()
    for text in cells:
        case = Case(text)
        for name, pin in pins_of(text).items():
            if name == TEXTBOOK and case.problem.batch * case.problem.seqlen_q > MOST_TEXTBOOK_ROWS:
                continue
            try:
                ncu.run_profiled([text, name], call_of(case, name, pin, baselines))
            except (NotImplementedError, RuntimeError):  # what refuses, or does not fit, does so before the marker
                continue
            torch.cuda.empty_cache()
    return 0


def add_counts(results: dict[str, Any], only: list[str], told: dict[str, Any]) -> bool:
    """The profiler's bytes of the long `wide` cells and of one length of the grid, where they were measured; whether
    there are any. `told`: the machine and the build that count, which need not be those of an earlier run's times."""
    wanted = {str(Problem(text)) for text in only}
    cells = [row["problem"] for row in results["rows"] if row["problem"] in wanted and has_budgets(row["problem"])]
    cells = [text for text in cells if Problem(text).seqlen_q >= 1024]
    try:
        if not cells:
            raise ValueError("no measured cell that ncu would count")
        counts = ncu.count_bytes("tessera._bench_story", cells, NCU_SECONDS)
        if not counts:
            raise ValueError("no row ran")
    except ValueError as error:
        print(f"bytes of device memory not counted: {error}")
        return False
    results["counted"] = {key: told[key] for key in ("device", "driver", "commit", "date") if key in told}
    for row in results["rows"]:
        for name, figures in row["rows"].items():
            if (row["problem"], name) in counts:
                figures["dram"] = counts[row["problem"], name]
    return True


def main(options: argparse.Namespace, baselines: Baselines | None, results: dict[str, Any], sample: Any) -> int:
    """Every cell as it is measured, the result file after each; then what ncu counts."""
    from . import _bench_story_report as report

    begin = time.perf_counter()
    out = Path(options.out) if options.out else None
    told = results
    if options.ncu == "only":
        if out is None or not out.is_file():
            raise BadInput(f"--ncu only adds to the file of --out: {options.out}, expected a result file that is there")
        results = read_results(options.out)
        if results.get("suite") != "story":
            raise BadInput(f"--out: {options.out!r}, expected a result file of --suite story")
        if told.get("device") != results.get("device"):
            raise BadInput(f"--out: {options.out!r} is of {results.get('device')!r}, expected {told.get('device')!r}")
    if options.ncu:
        if not torch.cuda.is_available():
            raise Lacking(f"--ncu {options.ncu}: torch sees no CUDA device")
        ncu.installed()
    if options.ncu != "only":
        results["suite"] = "story"
        if not torch.cuda.is_available():
            results["load_average"] = os.getloadavg()  # what others on the machine had to do
        for text in options.problems:
            row = measure(text, options, baselines, sample)
            results["rows"].append(row)
            print("\n".join(report.lines_of(row)), flush=True)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            if out is not None:
                out.write_text(json.dumps(results, indent=1) + "\n")
    counted = add_counts(results, options.problems, told) if options.ncu else True
    results["crossover"] = report.crossovers(results["rows"])
    if out is not None:
        out.write_text(json.dumps(results, indent=1) + "\n")
    print(report.summary(results))
    print(f"{len(results['rows'])} cells in {time.perf_counter() - begin:.0f} s")
    return 0 if counted else 1


def main_of_module(arguments: list[str] | None = None) -> int:
    parser = Parser("tessera._bench_story", "Runs each row of the cells once for a profiler.")
    parser.add_argument("cells", nargs="+", metavar="PROBLEM")
    options = parser.parse_args(arguments)
    return ended(parser.prog, lambda: profile(options.cells))


if __name__ == "__main__":
    sys.exit(main_of_module())
