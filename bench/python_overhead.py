#!/usr/bin/env python3
"""Host time of one small call from Python, beside torch's own attention in the same process, as JSON.

Calls are timed in loops without waiting for a device, medians over repeats; on a GPU the kernels are shorter than the
calls, so the loop's time is the host's. Usage: python_overhead.py [--device cpu|cuda] [--seqlen N]
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time

import torch

import tessera
import tessera.compat.flash_attn as flash_attn

CALLS, REPEATS = 500, 15


def host_seconds(call, device):
    """Median seconds a call over REPEATS loops of CALLS; None where the call is refused."""
    try:
        for _ in range(100):
            call()
    except NotImplementedError:
        return None
    times = []
    for _ in range(REPEATS):
        if device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(CALLS):
            call()
        times.append((time.perf_counter() - begin) / CALLS)
    return statistics.median(times)


def import_seconds():
    """Median of five fresh interpreters: importing tessera, without any framework."""
    code = "import time; t = time.perf_counter(); import tessera; print(time.perf_counter() - t)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(5)]
    return statistics.median(float(run.stdout) for run in runs)


def measure(device, seqlen):
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    q, k, v = (torch.randn(1, seqlen, 4, 64, device=device, dtype=dtype) for _ in "qkv")
    heads_first = [x.transpose(1, 2) for x in (q, k, v)]
    with_grad = [x.clone().requires_grad_() for x in (q, k, v)]
    sdpa = torch.nn.functional.scaled_dot_product_attention
    o = torch.empty_like(q)
    plan = tessera.plan(q, k, v, causal=True)
    on_device = device == "cuda" and plan.workspace_bytes > 0
    workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device=device) if on_device else None

    calls = {
        "torch sdpa": lambda: sdpa(*heads_first, is_causal=True),
        "torch sdpa, gradients recorded": lambda: sdpa(*(x.transpose(1, 2) for x in with_grad), is_causal=True),
        "tessera.attention": lambda: tessera.attention(q, k, v, causal=True),
        "tessera.attention, gradients recorded": lambda: tessera.attention(*with_grad, causal=True),
        "tessera.sdpa": lambda: tessera.sdpa(*heads_first, is_causal=True),
        "compat.flash_attn_func": lambda: flash_attn.flash_attn_func(q, k, v, causal=True),
        "Plan.run": lambda: plan.run(q=q, k=k, v=v, o=o, workspace=workspace),
    }
    micros = {}
    for name, call in calls.items():
        seconds = host_seconds(call, device)
        micros[name] = None if seconds is None else round(seconds * 1e6, 2)
    return plan.kernel, micros


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--seqlen", type=int, default=16)
    arguments = parser.parse_args()
    if arguments.seqlen < 1:
        parser.error(f"--seqlen: {arguments.seqlen}, expected 1 or more")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.exit(3, "python_overhead.py: torch sees no CUDA device\n")
    kernel, micros = measure(arguments.device, arguments.seqlen)
    result = {
        "device": torch.cuda.get_device_name() if arguments.device == "cuda" else platform.processor() or "cpu",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "kernel": kernel,
        "problem": f"b1 hq4 sq{arguments.seqlen} d64 causal",
        "host_microseconds": micros,
        "direct_over_sdpa": round(micros["tessera.attention"] / micros["torch sdpa"], 3),
        "import_seconds": round(import_seconds(), 4),
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
