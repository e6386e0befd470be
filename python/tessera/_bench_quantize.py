"""python -m tessera._bench_quantize: GB/s of quantize() on a CUDA device, beside a copy of the same tensor.

Tensors of 64 MB in bfloat16, [4, 4096, 16, 128]. Bytes are what a form has to move: x read once, y written once; a
second or third pass over x is not counted, so that the figure says how far from a copy a form is. The L2 cache is
overwritten before each sample, several times, so that the host has launched all of a call before the device comes to
it; medians of events.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any, Callable

import torch

from . import quantize, version
from ._bench_output import Lacking, Parser, ended, output_file

SHAPE = (4, 4096, 16, 128)
SAMPLES, FLUSHES, FLUSH_BYTES = 15, 8, 256 << 20
FORMS: dict[str, dict[str, Any]] = {
    "row": dict(scales="row"),
    "block": dict(scales="block"),
    "block, rotated": dict(scales="block", rotate=1),
    "block, order 1": dict(scales="block", order=1),
    "head": dict(scales="head"),
    "head, rotated": dict(scales="head", rotate=1),
    "head, order 1, mean": dict(scales="head", order=1, subtract_mean=True),
    "tensor": dict(scales="tensor"),
    "no scales": dict(scales=None),
    "int8, head": dict(scales="head", dtype="int8"),
}


def seconds(call: Callable[[], Any], flush: torch.Tensor) -> float:
    call()
    found = []
    for _ in range(SAMPLES):
        for _ in range(FLUSHES):
            flush.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in "be")
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) * 1e-3)
    return statistics.median(found)


def main(arguments: list[str] | None = None) -> int:
    parser = Parser("tessera._bench_quantize", __doc__)
    parser.add_argument("out", nargs="?", type=output_file, help="result file")
    options = parser.parse_args(arguments)
    return ended(parser.prog, lambda: run(options.out))


def run(out: str | None) -> int:
    if not torch.cuda.is_available():
        raise Lacking("torch sees no CUDA device")
    torch.manual_seed(0)
    x = torch.randn(SHAPE, device="cuda", dtype=torch.bfloat16)
    y, flush = torch.empty_like(x), torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    rows = [{"form": "copy", "bytes": 4 * x.numel(), "seconds_median": seconds(lambda: y.copy_(x), flush)}]
    for name, options in FORMS.items():
        time = seconds(lambda options=options: quantize(x, **options), flush)  # type: ignore[misc]
        rows.append({"form": name, "bytes": 3 * x.numel(), "seconds_median": time})
    for row in rows:
        row["gbytes_per_s"] = row["bytes"] / row["seconds_median"] * 1e-9
        print(f"{row['form']:22s} {row['seconds_median'] * 1e6:8.1f} us  {row['gbytes_per_s']:8.0f} GB/s")
    if out:
        about = {"device": torch.cuda.get_device_name(), "commit": os.environ.get("TESSERA_COMMIT", "")}
        about.update(versions={"tessera": version(), "torch": torch.__version__}, shape=list(SHAPE), rows=rows)
        Path(out).write_text(json.dumps(about, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
