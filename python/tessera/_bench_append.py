"""The suite `append` of python -m tessera.bench: new rows written into a cache, on a CUDA device or on the CPU.

A cell is a cache and `new` rows a sequence that go behind what it holds: the words describe the cache, and new=n,
rotary and attend say what is done. Beside its time stand what its bytes would take at the rate of a copy of PROBE_BYTES
and the time of the least append there is, one row of 8 elements, which is what a launch costs. `attend` cells append
and attend: in one call, and in two (tessera_append, then tessera_plan_run), which must give the same bits.

A call goes over several caches (SETS), one after another, and the L2 cache is overwritten before each sample; times are
of one cache. Where there is no CUDA device the cells run on the CPU, smaller (CPU_KEYS), each call timed by the clock.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import time
from pathlib import Path
from typing import Any, Callable

import torch

from . import Plan, Problem, _c
from ._bench_case import DTYPES, FREE_WORDS, workspace_of
from ._bench_decode import CACHE_DTYPES
from ._bench_output import BadInput, problem_of

SETS = {"cuda": 8, "cpu": 2}
PROBE_BYTES = {"cuda": 1 << 30, "cpu": 1 << 28}
CPU_KEYS = 1024
CPU_ROUNDS = 7
LEAST = "b1 hq1 hkv1 sq1 sk8 d8 new=1"
OWN_WORDS = ("new", "rotary", "attend")
WORDS = ("paged=", "kv=", "causal", *FREE_WORDS)  # what a cell may say beside its extents
Call = Callable[[], Any]


def suite(dtype: str) -> list[str]:
    """Without the word for the device, which is whatever there is."""
    pages, cells = ("", " paged=16 pages=shuffled"), []
    for batch, new, keys in ((1, 1, 1024), (16, 1, 1024), (64, 1, 1024), (256, 1, 1024), (8, 512, 1024)):
        for layout in pages:
            for rotary in ("", " rotary"):
                cells.append(f"fwd {dtype} b{batch} hq32 hkv8 sq1 sk{keys} d128{layout} new={new}{rotary}")
    for kv in ("int8", "e4m3"):
        for batch, new in ((64, 1), (8, 512)):
            cells.append(f"fwd {dtype} b{batch} hq32 hkv8 sq1 sk1024 d128 kv={kv} new={new} rotary")
    for batch in (1, 16, 64):
        for layout in pages:
            cells.append(f"fwd {dtype} b{batch} hq32 hkv8 sq1 sk8192 d128{layout} new=1 rotary attend")
    return cells


def split_words(text: str) -> tuple[str, dict[str, str]]:
    """The library's words, and ours with what stands behind their `=`."""
    words = [word.partition("=") for word in text.split()]
    own = {name: value for name, _, value in words if name in OWN_WORDS}
    return " ".join("".join(word) for word in words if word[0] not in OWN_WORDS), own


def taken(text: str, device: str) -> tuple[Problem, int]:
    """A cell's problem on the device, and how many rows a sequence gets; BadInput where it is no cell."""
    words, own = split_words(text)
    p = problem_of(f"{words} {device}")
    others = [word for word in str(p).split()[8:-1] if not word.startswith(WORDS)]
    if others or p.q.dtype not in (_c.F16, _c.BF16) or getattr(p, "pass") != _c.FORWARD:
        wrong = f"{others[0]!r} in {text!r}" if others else repr(text)
        raise BadInput(f"{wrong}: expected fwd f16 or bf16, caches dense or paged=n, kv=int8 or e4m3, dv = d")
    new = own.get("new", "")
    if not new.isdigit() or not 1 <= int(new) <= p.seqlen_k:
        raise BadInput(f"{text!r}: new={new}; expected new=n rows, 1 to sk, which is {p.seqlen_k}")
    if "rotary" in own and p.head_dim_qk % 2:
        raise BadInput(f"{text!r}: rotary with d{p.head_dim_qk}; expected an even head dim")
    return p, int(new)


