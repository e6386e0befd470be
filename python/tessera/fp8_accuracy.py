"""python -m tessera.fp8_accuracy: what float8 operands cost in accuracy, by the kernel that this machine chooses.

    python -m tessera.fp8_accuracy --out F             on the CPU, NumPy with ml_dtypes
    python -m tessera.fp8_accuracy --device cuda       the same inputs on a CUDA device, through PyTorch
    python -m tessera.fp8_accuracy --kernel GLOB       float8 operands on a row of one's choice

Two tables. `outliers` is that of the FlashAttention-3 paper (arXiv:2407.08608, section 4.3): q, k, v of N(0, 1) + N(0,
100) * Bernoulli(0.001), 100 the variance, d 128, N 4096; RMS error of o against float64 on the bfloat16 inputs, under
scales for the tensor or for 128 rows of a head of q and k, with and without a rotation of q and k, beside bfloat16 and
beside data without outliers. `bias` is v of N(0, 1) + 1 over N: sums of one sign, where an accumulator with few bits
comes out too small; the mean of o - exact over its rows, with v's mean subtracted or left in.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator

import numpy as np

from . import Quantized, attention, plan, quantize, version
from ._bench_output import Lacking, Parser, ended, number, output_file

DIM, HEADS, SEED = 128, 8, 20240711
BIAS_QUERIES = 256  # of the sweep over N: enough rows for a mean, and keys are what it is about


class Host:
    """Arrays of NumPy on the CPU."""

    def __init__(self) -> None:
        import ml_dtypes

        self.bfloat16 = ml_dtypes.bfloat16
        lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").is_file() else []
        models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        self.name = models[0] if models else platform.machine()

    def put(self, x: np.ndarray) -> Any:
        return x.astype(self.bfloat16)

    def get(self, x: Any) -> np.ndarray:
        return np.asarray(x, np.float64)


class Cuda:
    """Tensors of PyTorch on a CUDA device."""

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise Lacking("--device cuda: torch sees no CUDA device")
        self.torch = torch
        self.name = torch.cuda.get_device_name()

    def put(self, x: np.ndarray) -> Any:
        return self.torch.from_numpy(x).cuda().to(self.torch.bfloat16)

    def get(self, x: Any) -> np.ndarray:
        return x.double().cpu().numpy()


def place_of(device: str) -> Any:
    try:
        return Cuda() if device == "cuda" else Host()
    except ImportError as error:
        raise Lacking(f"--device {device}: {error}") from None


def bfloat16(x: np.ndarray) -> np.ndarray:
    """Finite numbers rounded to bfloat16, as float32."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def outliers(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape) + 10 * rng.standard_normal(shape) * (rng.random(shape) < 0.001)


