"""Tessera on the CPU beside PyTorch's SDPA and oneDNN's Graph SDPA: one process, one table, the same inputs.

    PYTHONPATH=python TESSERA_LIBRARY=build/release/libtessera.so python3 bench/cpu_peers.py --out F
    ... bench/cpu_peers.py --only decode --seconds 10        part of it, with less time a problem
    ... bench/cpu_peers.py --only backward                   gradients, beside PyTorch's (cpu_gradients.py)
    ... bench/cpu_peers.py "fwd bf16 b1 hq8 sq512 d64"       problems of one's own: dense, full, sq = 1 for decode

Needs torch; oneDNN as in onednn_graph.py (pip install onednn), else the result file says why it is absent.

Inputs are random, [batch, heads, seqlen, dim] in memory, the layout that the peers are made for; Tessera gets the same
memory by strides (--layout bshd turns both round). Rounds visit the candidates in random order, one call each, until
--seconds are spent or 15 rounds are done (3 at least); medians are kept. Between two calls lies a pause, so that idle
threads of one OpenMP runtime do not spin beside the next candidate. In decode, successive calls read different copies
of the caches, 1 GiB in all or more, so that no cache serves them. Peers may have grouped heads in each form they take,
and the fastest counts: `enable_gqa`, `expanded` (K and V repeated for each query head outside of the timing), `folded`
(the heads of a group as queries of one head, which only a caller who rewrites the call gets; the last column of the
table leaves it out). Every output is held to float64 on a sample of rows; what is off is left out and named, and if
Tessera is off the exit code is 1.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import os
import platform
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable

CACHE_BYTES = 1 << 30  # that successive decode calls read before one comes again
LARGEST_SCORES = 3 << 30  # bytes of S and P beyond which a method that stores them is left out
PAUSE_SECONDS = 0.02
# Root mean square of the error over that of the output. float64 on the rounded inputs is the judge; P and o rounded to
# the type give about half of the roundoff.
TOLERANCE = {"f32": 2e-5, "f16": 4e-3, "bf16": 3e-2}

PREFILL = [f"fwd {t} b1 hq16 sq{n} d{d}" for n in (2048, 8192) for t in ("f32", "bf16") for d in (64, 128)]
BACKWARD = [f"bwd {t} b1 hq16 sq2048 d{d}{m}" for t in ("f32", "bf16") for d in (64, 128) for m in ("", " causal")]
DECODE = [f"fwd {t} b1 hq32 hkv8 sq1 sk65536 d{d}" for t in ("bf16", "f16", "f32") for d in (64, 128)]

Call = Callable[[int], Any]  # takes the number of the round, returns o [batch, heads, seqlen_q, dim]


class Case:
    """One dense problem with full attention, and `copies` of its caches. Tensors are [batch, heads, seqlen, dim]."""

    def __init__(self, text: str, layout: str, threads: int):
        self.problem = p = problem_of(f"{text} layout={layout} threads={threads} cpu")
        self.layout = layout
        self.name = {_c.F32: "f32", _c.F16: "f16", _c.BF16: "bf16"}.get(p.q.dtype)
        plain = p.layout_q == p.layout_kv == _c.DENSE and p.left == p.right == -1 and not p.flags
        if self.name is None or not plain or p.head_dim_qk != p.head_dim_v or p.k.dtype != p.q.dtype:
            raise BadInput(f"{text!r}: expected a dense f32, f16 or bf16 problem on cpu without masks or terms, dv = d")
        self.dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[self.name]
        self.group = p.heads_q // p.heads_kv
        self.decode = p.seqlen_q == 1
        torch.manual_seed(0)
        self.q = self.new(p.heads_q, p.seqlen_q)
        self.kv = [(self.new(p.heads_kv, p.seqlen_k), self.new(p.heads_kv, p.seqlen_k))]
        self.cache_bytes = sum(x.numel() * x.element_size() for x in self.kv[0])
        while self.decode and len(self.kv) * self.cache_bytes < CACHE_BYTES:
            self.kv.append(tuple(self.copy_of(x) for x in self.kv[0]))
        self.o = self.new(p.heads_q, p.seqlen_q).fill_(float("nan"))
        self._expanded: list | None = None

    def new(self, heads: int, rows: int) -> torch.Tensor:
        p = self.problem
        if self.layout == "bhsd":
            return torch.randn(p.batch, heads, rows, p.head_dim_qk).to(self.dtype)
        return torch.randn(p.batch, rows, heads, p.head_dim_qk).to(self.dtype).transpose(1, 2)

    @staticmethod
    def copy_of(x: torch.Tensor) -> torch.Tensor:
        return x.clone(memory_format=torch.preserve_format)

    def caches(self) -> list:
        return self.kv

    def expanded(self) -> list:
        """K and V with a head for every query head, contiguous: 1 GiB or more of copies."""
        if self._expanded is None:
            self._expanded = []
            while (
                not self._expanded or self.decode and len(self._expanded) * self.group * self.cache_bytes < CACHE_BYTES
            ):
                self._expanded.append(tuple(x.repeat_interleave(self.group, 1).contiguous() for x in self.kv[0]))
        return self._expanded

    def folded_q(self) -> torch.Tensor:
        """q [batch, heads_kv, group * seqlen_q, dim]: without a mask a group's heads are but more queries."""
        p = self.problem
        return self.q.reshape(p.batch, p.heads_kv, self.group * p.seqlen_q, p.head_dim_qk)

    def score_bytes(self) -> int:
        p = self.problem
        return 2 * 4 * p.batch * p.heads_q * p.seqlen_q * p.seqlen_k

    def flops(self) -> int:
        p = self.problem
        return 4 * p.head_dim_qk * p.batch * p.heads_q * p.seqlen_q * p.seqlen_k

    def bytes(self) -> int:
        return self.cache_bytes + 2 * self.q.numel() * self.q.element_size()

    def sample(self) -> tuple[list[int], list[int]]:
        """Heads and rows that are compared with float64."""
        p = self.problem
        rows = sorted(random.Random(1).sample(range(p.seqlen_q), min(32, p.seqlen_q)))
        return sorted({0, p.heads_q // 2, p.heads_q - 1}), rows

    def exact(self) -> torch.Tensor:
        """float64 on the sample, batch row 0: [heads, rows, dim]."""
        heads, rows = self.sample()
        k, v = self.kv[0]
        out = []
        for head in heads:
            scores = self.q[0, head, rows].double() @ k[0, head // self.group].double().T
            probs = torch.softmax(scores * self.problem.head_dim_qk**-0.5, -1)
            out.append(probs @ v[0, head // self.group].double())
        return torch.stack(out)

    def error_of(self, o: torch.Tensor, exact: torch.Tensor) -> float:
        """Root mean square of the error over that of the exact output."""
        heads, rows = self.sample()
        mine = o[0, heads][:, rows].double()
        return float((mine - exact).square().mean().sqrt() / exact.square().mean().sqrt())


def own_call(case: Case) -> tuple[Any, Call]:
    """tessera_plan_run with everything prepared, as a C caller would have it."""
    plan = tessera.Plan(case.problem)
    workspace = torch.empty(plan.workspace_bytes + 256, dtype=torch.uint8)
    address = workspace.data_ptr() + -workspace.data_ptr() % 256
    status, calls = _c.Status(), []
    for k, v in case.kv:
        tensors = _c.Tensors()
        tensors.size = ctypes.sizeof(_c.Tensors)
        for name, x in (("q", case.q), ("k", k), ("v", v), ("o", case.o)):
            setattr(tensors, name, x.data_ptr())
        calls.append(tensors)

    def call(turn: int) -> torch.Tensor:
        tensors = calls[turn % len(calls)]
        code = _c.lib.tessera_plan_run(
            plan._handle, ctypes.byref(tensors), address, plan.workspace_bytes, None, ctypes.byref(status)
        )
        if code:
            raise RuntimeError(status.message.decode())
        return case.o

    call.keep = workspace  # type: ignore[attr-defined]
    return plan, call


def sdpa_calls(case: Case, backend: Any) -> dict[str, Call]:
    """PyTorch's scaled_dot_product_attention, in each form of the grouped heads."""
    attend = torch.nn.functional.scaled_dot_product_attention

    def make(q: torch.Tensor, caches: Callable[[], list], **options: Any) -> Call:
        def call(turn: int) -> torch.Tensor:
            pairs = caches()
            k, v = pairs[turn % len(pairs)]
            with sdpa_kernel(backend):
                return attend(q, k, v, **options)

        return call

    if case.group == 1:
        return {"": make(case.q, case.caches)}
    return {
        "enable_gqa": make(case.q, case.caches, enable_gqa=True),
        "expanded": make(case.q, case.expanded),
        "folded": make(case.folded_q(), case.caches),
    }


def onednn_calls(case: Case, library: onednn_graph.Library) -> dict[str, Call]:
    """oneDNN's partition, scores in float32 where it takes that and in the type, by which it is fastest."""
    kind = {"f32": onednn_graph.F32, "f16": onednn_graph.F16, "bf16": onednn_graph.BF16}[case.name]
    calls, reasons = {}, []
    forms = {"": (case.q, case.caches)}
    if case.group > 1:
        forms = {"folded": (case.folded_q(), case.caches), "expanded": (case.q, case.expanded)}
    for form, (q, caches) in forms.items():
        for inner in dict.fromkeys((onednn_graph.F32, kind)):
            o = torch.full(q.shape, float("nan"), dtype=case.dtype)
            try:
                (k, v), *_ = pairs = caches()
                sides = [(tuple(x.shape), x.stride()) for x in (q, k, v, o)]
                attention = onednn_graph.Attention(library, kind, *sides, case.problem.head_dim_qk**-0.5, inner)
                runs = [attention.bind(q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr()) for k, v in pairs]
            except onednn_graph.Refused as error:
                scores = "f32" if inner == onednn_graph.F32 else case.name
                reasons.append(f"{form or 'plain'}, scores of {scores}: {error}")
                continue

            def call(turn: int, runs=runs, o=o, keep=(attention, q, pairs)) -> torch.Tensor:
                runs[turn % len(runs)]()
                return o

            calls[" ".join(x for x in (form, "" if inner == kind else "f32 scores") if x)] = call
    if not calls:
        raise onednn_graph.Refused("; ".join(reasons))
    return calls


def candidates(case: Case, library: onednn_graph.Library | str, own: Call) -> tuple[dict, dict[str, str], dict]:
    """(peer, form) -> call for whatever runs and is right, why the others are left out, and the errors."""
    p = case.problem
    calls: dict[tuple[str, str], Call] = {("tessera", ""): own}
    refused: dict[str, str] = {}
    too_large = case.score_bytes() > LARGEST_SCORES
    for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("math", SDPBackend.MATH)):
        if name == "math" and too_large:
            refused[name] = f"its scores and probabilities take {case.score_bytes() / 1e9:.0f} GB"
            continue
        calls.update({(name, form): call for form, call in sdpa_calls(case, backend).items()})
    if isinstance(library, str):
        refused["onednn"] = library
    else:
        try:
            calls.update({("onednn", form): call for form, call in onednn_calls(case, library).items()})
        except onednn_graph.Refused as error:
            refused["onednn"] = str(error)
    exact, errors = case.exact(), {}
    for key in list(calls):
        try:
            o = calls[key](0).reshape(p.batch, p.heads_q, p.seqlen_q, p.head_dim_v)
            errors[key] = case.error_of(o, exact)
            reason = "" if errors[key] <= TOLERANCE[case.name] else f"wrong: relative error {errors[key]:.2g}"
        except (RuntimeError, onednn_graph.Refused) as error:
            reason = str(error).strip().splitlines()[0]
        if reason:
            if key[0] == "tessera":
                raise SystemExit(f"{p}: tessera: {reason}")
            refused[" ".join(key).strip()] = reason
            del calls[key]
    return calls, refused, errors


def time_calls(calls: dict, seconds: float) -> dict:
    times: dict = {key: [] for key in calls}
    order, begin, turn = list(calls), time.perf_counter(), 0
    while turn < 15 and (turn < 3 or time.perf_counter() - begin < seconds):
        turn += 1
        random.shuffle(order)
        for key in order:
            time.sleep(PAUSE_SECONDS)
            start = time.perf_counter()
            calls[key](turn)
            times[key].append(time.perf_counter() - start)
    return times


def measure(text: str, options: argparse.Namespace, library: onednn_graph.Library | str) -> dict[str, Any]:
    gradients = "bwd" in text.split()
    kind = cpu_gradients if gradients else sys.modules[__name__]
    case = kind.Case(text, options.layout, options.threads)
    begin = time.perf_counter()
    plan, own = kind.own_call(case)
    plan_seconds = time.perf_counter() - begin
    if gradients:
        calls, refused, errors = cpu_gradients.candidates(case, own, LARGEST_SCORES)
    else:
        calls, refused, errors = candidates(case, library, own)
    times = time_calls(calls, options.seconds)
    flops, median = case.flops(), {key: statistics.median(samples) for key, samples in times.items()}
    seconds = median[("tessera", "")]
    samples = times[("tessera", "")]
    peers: dict[str, Any] = {}
    for (name, form), value in sorted(median.items(), key=lambda item: item[1]):
        if name == "tessera":
            continue
        peer = peers.setdefault(
            name, {"seconds_median": value, "tflops": flops / value * 1e-12, "form": form, "forms": {}}
        )
        peer["forms"][form or "plain"] = {"seconds_median": value, "relative_rms_error": errors[(name, form)]}
    best = min(peers, key=lambda name: peers[name]["seconds_median"], default=None)
    unfolded = [value for (name, form), value in median.items() if name != "tessera" and "folded" not in form]
    return {
        "problem": str(case.problem),
        "kernel": plan.kernel,
        "status": "ran",
        "reason": None,
        "baseline": False,
        "seconds_median": seconds,
        "seconds_min": min(samples),
        "seconds_max": max(samples),
        "rounds": len(samples),
        "flops": flops,
        "bytes": case.bytes(),
        "tflops": flops / seconds * 1e-12,
        "gbytes_per_s": case.bytes() / seconds * 1e-9,
        "workspace_bytes": plan.workspace_bytes,
        "plan_seconds": plan_seconds,
        "relative_rms_error": errors[("tessera", "")],
        "best_peer": best,
        "speedup_over_best_peer": peers[best]["seconds_median"] / seconds if best else None,
        "speedup_over_best_unfolded_peer": min(unfolded) / seconds if unfolded else None,
        "peers": peers,
        "left_out": refused,
    }


def describe(library: onednn_graph.Library | str, threads: int) -> dict[str, Any]:
    found = not isinstance(library, str)
    return {
        "device": cpu_name(),
        "host": f"{platform.machine()}, {len(os.sched_getaffinity(0))} of {os.cpu_count()} CPUs, {platform.system()}",
        "driver": None,
        "clocks": None,
        "versions": {
            "tessera": tessera.version(),
            "torch": torch.__version__,
            "torch_cpu": torch.backends.cpu.get_cpu_capability(),
            "onednn": library.version if found else None,
            "onednn_library": os.path.basename(library.where) if found else f"absent: {library}",
            "python": platform.python_version(),
        },
        "threads": threads,
        "commit": commit(),
        "kernel_sources_sha256": sources_sha256("cpu"),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


HEADER = """| problem | kernel | ms | rate | flash | math | oneDNN | over the best peer | not folded |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |"""


def table_line(row: dict[str, Any]) -> str:
    problem = tessera.Problem(row["problem"])
    words = f"{row['problem'].split()[1]}, sq {problem.seqlen_q}, sk {problem.seqlen_k}, d {problem.head_dim_qk}"
    words += ", backward" if getattr(problem, "pass") == _c.BACKWARD else ""
    words += ", causal" if problem.right == 0 else ""
    decode = problem.seqlen_q == 1
    rate = f"{row['gbytes_per_s']:.1f} GB/s" if decode else f"{row['tflops'] * 1e3:.0f} GFLOP/s"
    cells = [words, f"`{row['kernel']}`", f"{row['seconds_median'] * 1e3:.2f}", rate]
    for name in ("flash", "math", "onednn"):
        peer = row["peers"].get(name)
        form = f" ({peer['form']})" if peer and peer["form"] else ""
        cells.append(f"{peer['seconds_median'] * 1e3:.2f}{form}" if peer else "-")
    ratio = row["speedup_over_best_peer"]
    cells.append(f"{ratio:.2f}x {row['best_peer']}" if ratio else "-")
    ratio = row["speedup_over_best_unfolded_peer"]
    cells.append(f"{ratio:.2f}x" if ratio else "-")
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    options = parse_options()
    return ended("cpu_peers.py", lambda: run(options))


def run(options: argparse.Namespace) -> int:
    try:
        output_file(options.out or os.devnull)
    except argparse.ArgumentTypeError as error:
        raise BadInput(f"--out: {error}") from None
    if options.threads < 1:
        raise BadInput(f"--threads: {options.threads}, expected 1 or more")
    torch.set_num_threads(options.threads)
    try:
        library: onednn_graph.Library | str = onednn_graph.Library(options.onednn)
    except onednn_graph.Refused as error:
        library = str(error)
        print(f"oneDNN left out: {library}", file=sys.stderr)
    rows = []
    print(HEADER, flush=True)
    chosen = {"prefill": PREFILL, "decode": DECODE, "backward": BACKWARD}.get(options.only, PREFILL + DECODE)
    for text in options.problems or chosen:
        rows.append(measure(text, options, library))
        print(table_line(rows[-1]), flush=True)
        for name, reason in rows[-1]["left_out"].items():
            print(f"  left out: {name}: {reason}", file=sys.stderr)
    if options.out:
        result = {**describe(library, options.threads), "rows": rows}
        Path(options.out).write_text(json.dumps(result, indent=1) + "\n")
    return 0


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", metavar="PROBLEM")
    parser.add_argument("--only", choices=("prefill", "decode", "backward"))
    parser.add_argument("--threads", type=int, default=2, help="of Tessera and of every peer (2)")
    parser.add_argument("--seconds", type=float, default=15, help="of timing a problem (15)")
    parser.add_argument("--layout", choices=("bhsd", "bshd"), default="bhsd")
    parser.add_argument("--onednn", metavar="PATH", help="of libdnnl.so")
    parser.add_argument("--out", metavar="FILE", help="result file")
    return parser.parse_args()


# OpenMP and SYCL read their environment when they are loaded, so the arguments come before torch.
if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = str(parse_options().threads)
    os.environ["DPCPP_CPU_NUM_CUS"] = str(parse_options().threads)

import torch  # noqa: E402
import torch.nn.functional  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

import cpu_gradients  # noqa: E402
import onednn_graph  # noqa: E402
import tessera  # noqa: E402
from tessera import _c  # noqa: E402
from tessera._bench_host import commit, cpu_name, sources_sha256  # noqa: E402
from tessera._bench_output import BadInput, ended, output_file, problem_of  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
