#!/usr/bin/env python3
"""Memory and time of attention over the sequence length N: the textbook, with its N x N matrix, beside the tiles.

    python examples/memory_and_time.py                  NumPy on the CPU
    python examples/memory_and_time.py --device cuda    PyTorch's operations on a GPU, in float16

First it checks that both give the same in float64 at N = 1000. Then it prints a table, one line a length, and with
matplotlib it draws memory_and_time.png. Memory is the peak of what a call allocates, its result included. On the CPU
the textbook is NumPy's and not tuned; `tessera bench` compares with one that is.
"""

import argparse
import os
import time
import tracemalloc
from pathlib import Path

import numpy as np

import tessera

HEADS, DIM = 4, 64


def textbook(q, k, v):
    """softmax(q k^T / sqrt(dim)) v with NumPy, all scores at once; [batch, seqlen, heads, dim]."""
    q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    scores = q @ k.swapaxes(-1, -2)
    scores *= q.dtype.type(q.shape[-1] ** -0.5)
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return (scores @ v).transpose(0, 2, 1, 3)


def textbook_cuda(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return ((q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1) @ v).transpose(1, 2)


def measure_cpu(call, arrays):
    """(bytes, seconds) of one call: peak by tracemalloc, then the best of three without it."""
    call(*arrays)
    tracemalloc.start()
    call(*arrays)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        call(*arrays)
        times.append(time.perf_counter() - begin)
    return peak, min(times)


def measure_cuda(call, arrays):
    import torch

    call(*arrays)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(3):
        call(*arrays)
    end.record()
    end.synchronize()
    return torch.cuda.max_memory_allocated() - before, begin.elapsed_time(end) / 3e3


def check():
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 1000, 1, DIM))
    error = np.abs(tessera.attention(q, k, v) - textbook(q, k, v)).max()
    print(f"N 1000, float64: tiles and textbook differ by {error:.1e} at most ({tessera.which().kernel})")
    assert error < 5e-15


def draw(rows, title, path):
    try:
        import matplotlib
    except ImportError:
        print("no picture: matplotlib is not installed")
        return
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(10, 4))
    lengths = [row[0] for row in rows]
    for panel, first, label, scale in ((panels[0], 1, "MiB", 2**20), (panels[1], 2, "milliseconds", 1e-3)):
        for offset, name, style in ((0, "textbook", "o--"), (2, "tessera", "o-")):
            panel.plot(lengths, [row[first + offset] / scale for row in rows], style, label=name)
        panel.set(xscale="log", yscale="log", xlabel="N", ylabel=label)
        panel.set_xticks(lengths, [str(n) for n in lengths])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
        panel.legend()
    panels[0].set_title("memory of a call")
    panels[1].set_title("time of a call")
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    print(f"drew {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 512, 1024, 2048, 4096])
    parser.add_argument("--out", default="memory_and_time.png")
    arguments = parser.parse_args()
    if min(arguments.lengths) < 1:
        parser.error(f"--lengths: {min(arguments.lengths)}, expected 1 or more")
    if not os.access(Path(arguments.out).parent, os.W_OK):
        parser.error(f"--out: {arguments.out!r} cannot be written, expected a file in a folder that can")
    check()
    rng = np.random.default_rng(0)
    rows = []
    print(f"{'N':>6} {'textbook MiB':>13} {'ms':>9} {'tessera MiB':>12} {'ms':>9}")
    for n in arguments.lengths:
        arrays = [rng.standard_normal((1, n, HEADS, DIM), np.float32) for _ in "qkv"]
        measure, other = measure_cpu, textbook
        if arguments.device == "cuda":
            import torch

            arrays = [torch.from_numpy(x).to("cuda", torch.float16) for x in arrays]
            measure, other = measure_cuda, textbook_cuda
        row = (n, *measure(other, arrays), *measure(tessera.attention, arrays))
        rows.append(row)
        print(f"{n:6d} {row[1] / 2**20:13.1f} {row[2] * 1e3:9.2f} {row[3] / 2**20:12.1f} {row[4] * 1e3:9.2f}")
    kernel = tessera.which().kernel
    draw(rows, f"{HEADS} heads of {DIM}, {arguments.device}, {kernel}", arguments.out)


if __name__ == "__main__":
    main()
