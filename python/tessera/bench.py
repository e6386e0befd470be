"""python -m tessera.bench: this library beside PyTorch's attention backends on one CUDA device.

    python -m tessera.bench PROBLEM...                 problem text: "fwd bf16 b4 hq16 sq4096 d128 causal cuda"
    python -m tessera.bench --suite forward --out F    16k tokens, hidden 2048, d 64, 128, 256, N 512 to 16384
    python -m tessera.bench --draw RESULTS PICTURE     TFLOP/s over N from a result file
    python -m tessera.bench --table RESULTS            the same against FlashAttention-2 in a few lines

Every candidate runs in this process on the same random tensors. Rounds visit the candidates in random order, the L2
cache is overwritten before each sample, samples are timed by events, and medians are kept: a power-limited card favours
whoever runs after a pause, so only figures of one run compare. `textbook` is the baseline cuda.textbook: two cuBLAS
products around a softmax kernel, S and P in device memory, from libtessera_baselines.so beside the library. The result
file has the keys of `tessera bench --json`, and rms_error of every candidate against float64.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import hashlib
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable

import torch
import torch.nn.functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from . import Plan, Problem, _c, version
from ._bench_report import draw, short_table, table_line

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
DTYPES = {_c.F16: torch.float16, _c.BF16: torch.bfloat16}
FLUSH_BYTES = 256 << 20  # several times the L2 cache of any device
LARGEST_SCORES = 24 << 30  # bytes of S and P that a textbook candidate may take


def suite(name: str) -> list[str]:
    """Problems of a named suite."""
    if name != "forward":
        raise SystemExit(f"--suite: {name!r}, expected forward")
    problems = []
    for dim in (64, 128, 256):
        for length in (512, 1024, 2048, 4096, 8192, 16384):
            for mask in ("", " causal"):
                problems.append(f"fwd bf16 b{16384 // length} hq{2048 // dim} sq{length} d{dim}{mask} cuda")
    return problems


class Case:
    """One dense problem with its tensors [batch, seqlen, heads, dim]."""

    def __init__(self, text: str):
        self.problem = p = Problem(text, return_lse=True)
        self.causal = p.right == 0 and p.left == -1
        dense = p.layout_q == _c.DENSE and p.layout_kv == _c.DENSE
        if p.device < 0 or p.q.dtype not in DTYPES or not dense or not (self.causal or p.left == p.right == -1):
            raise SystemExit(f"{text}: expected a dense f16 or bf16 problem on cuda, full or causal")
        device, dtype = torch.device("cuda", p.device), DTYPES[p.q.dtype]
        torch.manual_seed(0)
        make = lambda *shape: torch.randn(shape, device=device, dtype=torch.float32).to(dtype)
        self.q = make(p.batch, p.seqlen_q, p.heads_q, p.head_dim_qk)
        self.k = make(p.batch, p.seqlen_k, p.heads_kv, p.head_dim_qk)
        self.v = make(p.batch, p.seqlen_k, p.heads_kv, p.head_dim_v)
        self.o = torch.full((p.batch, p.seqlen_q, p.heads_q, p.head_dim_v), float("nan"), device=device, dtype=dtype)
        self.lse = torch.full((p.batch, p.heads_q, p.seqlen_q), float("nan"), device=device)
        self.mask = None
        if self.causal and p.seqlen_q != p.seqlen_k:
            ones = torch.ones(p.seqlen_q, p.seqlen_k, dtype=torch.bool, device=device)
            self.mask = ones.tril(p.seqlen_k - p.seqlen_q)

    def transposed(self) -> tuple[torch.Tensor, ...]:
        return tuple(x.transpose(1, 2) for x in (self.q, self.k, self.v))

    def score_bytes(self) -> int:
        p = self.problem
        return 4 * p.batch * p.heads_q * p.seqlen_q * p.seqlen_k

    def kept_pairs(self) -> int:
        p = self.problem
        if not self.causal:
            return p.seqlen_q * p.seqlen_k
        offset = p.seqlen_k - p.seqlen_q
        return sum(max(0, min(p.seqlen_k, i + offset + 1)) for i in range(p.seqlen_q))

    def flops(self) -> int:
        p = self.problem
        return 2 * (p.head_dim_qk + p.head_dim_v) * p.batch * p.heads_q * self.kept_pairs()

    def bytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in (self.q, self.k, self.v, self.o, self.lse))


def sdpa(case: Case, backend: SDPBackend) -> Callable[[], torch.Tensor]:
    q, k, v = case.transposed()
    options: dict[str, Any] = {"attn_mask": case.mask} if case.mask is not None else {"is_causal": case.causal}
    if case.problem.heads_q != case.problem.heads_kv:
        options["enable_gqa"] = True

    def call() -> torch.Tensor:
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options).transpose(1, 2)

    return call


def tensors_of(case: Case, o: torch.Tensor, lse: torch.Tensor) -> _c.Tensors:
    tensors = _c.Tensors()
    tensors.size = ctypes.sizeof(_c.Tensors)
    for name, tensor in {"q": case.q, "k": case.k, "v": case.v, "o": o, "lse": lse}.items():
        setattr(tensors, name, tensor.data_ptr())
    return tensors


def workspace_of(case: Case, size: int) -> torch.Tensor | None:
    return torch.empty(size, dtype=torch.uint8, device=case.q.device) if size else None


class Runner:
    """tessera_plan_run with everything prepared, so that a call costs what it costs a C caller plus ctypes."""

    def __init__(self, case: Case):
        begin = time.perf_counter()
        self.plan = Plan(case.problem)
        self.plan_seconds = time.perf_counter() - begin
        self.case = case
        self.workspace = workspace_of(case, self.plan.workspace_bytes)
        self.tensors = tensors_of(case, case.o, case.lse)
        self.exec = _c.Exec(ctypes.sizeof(_c.Exec), None, None)
        self.status = _c.Status()

    def __call__(self) -> torch.Tensor:
        self.exec.cuda_stream = torch.cuda.current_stream().cuda_stream
        code = self.launch()
        if code:
            raise RuntimeError(self.status.message.decode())
        return self.case.o

    def launch(self) -> int:
        workspace = self.workspace.data_ptr() if self.workspace is not None else None
        return _c.lib.tessera_plan_run(
            self.plan._handle,
            ctypes.byref(self.tensors),
            workspace,
            self.plan.workspace_bytes,
            ctypes.byref(self.exec),
            ctypes.byref(self.status),
        )

    def host_seconds(self, baselines: Baselines | None) -> float | None:
        """What tessera_plan_run takes of the host, called from C; None without the library that does so."""
        if baselines is None:
            return None
        self()
        run = ctypes.cast(_c.lib.tessera_plan_run, ctypes.c_void_p)
        workspace = self.workspace.data_ptr() if self.workspace is not None else None
        tensors, options = ctypes.byref(self.tensors), ctypes.byref(self.exec)
        seconds = baselines.lib.tessera_baseline_host_seconds(
            run, self.plan._handle, tensors, workspace, self.plan.workspace_bytes, options
        )
        if seconds < 0:
            raise RuntimeError(f"{self.case.problem}: a run failed while its host time was taken")
        return float(seconds)


class Baselines:
    """libtessera_baselines.so: rows that the library does not hold, planned and run as its own."""

    def __init__(self) -> None:
        path = Path(os.environ.get("TESSERA_BASELINES") or _c.library_path.with_name("libtessera_baselines.so"))
        self.lib = lib = ctypes.CDLL(str(path))
        pointer = ctypes.c_void_p
        size = ctypes.POINTER(ctypes.c_size_t)
        lib.tessera_baseline_create.argtypes = [pointer, ctypes.POINTER(pointer), size, pointer]
        lib.tessera_baseline_run.argtypes = [pointer, pointer, pointer, ctypes.c_size_t, pointer, pointer]
        lib.tessera_baseline_destroy.argtypes = [pointer]
        lib.tessera_baseline_destroy.restype = None
        lib.tessera_baseline_host_seconds.argtypes = [pointer, pointer, pointer, pointer, ctypes.c_size_t, pointer]
        lib.tessera_baseline_host_seconds.restype = ctypes.c_double

    @classmethod
    def load(cls) -> Baselines | None:
        """The library, or None with a line on stderr."""
        try:
            return cls()
        except (OSError, AttributeError) as error:
            print(f"textbook and host time left out: {error}", file=sys.stderr)
            return None


class Textbook:
    """cuda.textbook on a case, with outputs and a workspace of its own. RuntimeError where it refuses."""

    def __init__(self, baselines: Baselines, case: Case):
        self.lib, self.case, self.status = baselines.lib, case, _c.Status()
        self.o, self.lse = torch.full_like(case.o, float("nan")), torch.full_like(case.lse, float("nan"))
        self.handle, size = ctypes.c_void_p(), ctypes.c_size_t()
        problem = Problem.from_buffer_copy(case.problem)
        problem.kernel = b"cuda.textbook"
        self.check(
            self.lib.tessera_baseline_create(
                ctypes.byref(problem), ctypes.byref(self.handle), ctypes.byref(size), ctypes.byref(self.status)
            )
        )
        self.workspace_bytes = size.value
        self.workspace = workspace_of(case, size.value)
        self.tensors = tensors_of(case, self.o, self.lse)
        self.exec = _c.Exec(ctypes.sizeof(_c.Exec), None, None)

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self.lib.tessera_baseline_destroy(self.handle)

    def check(self, code: int) -> None:
        if code:
            raise RuntimeError(self.status.message.decode())

    def __call__(self) -> torch.Tensor:
        self.exec.cuda_stream = torch.cuda.current_stream().cuda_stream
        workspace = self.workspace.data_ptr() if self.workspace is not None else None
        tensors, options, status = ctypes.byref(self.tensors), ctypes.byref(self.exec), ctypes.byref(self.status)
        self.check(
            self.lib.tessera_baseline_run(self.handle, tensors, workspace, self.workspace_bytes, options, status)
        )
        return self.o


def exact(case: Case, heads: int) -> torch.Tensor:
    """Batch row 0, the first `heads` heads, in float64: [seqlen_q, heads, dim]."""
    p = case.problem
    group = p.heads_q // p.heads_kv
    out = torch.empty(p.seqlen_q, heads, p.head_dim_v, dtype=torch.float64, device=case.q.device)
    columns = torch.arange(p.seqlen_k, device=case.q.device)
    for head in range(heads):
        k, v = case.k[0, :, head // group].double(), case.v[0, :, head // group].double()
        for row in range(0, p.seqlen_q, 2048):
            q = case.q[0, row : row + 2048, head].double()
            scores = q @ k.T * p.head_dim_qk**-0.5
            if case.causal:
                rows = torch.arange(row, row + q.shape[0], device=q.device) + p.seqlen_k - p.seqlen_q
                scores.masked_fill_(columns[None, :] > rows[:, None], float("-inf"))
            out[row : row + 2048, head] = torch.softmax(scores, -1).nan_to_num_() @ v
    return out


def sample(call: Callable[[], Any], flush: torch.Tensor, count: int) -> list[float]:
    events = []
    for _ in range(count):
        flush.zero_()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        events.append((begin, end))
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) * 1e-3 for begin, end in events]


def extra_memory(call: Callable[[], Any]) -> int:
    """Device bytes that a call allocates beyond its output."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = call()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    return max(0, peak - out.numel() * out.element_size())