class Operands:
    """One cache of several, with new rows, tables and all that a call names. `problem` is shared."""

    def __init__(self, problem: Problem, new: int, rotary: bool, attend: bool, device: torch.device):
        p, self.problem, self.new, self.device = problem, problem, new, device
        dtype = DTYPES[p.q.dtype]
        self.before_rows = (p.seqlen_k - new) // 2 if not attend else p.seqlen_k - new
        random = lambda *shape: torch.randn(shape, dtype=dtype, device=device)  # noqa: E731
        self.q = random(p.batch, p.seqlen_q, p.heads_q, p.head_dim_qk)
        self.q_rotated, self.o = torch.empty_like(self.q), torch.empty_like(self.q)
        self.k_new, self.v_new = (random(p.batch, new, p.heads_kv, p.head_dim_qk) for _ in range(2))
        paged = p.layout_kv == _c.PAGED
        shape = (p.num_pages, p.page_size) if paged else (p.batch, p.seqlen_k)
        cache_dtype = CACHE_DTYPES.get(p.k.dtype, dtype)
        self.quantised = p.k.dtype in CACHE_DTYPES
        self.k, self.v = (
            torch.empty(*shape, p.heads_kv, p.head_dim_qk, dtype=cache_dtype, device=device) for _ in "kv"
        )
        if attend:
            self.k.normal_(), self.v.normal_()
        self.table = None
        if paged:
            each = p.max_pages
            self.table = torch.randperm(p.num_pages, device=device)[: p.batch * each].reshape(p.batch, each).int()
        full = lambda value: torch.full((p.batch,), value, dtype=torch.int32, device=device)  # noqa: E731
        self.before, self.after = full(self.before_rows), full(self.before_rows + new)
        self.scale = torch.full((p.heads_kv,), 4 / 127 if p.k.dtype == _c.INT8 else 1 / 64, device=device)
        angles = torch.outer(torch.arange(p.seqlen_k), 1e4 ** (-torch.arange(0, p.head_dim_qk, 2) / p.head_dim_qk))
        self.cos, self.sin = (table.to(dtype).to(device) for table in (angles.cos(), angles.sin()))
        self.rotary, self.attend = rotary, attend

    def append_args(self) -> _c.AppendArgs:
        args = _c.AppendArgs()
        args.size, args.seqlen_new = ctypes.sizeof(args), self.new
        args.k_new_data, args.v_new_data = self.k_new.data_ptr(), self.v_new.data_ptr()
        args.k_cache, args.v_cache = self.k.data_ptr(), self.v.data_ptr()
        if self.rotary:
            args.rotary_dim, args.rotary_seqlen = self.problem.head_dim_qk, self.problem.seqlen_k
            args.rotary_cos, args.rotary_sin = self.cos.data_ptr(), self.sin.data_ptr()
            if self.attend:
                args.q_rotated = self.q_rotated.data_ptr()
        return args

    def tensors(self, q: torch.Tensor, lengths: torch.Tensor) -> _c.Tensors:
        tensors = _c.Tensors()
        tensors.size = ctypes.sizeof(tensors)
        named = {"q": q, "k": self.k, "v": self.v, "o": self.o, "seqused_k": lengths}
        if self.table is not None:
            named["page_table"] = self.table
        if self.quantised:
            named["k_scale"] = named["v_scale"] = self.scale
        for name, tensor in named.items():
            setattr(tensors, name, tensor.data_ptr())
        return tensors

    def bytes(self) -> int:
        """New rows read, cache rows written, rows of the tables, and with attention all that it reads and writes."""
        rows = self.k_new.numel() + self.v_new.numel()
        moved = rows * (self.k_new.element_size() + self.k.element_size())
        if self.rotary:
            moved += self.new * self.problem.head_dim_qk * self.cos.element_size()
        if self.attend:
            p = self.problem
            keys = p.batch * (self.before_rows + self.new) * p.heads_kv * p.head_dim_qk
            moved += 2 * keys * self.k.element_size() + 2 * self.q.numel() * self.q.element_size()
            moved += 2 * self.q.numel() * self.q.element_size() if self.rotary else 0
        return moved

    def turned(self) -> torch.Tensor:
        """The new keys in float64 as they must stand in the cache, up to its rounding."""
        k = self.k_new.double()
        if not self.rotary:
            return k
        rows = slice(self.before_rows, self.before_rows + self.new)
        cos, sin = (table[rows].double()[None, :, None, :] for table in (self.cos, self.sin))
        low, high = k.chunk(2, -1)
        return torch.cat([low * cos - high * sin, low * sin + high * cos], -1)

    def slots(self) -> tuple[Any, torch.Tensor]:
        """Index of the slots of a cache that the call writes."""
        rows = torch.arange(self.before_rows, self.before_rows + self.new, device=self.device)
        if self.table is None:
            return slice(None), rows
        size = self.problem.page_size
        return self.table.long()[:, rows // size], (rows % size)[None, :]

    def stored(self, cache: torch.Tensor) -> torch.Tensor:
        """What can be indexed, as not every type of a byte can."""
        return cache.view(torch.int8) if self.quantised else cache

    def wipe(self) -> None:
        """Zeros where the call is to write, and NaN in its output."""
        for cache in (self.k, self.v):
            self.stored(cache)[self.slots()] = 0
        self.o.fill_(float("nan"))

    def appended(self, cache: torch.Tensor) -> torch.Tensor:
        """The rows of a cache that the call wrote, in float64."""
        rows = self.stored(cache)[self.slots()].view(cache.dtype).double()
        return rows * self.scale.double()[:, None] if self.quantised else rows

    def relative_error(self) -> float:
        """The largest error of what was written over the largest number; int8 keeps numbers within its range alone."""
        most = 127 * self.scale.max().item() if self.problem.k.dtype == _c.INT8 else float("inf")
        error = 0.0
        for cache, exact in ((self.k, self.turned()), (self.v, self.v_new.double())):
            exact = exact.clamp(-most, most)
            error = max(error, ((self.appended(cache) - exact).abs().max() / exact.abs().max()).item())
        return error


# What one rounding to the cache's type may cost, of the largest number.
ROUNDING = {_c.F16: 2.0**-11, _c.BF16: 2.0**-8, _c.INT8: 2.0**-7, _c.E4M3: 2.0**-4}


class Cell:
    """A cell's calls, over all of its caches."""

    def __init__(self, text: str, device: torch.device):
        own = split_words(text)[1]
        self.text, self.device = text, device
        self.problem, new = p, _ = taken(text, device.type)
        p.flags |= _c.FLAG_SEQUSED_K
        if p.k.dtype in CACHE_DTYPES:
            p.k_scale.stride[2] = p.v_scale.stride[2] = 1
        self.attend = "attend" in own
        torch.manual_seed(0)
        make = lambda: Operands(p, new, "rotary" in own, self.attend, device)  # noqa: E731
        self.sets = [make() for _ in range(SETS[device.type])]
        self.plan = Plan(p) if self.attend else None
        self.workspace = workspace_of(self, self.plan.workspace_bytes) if self.plan else None  # type: ignore[arg-type]
        self.exec, self.status = _c.Exec(ctypes.sizeof(_c.Exec), None, None), _c.Status()
        self.calls: dict[str, Call] = {"append": self.over(self.append)}
        if self.plan:
            self.calls = {"one call": self.over(self.one_call), "two calls": self.over(self.two_calls)}

    def over(self, prepare: Callable[[Operands], Call]) -> Call:
        calls = [prepare(one) for one in self.sets]

        def call() -> torch.Tensor:
            if self.device.type == "cuda":
                self.exec.cuda_stream = torch.cuda.current_stream().cuda_stream
            for one in calls:
                one()
            return self.sets[0].o

        return call

    def checked(self, code: int) -> None:
        if code:
            raise RuntimeError(self.status.message.decode())

    def append(self, one: Operands) -> Call:
        args, tensors = one.append_args(), one.tensors(one.q, one.before)
        pointers = [ctypes.byref(x) for x in (self.problem, tensors, args, self.exec, self.status)]
        return lambda: self.checked(_c.lib.tessera_append(*pointers))

    def attention(self, one: Operands, tensors: _c.Tensors) -> Call:
        assert self.plan
        workspace = self.workspace.data_ptr() if self.workspace is not None else None
        handle, size = self.plan._handle, self.plan.workspace_bytes
        first, *others = (ctypes.byref(x) for x in (tensors, self.exec, self.status))
        return lambda: self.checked(_c.lib.tessera_plan_run(handle, first, workspace, size, *others))

    def one_call(self, one: Operands) -> Call:
        args, tensors = one.append_args(), one.tensors(one.q, one.before)
        tensors.append = ctypes.addressof(args)
        run = self.attention(one, tensors)
        return lambda args=args: run()  # type: ignore[misc]  # args must outlive the call

    def two_calls(self, one: Operands) -> Call:
        append = self.append(one)
        run = self.attention(one, one.tensors(one.q_rotated if one.rotary else one.q, one.after))

        def call() -> None:
            append()
            run()

        return call

    def check(self) -> dict[str, Any]:
        """That what was written is right, and that one call and two give the same bits."""
        found: dict[str, Any] = {}
        outputs = []
        for call in self.calls.values():
            first = self.sets[0]
            first.wipe()
            outputs.append(call().clone())
            error = first.relative_error()
            if not error <= ROUNDING[self.problem.k.dtype]:
                raise RuntimeError(
                    f"{self.text}: rows in the cache are {error:.2g} off, relative to the largest number"
                )
            found["relative_error"] = max(error, found.get("relative_error", 0.0))
        if self.attend:
            found["same_bits"] = torch.equal(*outputs) and bool(outputs[0].isfinite().all())
            if not found["same_bits"]:
                raise RuntimeError(f"{self.text}: one call and two calls differ")
        return found


def copy_bandwidth(device: torch.device) -> float:
    """Bytes read and written a second by a copy of PROBE_BYTES, the best of several."""
    source = torch.ones(PROBE_BYTES[device.type] // 4, device=device)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(6):
        if device.type == "cuda":
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            target.copy_(source)
            end.record()
            torch.cuda.synchronize()
            best = min(best, begin.elapsed_time(end) * 1e-3)
        else:
            start = time.perf_counter()
            target.copy_(source)
            best = min(best, time.perf_counter() - start)
    return 2 * PROBE_BYTES[device.type] / best


def clock(calls: dict[str, Call], options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of each call on the CPU, in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    begin = time.perf_counter()
    while len(next(iter(seconds.values()))) < CPU_ROUNDS or time.perf_counter() - begin < options.seconds:
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def fitted(text: str, device: torch.device) -> str:
    """The cell itself, on the CPU a smaller cache of the same kind."""
    if device.type == "cuda":
        return text
    return " ".join(f"sk{CPU_KEYS}" if word.startswith("sk") else word for word in text.split())


def measure(text: str, device: torch.device, options: argparse.Namespace, sample: Any, floor: Cell) -> dict[str, Any]:
    text = fitted(text, device)
    row = {"problem": f"{text} {device.type}", "baseline": False}
    try:
        cell = Cell(text, device)
    except NotImplementedError as error:
        return {**row, "status": "refused", "reason": str(error).splitlines()[0], "calls": {}}
    checks = cell.check()
    calls = {**cell.calls, "launch": floor.calls["append"]}
    if device.type == "cuda":
        found = sample(calls, cell, options)
        seconds = {one.name: one.seconds for one in found}
        eager = {one.name: one.eager for one in found if one.eager}
    else:
        seconds, eager = clock(calls, options), {}
    sets = len(cell.sets)
    medians = {name: statistics.median(values) / sets for name, values in seconds.items()}
    moved, first = cell.sets[0].bytes(), next(iter(cell.calls))
    return {
        **row,
        "status": "ran",
        "reason": "",
        "kernel": cell.plan.kernel if cell.plan else "append",
        "seconds_median": medians[first],
        "seconds_min": min(seconds[first]) / sets,
        "seconds_max": max(seconds[first]) / sets,
        "samples": len(seconds[first]),
        "bytes": moved,
        "gbytes_per_s": moved / medians[first] * 1e-9,
        "launch_seconds": medians["launch"],
        "calls": {name: medians[name] for name in cell.calls},
        **({"eager": eager} if eager else {}),
        **checks,
    }


def table_head(bandwidth: float) -> str:
    head = f"copy probe {bandwidth * 1e-9:.0f} GB/s; microseconds of one cache"
    return f"{head}\n{'':66s}{'time':>9s}{'GB/s':>8s}{'bytes':>9s}{'launch':>8s}{'2 calls':>9s}"


def table_line(row: dict[str, Any], bandwidth: float) -> str:
    text = f"{' '.join(w for w in row['problem'].split() if w not in ('fwd', 'cuda', 'cpu', 'pages=shuffled')):66s}"
    if row["status"] != "ran":
        return f"{text}  {row['status']}: {row['reason']}"
    times = [row["seconds_median"], row["bytes"] / bandwidth, row["launch_seconds"]]
    time_, least, launch = (seconds * 1e6 for seconds in times)
    two = row["calls"].get("two calls")
    last = f"{two * 1e6:9.2f}" if two else f"{'-':>9s}"
    return f"{text}{time_:9.2f}{row['gbytes_per_s']:8.0f}{least:9.2f}{launch:8.2f}{last}"


def short_table(results: dict[str, Any]) -> str:
    """The lines of a result file."""
    bandwidth = results["copy_bytes_per_s"]
    return "\n".join([table_head(bandwidth), *(table_line(row, bandwidth) for row in results["rows"])])


def main(options: argparse.Namespace, results: dict[str, Any], sample: Any) -> int:
    """Every cell as it is measured, and the result file after each."""
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cpu":
        print("torch sees no CUDA device: the cells run on the CPU")
    for text in options.problems:
        taken(fitted(text, device), device.type)
    begin = time.perf_counter()
    bandwidth = results["copy_bytes_per_s"] = copy_bandwidth(device)
    floor = Cell(f"fwd {'bf16' if 'bf16' in options.problems[0] else 'f16'} {LEAST}", device)
    print(table_head(bandwidth), flush=True)
    for text in options.problems:
        results["rows"].append(measure(text, device, options, sample, floor))
        print(table_line(results["rows"][-1], bandwidth), flush=True)
        if device.type == "cuda":
            torch.cuda.empty_cache()
        if options.out:
            Path(options.out).write_text(json.dumps(results, indent=1) + "\n")
    print(f"{len(results['rows'])} cells in {time.perf_counter() - begin:.0f} s")
    return 0
