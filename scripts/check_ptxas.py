#!/usr/bin/env python3
"""Reads what ptxas said of every CUDA kernel (OBJECT.ptxas, kept by the build); fails on what exits 0 but costs speed.

A kernel may keep at most --spill-bytes in local memory and --stack-bytes of stack; a note C7508 or C7510 to C7518 (an
ignored setmaxnreg, serialised wgmma) fails always. Prints one line a kernel and target with --table.
Usage: check_ptxas.py BUILD_DIR [--table] [--spill-bytes 16] [--stack-bytes 16]
"""

import argparse
import pathlib
import re
import sys

ENTRY = re.compile(r"Compiling entry function '([^']+)' for '([^']+)'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")
# C7519 alone is harmless: ptxas adds a wgmma fence of its own.
NOTE = re.compile(r"\bC75(08|1[0-8])\b")

# Kernels that may keep more, by a part of their name, and why.
ALLOWED_BYTES = {
    # Decode at d 256 over bytes: 64 registers of queries and 128 of accumulators beside the conversions; numbers of the
    # copies lie in local memory, 20 loads a tile of keys, for which the warp waits anyway.
    "DecodeConfigILi256ELi1E": 48,
    # The same over 16-bit caches.
    "DecodeConfigILi256E": 28,
    # Hopper's backward: the warps beside the consumers have 24 registers. Up to d 128 the producer finds the block's
    # key tiles, once each; past that sixteen hold what a warp converts to dq, a few loads and stores every 2 KB. The
    # consumers spill nothing.
    "sm9015backward_kernelINS0_4Bf16ENS1_14BackwardConfigILi64ELNS0_9ScoreKindE0E": 140,
    "sm9015backward_kernelINS0_4Bf16ENS1_14BackwardConfigILi128ELNS0_9ScoreKindE0E": 140,
    "sm9015backward_kernelINS0_3F16ENS1_14BackwardConfigILi64ELNS0_9ScoreKindE0E": 140,
    "sm9015backward_kernelINS0_3F16ENS1_14BackwardConfigILi128ELNS0_9ScoreKindE0E": 140,
    "sm9015backward_kernelINS0_4Bf16ENS1_14BackwardConfigILi192E": 32,
    "sm9015backward_kernelINS0_4Bf16ENS1_14BackwardConfigILi256E": 32,
    "sm9015backward_kernelINS0_3F16ENS1_14BackwardConfigILi192E": 32,
    "sm9015backward_kernelINS0_3F16ENS1_14BackwardConfigILi256E": 32,
    # The portable backward at d 64, for 12.0 alone: a few numbers of the loop over heads.
    "sm8015backward_kernelINS0_4Bf16ENS1_14BackwardConfigILi64E": 24,
    "sm8015backward_kernelINS0_3F16ENS1_14BackwardConfigILi64E": 24,
    # FlashAttention-1 with tiles for 32 KiB at d 64, on 8.0 and 12.0: six numbers, for three blocks a multiprocessor.
    "CudaFa1ConfigILi64ELi32E": 24,
    # e4m3: scores, p and both levels of accumulators are 214 of 232 registers, at d 64 134 of 152. The plain loops of
    # d 64 and d 128 keep nothing there, those of d 256 an address and a maximum; the scheduling and transposing warps,
    # of 40 registers, do, and the code between two tiles.
    "sm9018fp8_forward_kernelINS1_8MeasuredINS1_8Fp8ShapeILi64E": 32,
    "sm9018fp8_forward_kernelINS1_8MeasuredINS1_8Fp8ShapeILi128E": 40,
    "sm9018fp8_forward_kernelINS1_8MeasuredINS1_8Fp8ShapeILi256E": 72,
    # Ablations of d 64 with 192 rows: 160 registers hold the plain loop; the masked loops and the scheduler thread keep
    # a few numbers in local memory.
    "ForwardShapeILi64ELi64ELi3E": 56,
    # Quantising rotated rows on 10.0, in float32 or of 16-bit dims that no thread holds whole: 64 registers for two
    # blocks a multiprocessor. Straight-line code.
    "quantize_held_own_kernelINS0_8HeldTileILi3ELNS0_4HeldE2E": 64,
    "quantize_held_own_kernelINS0_8HeldTileILi2ELNS0_4HeldE2E": 128,
    # Means on 8.9 and 12.0: the part that stores converts to e4m3 in more registers there, of 64. Straight-line code.
    "quantize_held_means_kernelILi4E": 76,
    "quantize_held_means_kernelILi3E": 76,
    # Appending, on 12.0 alone: five numbers of the launch, loaded once a thread.
    "13append_kernel": 24,
    # The ablation that divides at every step, d 128: the full kernel has no register left for the sums' reciprocals.
    "10NormalisedINS1_13ForwardConfigILi128E": 24,
}


def allowed_bytes(kernel, default):
    return max([default] + [size for part, size in ALLOWED_BYTES.items() if part in kernel])


def read_log(text):
    """Yields (kernel, target, stack, spill stores, spill loads, registers); notes come as the second value."""
    kernels, notes, current = [], [], None
    for line in text.splitlines():
        if NOTE.search(line):
            notes.append(line.strip())
        if match := ENTRY.search(line):
            current = {"kernel": match[1], "target": match[2], "stack": 0, "stores": 0, "loads": 0, "registers": 0}
            kernels.append(current)
        elif (match := FRAME.search(line)) and current:
            current["stack"], current["stores"], current["loads"] = (int(match[i]) for i in (1, 2, 3))
        elif (match := REGISTERS.search(line)) and current:
            current["registers"] = int(match[1])
    return kernels, notes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build_dir", type=pathlib.Path)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--spill-bytes", type=int, default=16)
    parser.add_argument("--stack-bytes", type=int, default=16)
    options = parser.parse_args()
    logs = sorted(options.build_dir.rglob("*.ptxas"))
    failures, count = [], 0
    for log in logs:
        name = log.name.removesuffix(".ptxas").removesuffix(".o")
        kernels, notes = read_log(log.read_text(errors="replace"))
        failures += [f"{name}: {note}" for note in notes]
        count += len(kernels)
        for k in kernels:
            line = (
                f"{name} {k['target']}: {k['registers']} registers, {k['stack']} bytes stack, "
                f"{k['stores']} + {k['loads']} bytes spilled, {k['kernel']}"
            )
            if options.table:
                print(line)
            spilled, stack = (allowed_bytes(k["kernel"], bytes) for bytes in (options.spill_bytes, options.stack_bytes))
            if k["stores"] > spilled or k["stack"] > stack:
                failures.append(line)
    for failure in failures:
        print(f"check_ptxas: {failure}", file=sys.stderr)
    if count == 0:
        print(f"check_ptxas: no ptxas log with a kernel under {options.build_dir}", file=sys.stderr)
        return 1
    print(f"check_ptxas: {count} kernels in {len(logs)} logs, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