def candidates_of(case: Case, runner: Runner, baselines: Baselines | None) -> dict[str, Callable[[], torch.Tensor]]:
    calls: dict[str, Callable[[], torch.Tensor]] = {runner.plan.kernel: runner}
    for name, backend in BACKENDS.items():
        if name != "math" or 2 * case.score_bytes() <= LARGEST_SCORES:
            calls[name] = sdpa(case, backend)
    working = {}
    if baselines is not None and 3 * case.score_bytes() <= 2 * LARGEST_SCORES:  # S in 4 bytes, P in 2
        try:
            calls["textbook"] = Textbook(baselines, case)
        except RuntimeError as error:
            print(f"  textbook left out: {str(error).splitlines()[0]}", file=sys.stderr)
    for name, call in calls.items():
        try:
            call()
            torch.cuda.synchronize()
            working[name] = call
        except (RuntimeError, torch.cuda.OutOfMemoryError) as error:
            if name == runner.plan.kernel:
                raise
            print(f"  {name} left out: {str(error).splitlines()[0]}", file=sys.stderr)
    return working


def measure(text: str, rounds: int, samples: int, errors: bool, baselines: Baselines | None) -> dict[str, Any]:
    case = Case(text)
    runner = Runner(case)
    calls = candidates_of(case, runner, baselines)
    memory = {name: extra_memory(call) + getattr(call, "workspace_bytes", 0) for name, call in calls.items()}
    rms = {}
    if errors:
        heads = min(2, case.problem.heads_q)
        reference = exact(case, heads)
        for name, call in calls.items():
            rms[name] = (call()[0, :, :heads].double() - reference).square().mean().sqrt().item()
        del reference
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=case.q.device)
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            # The slow ones settle sooner, and their heat should not be the others' clock.
            slow = name in ("math", "textbook")
            seconds[name] += sample(calls[name], flush, 1 if slow else samples)
    median = {name: statistics.median(times) for name, times in seconds.items()}
    explained = runner.plan.explain(json=True)
    kernel, own, flops = runner.plan.kernel, median[runner.plan.kernel], case.flops()
    row = {
        "problem": str(case.problem),
        "kernel": kernel,
        "status": "ran",
        "reason": "",
        "baseline": False,
        "seconds_median": own,
        "seconds_min": min(seconds[kernel]),
        "seconds_max": max(seconds[kernel]),
        "flops": flops,
        "bytes": case.bytes(),
        "tflops": flops / own * 1e-12,
        "gbytes_per_s": case.bytes() / own * 1e-9,
        "speedup_over_textbook": median["textbook"] / own if "textbook" in median else None,
        "workspace_bytes": runner.plan.workspace_bytes,
        "extra_bytes": memory[kernel] + runner.plan.workspace_bytes + case.lse.numel() * 4,
        "plan_seconds": runner.plan_seconds,
        "host_seconds": runner.host_seconds(baselines),
        "rms_error": rms.get(kernel),
        "tile": [explained.get("tile_m"), explained.get("tile_n")],
        "peers": {
            name: {
                "seconds_median": median[name],
                "tflops": flops / median[name] * 1e-12,
                "rms_error": rms.get(name),
                "extra_bytes": memory[name],
            }
            for name in calls
            if name != kernel
        },
    }
    return row