def exact(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Attention in float64, a head at a time."""
    o = np.empty((*q.shape[:3], v.shape[3]))
    for head in range(q.shape[2]):
        scores = q[0, :, head] @ k[0, :, head].T / np.sqrt(q.shape[3])
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        o[0, :, head] = weights @ v[0, :, head] / weights.sum(axis=1, keepdims=True)
    return o


def errors(o: np.ndarray, right: np.ndarray) -> dict[str, float]:
    difference = o - right
    return {"rms_error": float(np.sqrt(np.mean(difference**2))), "mean_error": float(np.mean(difference))}


@contextmanager
def pinned(kernel: str | None) -> Iterator[None]:
    """Plans made inside take `kernel`; None: what they take otherwise."""
    before = os.environ.get("TESSERA_KERNEL")
    if kernel:
        os.environ["TESSERA_KERNEL"] = kernel
    try:
        yield
    finally:
        os.environ.pop("TESSERA_KERNEL", None)
        if before is not None:
            os.environ["TESSERA_KERNEL"] = before


class Float8:
    """Attention on float8 operands: where, on which row, with v in which order."""

    def __init__(self, place: Any, order: int, kernel: str | None):
        self.place, self.order, self.kernel = place, order, kernel

    def quantize_v(self, v: Any, **options: Any) -> Quantized:
        return quantize(v, order=self.order, **options)

    def arguments(self, q: Quantized, k: Quantized, v: Quantized) -> tuple[tuple[Any, ...], dict[str, Any]]:
        options = dict(q_scale=q.scale, k_scale=k.scale, v_scale=v.scale, v_mean=v.mean, v_order=self.order)
        return (q.data, k.data, v.data), {**options, "out_dtype": "float32"}

    def check(self) -> None:
        """Lacking, where no row takes even short operands of one scale a head."""
        ones = self.place.put(np.ones((1, 128, HEADS, DIM), np.float32))
        operands, options = self.arguments(quantize(ones), quantize(ones), self.quantize_v(ones))
        try:
            with pinned(self.kernel):
                plan(*operands, **options)
        except NotImplementedError as error:
            pin = f"--kernel {self.kernel}: " if self.kernel else ""
            raise Lacking(pin + " ".join(str(error).split())) from None

    def row(self, about: dict[str, Any], right: np.ndarray, q: Quantized, k: Quantized, v: Quantized) -> dict[str, Any]:
        """A row of the table; a refusal is one too."""
        operands, options = self.arguments(q, k, v)
        about = {**about, "dtype": "e4m3", "v_order": self.order}
        try:
            with pinned(self.kernel):
                kernel = plan(*operands, **options).kernel
                o = self.place.get(attention(*operands, **options))
        except NotImplementedError as error:
            # A line a row; the pinned one's, or the first that takes e4m3 queries at all, says why.
            lines = [line.strip() for line in str(error).splitlines()]
            reason = next((line for line in lines if line.startswith("cuda.sm90.forward_fp8:")), lines[-1])
            return {**about, "kernel": "", "refused": reason}
        return {**about, "kernel": kernel, **errors(o, right)}


def outlier_rows(place: Any, float8: Float8) -> list[dict[str, Any]]:
    rows = []
    for data, seqlen in (("outliers", 4096), ("normal", 4096)):
        rng = np.random.default_rng(SEED)
        shape = (1, seqlen, HEADS, DIM)
        make = outliers if data == "outliers" else lambda rng, shape: rng.standard_normal(shape)
        q, k, v = (bfloat16(make(rng, shape)) for _ in "qkv")
        right = exact(*(x.astype(np.float64) for x in (q, k, v)))
        q, k, v = (place.put(x) for x in (q, k, v))
        about = {"data": data, "seqlen": seqlen, "rms_exact": float(np.sqrt(np.mean(right**2)))}
        o = place.get(attention(q, k, v, out_dtype="float32"))
        kernel = plan(q, k, v, out_dtype="float32").kernel
        rows.append({**about, "dtype": "bf16", "kernel": kernel, **errors(o, right)})
        for scales in ("tensor", "block"):
            for rotate in (None, 1):
                qq, kk = (quantize(x, scales=scales, rotate=rotate) for x in (q, k))
                vv = float8.quantize_v(v, scales="tensor" if scales == "tensor" else "head")
                rows.append(float8.row({**about, "scales": scales, "rotated": rotate is not None}, right, qq, kk, vv))
    return rows


def bias_rows(place: Any, float8: Float8, longest: int) -> list[dict[str, Any]]:
    rows = []
    for seqlen in (n for n in (1024, 4096, 16384, 131072) if n <= longest):
        rng = np.random.default_rng(SEED + seqlen)
        q = bfloat16(rng.standard_normal((1, BIAS_QUERIES, HEADS, DIM)))
        k = bfloat16(rng.standard_normal((1, seqlen, HEADS, DIM)))
        v = bfloat16(rng.standard_normal((1, seqlen, HEADS, DIM)) + 1)
        right = exact(*(x.astype(np.float64) for x in (q, k, v)))
        q, k, v = (place.put(x) for x in (q, k, v))
        qq, kk = quantize(q), quantize(k)
        rms = float(np.sqrt(np.mean(right**2)))
        for subtract_mean in (False, True):
            vv = float8.quantize_v(v, subtract_mean=subtract_mean)
            about = {"data": "bias", "seqlen": seqlen, "scales": "head", "v_mean": subtract_mean, "rms_exact": rms}
            rows.append(float8.row(about, right, qq, kk, vv))
    return rows


def describe(place: Any) -> dict[str, Any]:
    root = Path(__file__).resolve().parents[2]
    told = subprocess.run(["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
    return {
        "device": place.name,
        "host": f"{platform.machine()}, {os.cpu_count()} CPUs, {platform.system()}",
        "versions": {"tessera": version(), "numpy": np.__version__, "python": platform.python_version()},
        "commit": os.environ.get("TESSERA_COMMIT") or told.stdout.strip(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
    }


def line(row: dict[str, Any]) -> str:
    words = [row["data"], f"N{row['seqlen']}", row["dtype"]]
    if row["dtype"] == "e4m3":
        words += [f"scales={row['scales']}", *(["rotated"] if row.get("rotated") else [])]
        words += ["v-mean"] if row.get("v_mean") else []
    if "refused" in row:
        return f"{' '.join(words):44s} refused: {row['refused']}"
    return f"{' '.join(words):44s} rms {row['rms_error']:.3e}  mean {row['mean_error']:+.2e}  {row['kernel']}"


def main(arguments: list[str] | None = None) -> int:
    parser = Parser("tessera.fp8_accuracy", __doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--kernel", metavar="GLOB", help="pins the row of float8 operands")
    parser.add_argument("--order", type=int, choices=(0, 1), default=0, help="v as rows, or as v_order 1")
    parser.add_argument("--longest", type=number(int, 1), default=16384, help="N of the sweep, at most (up to 131072)")
    parser.add_argument("--out", type=output_file, help="result file")
    options = parser.parse_args(arguments)
    return ended(parser.prog, lambda: run(options))


def run(options: argparse.Namespace) -> int:
    place = place_of(options.device)
    float8 = Float8(place, options.order, options.kernel)
    float8.check()
    rows = outlier_rows(place, float8) + bias_rows(place, float8, options.longest)
    for row in rows:
        print(line(row))
    if options.out:
        Path(options.out).write_text(json.dumps({**describe(place), "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
