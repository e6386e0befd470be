"""Decode problems of python -m tessera.bench: a few queries over caches that are read from device memory.

A call goes over enough caches of their own (COLD_BYTES in all) that none is in the L2 cache when its turn comes; what
is reported is the time of one. Caches are dense or paged, of q's type or int8 or e4m3, with one scale.
"""

from __future__ import annotations

import copy
import statistics
from typing import Any, Callable

import torch

from . import _c
from . import _bench_peers as peers
from ._bench_case import DTYPES, FREE_WORDS, Case, Runner, tensors_of
from ._bench_output import problem_of

COLD_BYTES = 400 << 20
FEWEST_CACHES = 2
PROBE_BYTES = 2 << 30
LATENCY_KEYS = 1024  # caches of at most so many keys are a matter of latency: a floor of it stands beside them
LAUNCH_SAMPLES = 30
HEAD_START_CYCLES = 200_000  # some 0.1 ms
MANY_PAIRS = 100  # about as many calls as a cell of LATENCY_KEYS has in its graph
CACHE_DTYPES = {_c.INT8: torch.int8, _c.E4M3: torch.float8_e4m3fn}
QUANTISED_SCALE = 4 / 127  # int8 of numbers up to 4
PEERS = ("flash", "cudnn", "fa3")


def decode_suite(dtype: str) -> list[str]:
    """The cells of the peers' table; pages, quantised caches, one split, a fixed split size."""
    cells = [(1, 32, 1024), (1, 32, 8192), (1, 32, 65536), (8, 32, 65536), (64, 32, 8192), (1, 64, 131072)]
    cells.append((128, 32, 2048))
    texts = [f"fwd {dtype} b{b} hq{hq} hkv8 sq1 sk{sk} d128 cuda" for b, hq, sk in cells]
    for words in ("paged=16 pages=shuffled", "kv=int8", "kv=e4m3", "batch-invariant"):
        for b, sk in ((1, 65536), (64, 8192)):
            texts.append(f"fwd {dtype} b{b} hq32 hkv8 sq1 sk{sk} d128 {words} cuda")
    texts.append(f"fwd {dtype} b1 hq32 hkv8 sq1 sk65536 d128 splits=1 cuda")
    texts.append(f"fwd {dtype} b8 hq32 hkv8 sq4 sk8192 d128 causal cuda")
    return texts


def is_decode(text: str) -> bool:
    """Whether the keys are many times the queries: what _bench_case.Case takes is timed there otherwise."""
    p = problem_of(text)
    forward = bool(getattr(p, "pass") == _c.FORWARD) and p.layout_q == _c.DENSE and p.layout_kv != _c.PACKED
    return forward and p.left < 0 and p.right <= 0 and p.seqlen_q <= 64 and p.seqlen_k >= 8 * p.seqlen_q