def sources_sha256() -> str | None:
    """The hash of the CUDA kernels' sources that cli/build_info.cmake prints, from the tree that holds this package."""
    root = Path(__file__).resolve().parents[2]
    shared = ("src/semantics.hpp", "src/sequence.hpp")
    files = [path for path in (root / "src" / "cuda").rglob("*") if path.is_file()]
    if not files:
        return None
    files += [root / name for name in shared if (root / name).is_file()]
    paths = sorted(path.relative_to(root).as_posix() for path in files)
    lines = "".join(f"{hashlib.sha256((root / path).read_bytes()).hexdigest()}  {path}\n" for path in paths)
    return hashlib.sha256(lines.encode()).hexdigest()


def smi(query: str) -> str:
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()
    except (OSError, subprocess.CalledProcessError, IndexError):
        return ""


def describe() -> dict[str, Any]:
    return {
        "device": torch.cuda.get_device_name(),
        "host": f"{platform.machine()}, {os.cpu_count()} CPUs, {platform.system()}",
        "driver": smi("driver_version"),
        "clocks": smi("clocks.max.sm,clocks.max.mem,power.limit"),
        "versions": {
            "tessera": version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "python": platform.python_version(),
        },
        "commit": os.environ.get("TESSERA_COMMIT", ""),
        "kernel_sources_sha256": sources_sha256(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tessera.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("problems", nargs="*", metavar="PROBLEM")
    parser.add_argument("--suite", help="forward")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--samples", type=int, default=3, help="a round and candidate")
    parser.add_argument("--no-errors", action="store_true", help="leave the comparison with float64 out")
    parser.add_argument("--out", help="result file")
    parser.add_argument("--draw", nargs=2, metavar=("RESULTS", "PICTURE"))
    parser.add_argument("--table", metavar="RESULTS")
    options = parser.parse_args(arguments)
    if options.table:
        print(short_table(options.table))
        return 0
    if options.draw:
        draw(*options.draw)
        return 0
    problems = options.problems + (suite(options.suite) if options.suite else [])
    if not problems:
        parser.error("no problem; expected problem text or --suite forward")
    if not torch.cuda.is_available():
        print("tessera.bench: torch sees no CUDA device", file=sys.stderr)
        return 3
    baselines = Baselines.load()
    rows = []
    for text in problems:
        rows.append(measure(text, options.rounds, options.samples, not options.no_errors, baselines))
        print(table_line(rows[-1]), flush=True)
    if options.out:
        Path(options.out).write_text(json.dumps({**describe(), "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
