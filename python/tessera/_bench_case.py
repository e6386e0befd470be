"""Problems of python -m tessera.bench with their tensors, our rows and the textbook on them, and the judge."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from . import Plan, Problem, _c
from ._bench_output import BadInput, problem_of

FREE_WORDS = ("batch-invariant", "deterministic", "isa=", "kernel=", "sm_margin=", "splits=", "threads=")
DTYPES = {_c.F16: torch.float16, _c.BF16: torch.bfloat16, _c.F32: torch.float32}


def lengths_of(p: Problem, text: str) -> list[int]:
    """Query lengths, one a sequence; keys have the same where they are packed."""
    given = [word[5:] for word in text.split() if word.startswith("lens=")]
    if p.layout_q == _c.PACKED and p.seqlen_q != p.seqlen_k:
        raise BadInput(f"{text!r}: expected sk=sq where sequences are packed")
    if p.layout_q != _c.PACKED or not given or given[0] == "equal":
        return [p.seqlen_q] * p.batch
    numbers = given[0].split(":")
    lengths = [int(n) for n in numbers] if all(n.isdigit() for n in numbers) else []
    if len(lengths) != p.batch or sum(lengths) != p.total_q or p.total_q != p.total_k:
        raise BadInput(f"{text!r}: expected sk=sq and lens=a:b:c with {p.batch} lengths of {p.total_q} rows in all")
    return lengths


class Case:
    """One problem with its tensors: dense [batch, seqlen, heads, dim], or packed [total, heads, dim].

    `outliers`: N(0, 1) + N(0, 100) * Bernoulli(0.001) instead of N(0, 1), the distribution
    by which the FlashAttention-3 paper (section 4.3) compares errors.
    """

    # What a problem may say beside its extents (the beginnings of words), and in words.
    WORDS: tuple[str, ...] = ("dv", "causal", "window=", "packed", *FREE_WORDS)
    TYPES: tuple[int, ...] = tuple(DTYPES)
    PASS = "fwd"
    KIND = "a dense or packed f16, bf16 or f32 problem forward, full, causal or window=n,0"

    def __init__(self, text: str, outliers: bool = False):
        self.problem = p = self.taken(text)
        self.packed = p.layout_q == _c.PACKED
        self.causal = p.right == 0 and p.left == -1
        self.window = None if self.causal or p.left == p.right == -1 else (p.left, p.right)
        self.device = torch.device("cuda", p.device) if p.device >= 0 else torch.device("cpu")
        self.lengths = lengths_of(p, text)
        self.cu_seqlens = None
        if self.packed:
            ends = [sum(self.lengths[:i]) for i in range(len(self.lengths) + 1)]
            self.cu_seqlens = torch.tensor(ends, dtype=torch.int32, device=self.device)
        torch.manual_seed(0)
        rows_q, rows_k = ((p.total_q,), (p.total_k,)) if self.packed else ((p.batch, p.seqlen_q), (p.batch, p.seqlen_k))
        self.q = self.random(outliers, *rows_q, p.heads_q, p.head_dim_qk)
        self.k = self.random(outliers, *rows_k, p.heads_kv, p.head_dim_qk)
        self.v = self.random(outliers, *rows_k, p.heads_kv, p.head_dim_v)
        self.mask = None
        if self.causal and p.seqlen_q != p.seqlen_k:
            ones = torch.ones(p.seqlen_q, p.seqlen_k, dtype=torch.bool, device=self.device)
            self.mask = ones.tril(p.seqlen_k - p.seqlen_q)

    @classmethod
    def taken(cls, text: str) -> Problem:
        """The problem, with lse; BadInput where a case of this kind cannot be made of the text."""
        p = problem_of(text)
        p.flags |= _c.FLAG_LSE
        words = [word for word in str(p).split()[8:-1] if word != "lens=equal"]
        if p.layout_q != _c.PACKED:  # lengths_of() reads them there
            words += [word for word in text.split() if word.startswith("lens=")]
        others = [word for word in words if not word.startswith(cls.WORDS)]
        if not str(p).startswith(cls.PASS) or p.q.dtype not in cls.TYPES or p.right > 0 or others:
            wrong = f"{others[0]!r} in {text!r}" if others else repr(text)
            raise BadInput(f"{wrong}: expected {cls.KIND}")
        lengths_of(p, text)
        return p

    def random(self, outliers: bool, *shape: int) -> torch.Tensor:
        x = torch.randn(shape, device=self.device, dtype=torch.float32)
        if outliers:
            x += 10 * torch.randn_like(x) * (torch.rand_like(x) < 0.001)
        return x.to(DTYPES[self.problem.q.dtype])

    def outputs(self) -> tuple[torch.Tensor, torch.Tensor]:
        """o and lse to write, full of NaN."""
        p = self.problem
        lse_shape = (p.heads_q, p.total_q) if self.packed else (p.batch, p.heads_q, p.seqlen_q)
        o = torch.full((*self.q.shape[:-1], p.head_dim_v), float("nan"), device=self.device, dtype=self.q.dtype)
        return o, torch.full(lse_shape, float("nan"), device=self.device)

    def first(self, x: torch.Tensor) -> torch.Tensor:
        """The first sequence's rows of a tensor, [seqlen, heads, dim]."""
        return x[: self.lengths[0]] if self.packed else x[0]

    def score_bytes(self) -> int:
        p = self.problem
        return 4 * p.batch * p.heads_q * p.seqlen_q * p.seqlen_k

    def kept_pairs(self) -> int:
        """Pairs of a query and a key that it sees, over all sequences."""
        p, pairs = self.problem, 0
        for length in set(self.lengths):
            keys = length if self.packed else p.seqlen_k
            rows = torch.arange(length, dtype=torch.int64) + keys - length
            end = (rows + 1).clamp(0, keys) if p.right == 0 else torch.full_like(rows, keys)
            begin = (rows - p.left).clamp(min=0) if p.left >= 0 else torch.zeros_like(rows)
            pairs += int((end - begin).clamp(min=0).sum()) * self.lengths.count(length)
        return pairs

    def flops(self) -> int:
        p = self.problem
        return 2 * (p.head_dim_qk + p.head_dim_v) * p.heads_q * self.kept_pairs()

    def bytes(self) -> int:
        rows = self.q.numel() // self.problem.head_dim_qk
        moved = self.q.numel() + self.k.numel() + self.v.numel() + rows * self.problem.head_dim_v
        return moved * self.q.element_size() + 4 * rows

    def exact(self, heads: int) -> Any:
        """The first sequence, the first `heads` heads, in float64: [seqlen_q, heads, dim]."""
        p = self.problem
        group = p.heads_q // p.heads_kv
        q, k, v = (self.first(x) for x in (self.q, self.k, self.v))
        out = torch.empty(q.shape[0], heads, p.head_dim_v, dtype=torch.float64, device=self.device)
        columns = torch.arange(k.shape[0], device=self.device)[None, :]
        for head in range(heads):
            keys, values = k[:, head // group].double(), v[:, head // group].double()
            for row in range(0, q.shape[0], 2048):
                scores = q[row : row + 2048, head].double() @ keys.T * p.head_dim_qk**-0.5
                rows = torch.arange(row, row + scores.shape[0], device=self.device)[:, None] + k.shape[0] - q.shape[0]
                if p.right == 0:
                    scores.masked_fill_(columns > rows, float("-inf"))
                if p.left >= 0:
                    scores.masked_fill_(columns < rows - p.left, float("-inf"))
                out[row : row + 2048, head] = torch.softmax(scores, -1).nan_to_num_() @ values
        return out

    def rms_error(self, out: Any, reference: Any) -> float:
        return (self.first(out)[:, : reference.shape[1]].double() - reference).square().mean().sqrt().item()


def tensors_of(case: Case, o: torch.Tensor, lse: torch.Tensor, **others: torch.Tensor) -> _c.Tensors:
    tensors = _c.Tensors()
    tensors.size = ctypes.sizeof(_c.Tensors)
    for name, tensor in {"q": case.q, "k": case.k, "v": case.v, "o": o, "lse": lse, **others}.items():
        setattr(tensors, name, tensor.data_ptr())
    if case.cu_seqlens is not None:
        tensors.cu_seqlens_q = tensors.cu_seqlens_k = case.cu_seqlens.data_ptr()
    return tensors


def workspace_of(case: Case, size: int) -> torch.Tensor | None:
    """`size` bytes at a multiple of 256, None for 0."""
    memory = torch.empty(size + 256, dtype=torch.uint8, device=case.device)
    begin = -memory.data_ptr() % 256
    return memory[begin : begin + size] if size else None


class Runner:
    """tessera_plan_run with everything prepared, so that a call costs what it costs a C caller plus ctypes. `kernel`
    pins a row; NotImplementedError where it refuses."""

    def __init__(self, case: Case, kernel: str = ""):
        problem = Problem.from_buffer_copy(case.problem)
        problem.kernel = kernel or case.problem.kernel
        begin = time.perf_counter()
        self.plan = Plan(problem)
        self.plan_seconds = time.perf_counter() - begin
        self.case = case
        self.workspace_bytes = self.plan.workspace_bytes
        self.workspace = workspace_of(case, self.workspace_bytes)
        self.out, self.tensors = self.bind()
        self.exec = _c.Exec(ctypes.sizeof(_c.Exec), None, None)
        self.status = _c.Status()

    def bind(self) -> tuple[Any, _c.Tensors]:
        """What a call writes, and the operands that name it."""
        o, self.lse = self.case.outputs()
        return o, tensors_of(self.case, o, self.lse)

    def __call__(self) -> Any:
        if self.case.device.type == "cuda":
            self.exec.cuda_stream = torch.cuda.current_stream().cuda_stream
        workspace = self.workspace.data_ptr() if self.workspace is not None else None
        tensors, options, status = ctypes.byref(self.tensors), ctypes.byref(self.exec), ctypes.byref(self.status)
        code = _c.lib.tessera_plan_run(self.plan._handle, tensors, workspace, self.workspace_bytes, options, status)
        if code:
            raise RuntimeError(self.status.message.decode())
        return self.out

    def host_seconds(self, baselines: Baselines | None) -> float | None:
        """What tessera_plan_run takes of the host, called from C; None without the library that does so."""
        if baselines is None:
            return None
        self()
        run = ctypes.cast(_c.lib.tessera_plan_run, ctypes.c_void_p)
        workspace = self.workspace.data_ptr() if self.workspace is not None else None
        tensors, options = ctypes.byref(self.tensors), ctypes.byref(self.exec)
        seconds = baselines.lib.tessera_baseline_host_seconds(
            run, self.plan._handle, tensors, workspace, self.workspace_bytes, options
        )
        if seconds < 0:
            raise RuntimeError(f"{self.case.problem}: a run failed while its host time was taken")
        return float(seconds)


class Baselines:
    """libtessera_baselines.so: rows that the library does not hold, planned and run as its own."""

    def __init__(self) -> None:
        path = Path(os.environ.get("TESSERA_BASELINES") or _c.library_path.with_name("libtessera_baselines.so"))
        self.lib = lib = ctypes.CDLL(str(path.absolute()))
        pointer = ctypes.c_void_p
        size = ctypes.POINTER(ctypes.c_size_t)
        lib.tessera_baseline_create.argtypes = [pointer, ctypes.POINTER(pointer), size, pointer]
        lib.tessera_baseline_run.argtypes = [pointer, pointer, pointer, ctypes.c_size_t, pointer, pointer]
        lib.tessera_baseline_explain.argtypes = [pointer, ctypes.c_char_p, ctypes.c_size_t]
        lib.tessera_baseline_explain.restype = ctypes.c_size_t
        lib.tessera_baseline_destroy.argtypes = [pointer]
        lib.tessera_baseline_destroy.restype = None
        lib.tessera_baseline_host_seconds.argtypes = [pointer, pointer, pointer, pointer, ctypes.c_size_t, pointer]
        lib.tessera_baseline_host_seconds.restype = ctypes.c_double
        lib.tessera_baseline_bandwidth.argtypes = [ctypes.POINTER(ctypes.c_double)] * 2 + [pointer]

    def bandwidth(self) -> tuple[float, float]:
        """Bytes a second that the current CUDA device reads of its shared and of its device memory."""
        shared, device, status = ctypes.c_double(), ctypes.c_double(), _c.Status()
        if self.lib.tessera_baseline_bandwidth(ctypes.byref(shared), ctypes.byref(device), ctypes.byref(status)):
            raise RuntimeError(status.message.decode())
        return shared.value, device.value

    @classmethod
    def load(cls) -> Baselines | None:
        """The library, or None with a line on stderr."""
        try:
            return cls()
        except (OSError, AttributeError) as error:
            print(f"textbook and host time left out: {error}", file=sys.stderr)
            return None


class Textbook:
    """cuda.textbook, or another baseline by its name, on a case, with outputs and a workspace of its own. RuntimeError
    where it refuses."""

    kernel = "cuda.textbook"

    def __init__(self, baselines: Baselines, case: Case, kernel: str = ""):
        self.kernel = kernel or self.kernel
        self.lib, self.case, self.status = baselines.lib, case, _c.Status()
        self.handle, size = ctypes.c_void_p(), ctypes.c_size_t()
        problem = Problem.from_buffer_copy(case.problem)
        problem.kernel = self.kernel
        self.check(
            self.lib.tessera_baseline_create(
                ctypes.byref(problem), ctypes.byref(self.handle), ctypes.byref(size), ctypes.byref(self.status)
            )
        )
        self.workspace_bytes = size.value
        self.workspace = workspace_of(case, size.value)
        self.out, self.tensors = self.bind()
        self.exec = _c.Exec(ctypes.sizeof(_c.Exec), None, None)

    def bind(self) -> tuple[Any, _c.Tensors]:
        """What a call writes, and the operands that name it."""
        o, self.lse = self.case.outputs()
        return o, tensors_of(self.case, o, self.lse)

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self.lib.tessera_baseline_destroy(self.handle)

    def check(self, code: int) -> None:
        if code:
            raise RuntimeError(self.status.message.decode())

    def explain(self) -> dict[str, Any]:
        size = self.lib.tessera_baseline_explain(self.handle, None, 0) + 1
        text = ctypes.create_string_buffer(size)
        self.lib.tessera_baseline_explain(self.handle, text, size)
        return dict(json.loads(text.value))

    def __call__(self) -> Any:
        if self.case.device.type == "cuda":
            self.exec.cuda_stream = torch.cuda.current_stream().cuda_stream
        workspace = self.workspace.data_ptr() if self.workspace is not None else None
        tensors, options, status = ctypes.byref(self.tensors), ctypes.byref(self.exec), ctypes.byref(self.status)
        self.check(
            self.lib.tessera_baseline_run(self.handle, tensors, workspace, self.workspace_bytes, options, status)
        )
        return self.out