class DecodeCase(Case):
    """One cache of several: q, k, v and, where they are needed, lengths, page table and scales. `caches`: all of them,
    this one first."""

    WORDS = ("dv", "causal", "paged=", "kv=", "lens=equal", *FREE_WORDS)
    TYPES = (_c.F16, _c.BF16)
    KIND = "an f16 or bf16 problem, full or causal, caches dense or paged=n, kv=int8 or e4m3, lens=equal"

    def __init__(self, text: str, cold_bytes: int = COLD_BYTES):
        self.problem = p = self.taken(text)
        self.packed, self.window, self.cu_seqlens = False, None, None
        self.paged, self.quantised = p.layout_kv == _c.PAGED, p.k.dtype not in DTYPES
        self.causal = p.right == 0
        self.device = torch.device("cuda", p.device) if p.device >= 0 else torch.device("cpu")
        self.lengths = [p.seqlen_q] * p.batch
        self.mask = None
        if self.causal and p.seqlen_q > 1:
            ones = torch.ones(p.seqlen_q, p.seqlen_k, dtype=torch.bool, device=self.device)
            self.mask = ones.tril(p.seqlen_k - p.seqlen_q)
        self.causal = self.causal and p.seqlen_q > 1  # the last query sees every key
        torch.manual_seed(0)
        self.q = self.random(False, p.batch, p.seqlen_q, p.heads_q, p.head_dim_qk)
        self.others: dict[str, torch.Tensor] = {}
        rows = (p.num_pages, p.page_size) if self.paged else (p.batch, p.seqlen_k)
        if self.paged:
            each = -(-p.seqlen_k // p.page_size)
            table = torch.randperm(p.num_pages, device=self.device)[: p.batch * each].reshape(p.batch, each)
            self.table = torch.zeros(p.batch, p.max_pages, dtype=torch.int32, device=self.device)
            self.table[:, :each] = table
            self.others["page_table"] = self.table
        if p.flags & _c.FLAG_SEQUSED_K:
            self.others["seqused_k"] = torch.full((p.batch,), p.seqlen_k, dtype=torch.int32, device=self.device)
        if self.quantised:
            scale = torch.full((1,), self.scale(), device=self.device)
            self.others["k_scale"] = self.others["v_scale"] = scale
        caches = max(FEWEST_CACHES, -(-cold_bytes // self.cache_bytes()))
        self.caches: list[DecodeCase] = [self]
        self.caches += [copy.copy(self) for _ in range(caches - 1)]
        for one in self.caches:
            one.k = self.cache(*rows, p.heads_kv, p.head_dim_qk)
            one.v = self.cache(*rows, p.heads_kv, p.head_dim_v)

    def scale(self) -> float:
        return QUANTISED_SCALE if self.problem.k.dtype == _c.INT8 else 1.0

    def cache(self, *shape: int) -> torch.Tensor:
        if not self.quantised:
            return torch.randn(shape, device=self.device, dtype=DTYPES[self.problem.k.dtype])
        values = torch.randn(shape, device=self.device, dtype=torch.float16) / self.scale()
        if self.problem.k.dtype == _c.INT8:
            values = values.round_().clamp_(-127, 127)
        return values.to(CACHE_DTYPES[self.problem.k.dtype])

    def cache_bytes(self) -> int:
        """Bytes of K and V that one call reads."""
        p = self.problem
        width = 1 if self.quantised else 2
        return p.batch * p.seqlen_k * p.heads_kv * (p.head_dim_qk + p.head_dim_v) * width

    def bytes(self) -> int:
        rows = self.q.numel() // self.problem.head_dim_qk
        return self.cache_bytes() + 4 * self.q.numel() + 4 * rows

    def first_keys(self, x: torch.Tensor) -> torch.Tensor:
        """The first sequence's rows of a cache, [seqlen_k, heads_kv, dim]."""
        rows = x[self.table[0].long()].flatten(0, 1)[: self.problem.seqlen_k] if self.paged else x[0]
        return rows.float() * self.scale() if self.quantised else rows

    def exact(self, heads: int) -> Any:
        p, group = self.problem, self.problem.heads_q // self.problem.heads_kv
        k, v, q = self.first_keys(self.k), self.first_keys(self.v), self.q[0]
        out = torch.empty(p.seqlen_q, heads, p.head_dim_v, dtype=torch.float64, device=self.device)
        for head in range(heads):
            scores = q[:, head].double() @ k[:, head // group].double().T * p.head_dim_qk**-0.5
            if self.mask is not None:
                scores.masked_fill_(~self.mask, float("-inf"))
            out[:, head] = torch.softmax(scores, -1) @ v[:, head // group].double()
        return out


class DecodeRunner:
    """tessera_plan_run over all caches, one after another; `out` is the first one's."""

    def __init__(self, case: DecodeCase, kernel: str = ""):
        self.runners = [OneCache(case, kernel)]
        self.plan, self.plan_seconds = self.runners[0].plan, self.runners[0].plan_seconds
        self.workspace_bytes, self.workspace = self.runners[0].workspace_bytes, self.runners[0].workspace
        for one in case.caches[1:]:
            twin = copy.copy(self.runners[0])
            twin.case = one
            twin.out, twin.tensors = twin.bind()
            self.runners.append(twin)

    def __call__(self) -> Any:
        for one in self.runners:
            one()
        return self.runners[0].out

    def host_seconds(self, baselines: Any) -> float | None:
        return self.runners[0].host_seconds(baselines)


class OneCache(Runner):
    def bind(self) -> tuple[Any, _c.Tensors]:
        o, self.lse = self.case.outputs()
        case: Any = self.case
        return o, tensors_of(case, o, self.lse, **case.others)


Call = Callable[[], torch.Tensor]


def variants(case: DecodeCase, name: str) -> dict[str, Call]:
    """A peer on all caches, by the variants that it has of one."""
    if name not in PEERS:
        raise peers.Refused("is not timed on decode")
    if case.paged or case.quantised:
        raise peers.Refused("is timed on dense caches of q's type only")
    all_calls = [peers.PEERS[name](one) for one in case.caches]

    def over(calls: list[Call]) -> Call:
        def call() -> torch.Tensor:
            return [one() for one in calls][0]

        return call

    return {variant: over([calls[variant] for calls in all_calls]) for variant in all_calls[0]}


def read_bandwidth() -> float:
    """Bytes/s of a sum over PROBE_BYTES, the best of several."""
    memory = torch.ones(PROBE_BYTES // 4, device="cuda")
    best = float("inf")
    for _ in range(8):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        memory.sum()
        end.record()
        torch.cuda.synchronize()
        best = min(best, begin.elapsed_time(end) * 1e-3)
    return PROBE_BYTES / best


def empty_launches() -> dict[str, float]:
    """Seconds of two empty kernels, the second behind the first, in a CUDA graph: `alone`, and `in a row` as one of
    MANY_PAIRS in a graph, as the calls of a cell are. Medians."""

    def seconds(pairs: int) -> float:
        graph, samples = torch.cuda.CUDAGraph(), []
        with torch.cuda.graph(graph):
            for _ in range(2 * pairs):
                torch.cuda._sleep(0)  # one thread that looks at a clock
        for _ in range(LAUNCH_SAMPLES):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(HEAD_START_CYCLES)  # the graph is in the queue before the first event passes
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            samples.append(begin.elapsed_time(end) * 1e-3 / pairs)
        return statistics.median(samples)

    return {"alone": seconds(1), "in a row": seconds(MANY_PAIRS)}


def floors(row: dict[str, Any], launches: dict[str, float], bandwidth: float) -> dict[str, float] | None:
    """Seconds of empty_launches() and the row's bytes at `bandwidth`, where latency is what a row is about."""
    if row["status"] != "ran" or problem_of(row["problem"]).seqlen_k > LATENCY_KEYS:
        return None
    return {name: seconds + row["bytes"] / bandwidth for name, seconds in launches.items()}


def table_head(names: list[str], bandwidth: float) -> str:
    columns = "".join(f"{name:>16s}" for name in ["ours", *names])
    floor = "  floor: 2 empty launches in a row (alone) and the bytes"
    head = f"{'us / TB/s of K and V':52s}{columns}  of probe  /best  splits{floor}"
    return f"read probe {bandwidth * 1e-12:.2f} TB/s\n{head}"


def table_line(row: dict[str, Any], names: list[str], bandwidth: float) -> str:
    words = [word for word in row["problem"].split() if word not in ("fwd", "cuda", "pages=shuffled")]
    text = f"{' '.join(words):52s}"
    if row["status"] != "ran":
        return f"{text}  {row['status']}: {row['reason']}"
    kv_bytes = row["kv_bytes"]

    def cell(seconds: float) -> str:
        return f"{seconds * 1e6:9.1f} / {kv_bytes / seconds * 1e-12:4.2f}"

    text += cell(row["seconds_median"])
    for name in names:
        text += cell(row["peers"][name]["seconds_median"]) if name in row["peers"] else f"{'-':>16s}"
    times = [row["peers"][name]["seconds_median"] for name in names if name in row["peers"]]
    best = f"{min(times) / row['seconds_median']:7.3f}" if times else "      -"
    text += f"  {kv_bytes / row['seconds_median'] / bandwidth:8.3f}{best}  {row['num_splits']:6d}"
    if row.get("floor_seconds"):
        floor = {name: seconds * 1e6 for name, seconds in row["floor_seconds"].items()}
        text += f"  {floor['in a row']:5.1f} ({floor['alone']:.1f})"
    for name, peer in row["peers"].items():
        if name not in peers.PEERS:
            text += f"  {name}{cell(peer['seconds_median'])}"
    return text
