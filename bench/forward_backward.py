#!/usr/bin/env python3
"""Forward and backward together through autograd, beside PyTorch's cuDNN and FlashAttention-2 on a CUDA device.

One process, the same bf16 tensors of 16k tokens and hidden size 2048, candidates in random order, L2 overwritten before
each sample, medians of events. Usage: forward_backward.py [--seconds SECONDS a cell] [--out RESULTS.json]
"""

import argparse
import json
import statistics

import torch

import tessera
from tessera import bench
from tessera._bench_backward import BackwardCase, sdpa_forward
from tessera._bench_host import describe
from tessera._bench_output import output_file
from tessera._bench_peers import SDPBackend

TOKENS, HIDDEN = 16384, 2048


def step(case, forward):
    """dq, dk, dv of a forward and a backward pass."""
    inputs = tuple(x.detach().clone().requires_grad_() for x in (case.q, case.k, case.v))

    def call():
        with torch.enable_grad():
            o = forward(*inputs)
        return torch.autograd.grad(o, inputs, case.d_o)

    return call


def measure(text, options):
    case = BackwardCase(text)
    forwards = {
        "tessera": lambda q, k, v: tessera.attention(q, k, v, causal=case.causal),
        "cudnn": sdpa_forward(case, SDPBackend.CUDNN_ATTENTION),
        "flash": sdpa_forward(case, SDPBackend.FLASH_ATTENTION),
    }
    with tessera.expect_kernel("cuda.*") as scope:
        candidates = [bench.Candidate(name, "", step(case, forward)) for name, forward in forwards.items()]
    bench.rms_errors(candidates, case)
    bench.time_all(candidates, case, options)
    seconds = {one.name: statistics.median(one.seconds) for one in candidates}
    best = min(seconds["cudnn"], seconds["flash"])
    print(f"{text:46s}" + "".join(f"{x * 1e3:9.3f}" for x in seconds.values()) + f"{best / seconds['tessera']:9.3f}")
    # Of forward and backward: 2 + 5 products.
    return {
        "problem": text,
        "kernels": sorted(set(scope.ran)),
        "seconds_median": seconds["tessera"],
        "tflops": case.flops() / 2.5 * 3.5 / seconds["tessera"] * 1e-12,
        "rms_error": candidates[0].rms,
        "peers": {one.name: {"seconds_median": seconds[one.name], "rms_error": one.rms} for one in candidates[1:]},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.5, help="of timed rounds a cell, about")
    parser.add_argument("--out", type=output_file, help="result file")
    options = parser.parse_args()
    options.rounds, options.samples = 40, 3
    cells = [(d, n, mask) for d in (64, 128, 256) for n in (4096, 16384) for mask in ("", " causal")]
    print(f"{'ms; the last column: the better peer over ours':46s}  tessera    cudnn    flash")
    rows = []
    for d, n, mask in cells:
        heads = HIDDEN // d
        text = f"bwd bf16 b{TOKENS // n} hq{heads} sq{n} d{d}{mask} cuda"
        rows.append(measure(text, options))
    if options.out:
        with open(options.out, "w") as file:
            json.dump({**describe("cuda"), "rows": rows}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
