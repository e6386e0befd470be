#!/usr/bin/env python3
"""Writes src/cuda/ptx/wgmma_products.cuh and wgmma_bytes.cuh: one function a shape and form of wgmma.mma_async, since
its registers must be spelled one by one.
Usage: make_wgmma.py [--check]  (--check: fails when a file differs from what this would write)
"""

import pathlib
import sys

# Columns of the products q k^T (A and B in shared memory, both K-major) and p v (A in registers, B MN-major).
SCORE_COLUMNS = (32, 48, 64, 80, 96, 128, 160)
VALUE_COLUMNS = (64, 96, 128, 192, 256)
# Columns of backward's products: k q^T and v d_o^T, and k^T ds (A MN-major, B K-major).
FIRST_COLUMNS = (64, 128)
TRANSPOSED_COLUMNS = (32, 64)
# Columns of e4m3's products: q k^T, and p v with eight columns of ones beside v's, which sum p, or pieces.
BYTE_SCORE_COLUMNS = (64, 128)
BYTE_VALUE_COLUMNS = (64, 72, 136)
WIDTH = 120

HEAD = """\
// The shapes of wgmma.mma_async that the sm90 kernels use. Written by scripts/make_wgmma.py; do not edit.
// Executed by the 128 threads of a warpgroup, converged, between wgmma_fence and wgmma_commit. d: row lane / 4 (+ 8 for
// elements 2 and 3) of the warp's 16 rows, columns 8 n + 2 (lane % 4) + {0, 1} in d[n]. accumulate 0: d = a b.
// Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions: wgmma.mma_async".
#pragma once

#include <cstdint>

#include "half_type.hpp"

namespace tessera::cuda::ptx {

// d [64, kN] += a [64, 16] b [kN, 16]^T, both in shared memory, K-major.
template <HalfType kType, int kN>
__device__ __forceinline__ void wgmma_shared(float (&d)[kN / 8][4], uint64_t a, uint64_t b, int accumulate);

// d = a b of the same: what d held is not read, so its registers are free before.
template <HalfType kType, int kN>
__device__ __forceinline__ void wgmma_shared_first(float (&d)[kN / 8][4], uint64_t a, uint64_t b);

// d [64, kN] += a [16, 64]^T b [kN, 16]^T, both in shared memory, a MN-major (rows of 64 columns lie one after
// another), b K-major.
template <HalfType kType, int kN>
__device__ __forceinline__ void wgmma_transposed(float (&d)[kN / 8][4], uint64_t a, uint64_t b, int accumulate);
template <HalfType kType, int kN>
__device__ __forceinline__ void wgmma_transposed_first(float (&d)[kN / 8][4], uint64_t a, uint64_t b);

// d [64, kN] += a [64, 16] b [16, kN], a in registers in the fragment layout of mma.m16n8k16, b in shared memory,
// MN-major (rows of b lie one after another).
template <HalfType kType, int kN>
__device__ __forceinline__ void wgmma_registers(float (&d)[kN / 8][4], const uint32_t (&a)[4], uint64_t b,
                                                int accumulate);
"""

BYTE_HEAD = """\
// wgmma.mma_async of e4m3, as wgmma_products.cuh. Written by scripts/make_wgmma.py; do not edit.
#pragma once

#include <cstdint>

namespace tessera::cuda::ptx {

// d [64, kN] += a [64, 32] b [kN, 32]^T of e4m3, both in shared memory, K-major, the only order that bytes have.
template <int kN>
__device__ __forceinline__ void wgmma_bytes_shared(float (&d)[kN / 8][4], uint64_t a, uint64_t b, int accumulate);
template <int kN>
__device__ __forceinline__ void wgmma_bytes_shared_first(float (&d)[kN / 8][4], uint64_t a, uint64_t b);

// d [64, kN] += a [64, 32] b [kN, 32]^T of e4m3, a in registers: bytes 4 (lane % 4) .. + 3 of row lane / 4 of the
// warp's 16 rows in a[0], of row lane / 4 + 8 in a[1], bytes 16 further in a[2] and a[3].
template <int kN>
__device__ __forceinline__ void wgmma_bytes_registers(float (&d)[kN / 8][4], const uint32_t (&a)[4], uint64_t b,
                                                      int accumulate);
template <int kN>
__device__ __forceinline__ void wgmma_bytes_registers_first(float (&d)[kN / 8][4], const uint32_t (&a)[4], uint64_t b);
"""


def wrap(items, width):
    """Lines of items joined by ", ", no wider than width."""
    lines, line = [], ""
    for i, item in enumerate(items):
        text = item + ("," if i + 1 < len(items) else "")
        if len(line) + len(text) > width:
            lines.append(line.rstrip())
            line = ""
        line += text + " "
    return lines + [line.rstrip()]


def function(name, n, arguments, inputs, tail, first=False, e4m3=False):
    """First: the form whose d is written only. e4m3: the function itself, not a macro of two types."""
    count = n // 2
    out = [] if e4m3 else [f"#define TESSERA_{name.upper()}_{n}(kType, type)"]
    out += ["  template <>"]
    which = f"{n}" if e4m3 else f"kType, {n}"
    out += [f"  __device__ __forceinline__ void {name}<{which}>(float (&d)[{n // 8}][4], {arguments},"]
    out += ["      uint64_t b) {" if first else "      uint64_t b, int accumulate) {"]
    accumulate = "0" if first else f"%{count + len(inputs)}"
    depth, kind = ("k32", 'e4m3.e4m3') if e4m3 else ("k16", '" type "." type "')
    out += [f'    asm volatile("{{.reg .pred p; setp.ne.b32 p, {accumulate}, 0; "']
    out += [f'                 "wgmma.mma_async.sync.aligned.m64n{n}{depth}.f32.{kind} {{"']
    lines = wrap([f"%{i}" for i in range(count)], WIDTH - 30)
    out += [f'                 "{line} "' for line in lines[:-1]] + [f'                 "{lines[-1]}}}, "']
    operands = [f"%{count + i}" for i in range(len(inputs))]
    a = operands[0] if len(operands) == 2 else "{" + ", ".join(operands[:-1]) + "}"
    out += [f'                 "{a}, {operands[-1]}, p, {tail};}}"']
    outputs = wrap([f'"{"=" if first else "+"}f"(d[{i // 4}][{i % 4}])' for i in range(count)], WIDTH - 22)
    out += [" " * 17 + (": " if i == 0 else "  ") + line for i, line in enumerate(outputs)]
    constraints = [f'"{c}"({v})' for c, v in inputs] + ([] if first else ['"r"(accumulate)'])
    out += [" " * 17 + ": " + ", ".join(constraints) + ");"]
    out += ["  }"]
    if e4m3:
        return [line[2:] for line in out] + [""]
    width = WIDTH - 2
    lines = [line.ljust(width) + " \\" for line in out[:-1]] + out[-1:]
    lines += [f'TESSERA_{name.upper()}_{n}(HalfType::{kind}, "{kind}")' for kind in ("f16", "bf16")]
    lines += [f"#undef TESSERA_{name.upper()}_{n}", ""]
    return lines


def text():
    lines = [HEAD]
    lines += ["// clang-format off"]
    for n in SCORE_COLUMNS:
        lines += function("wgmma_shared", n, "uint64_t a", [("l", "a"), ("l", "b")], "1, 1, 0, 0")
    shared = ("uint64_t a", [("l", "a"), ("l", "b")])
    for n in FIRST_COLUMNS:
        lines += function("wgmma_shared_first", n, *shared, "1, 1, 0, 0", True)
    for n in TRANSPOSED_COLUMNS:
        lines += function("wgmma_transposed", n, *shared, "1, 1, 1, 0")
        lines += function("wgmma_transposed_first", n, *shared, "1, 1, 1, 0", True)
    for n in VALUE_COLUMNS:
        a = [("r", f"a[{i}]") for i in range(4)]
        lines += function("wgmma_registers", n, "const uint32_t (&a)[4]", a + [("l", "b")], "1, 1, 1")
    lines += ["// clang-format on", "", "}  // namespace tessera::cuda::ptx", ""]
    return "\n".join(lines)


def byte_text():
    lines = [BYTE_HEAD, "// clang-format off"]
    shared = ("uint64_t a", [("l", "a"), ("l", "b")])
    for n in BYTE_SCORE_COLUMNS:
        lines += function("wgmma_bytes_shared", n, *shared, "1, 1", e4m3=True)
        lines += function("wgmma_bytes_shared_first", n, *shared, "1, 1", True, True)
    for n in BYTE_VALUE_COLUMNS:
        a = ("const uint32_t (&a)[4]", [("r", f"a[{i}]") for i in range(4)] + [("l", "b")])
        lines += function("wgmma_bytes_registers", n, *a, "1, 1", e4m3=True)
        lines += function("wgmma_bytes_registers_first", n, *a, "1, 1", True, True)
    lines += ["// clang-format on", "", "}  // namespace tessera::cuda::ptx", ""]
    return "\n".join(lines)


def main():
    folder = pathlib.Path(__file__).resolve().parent.parent / "src/cuda/ptx"
    files = {folder / "wgmma_products.cuh": text(), folder / "wgmma_bytes.cuh": byte_text()}
    if sys.argv[1:] == ["--check"]:
        different = [path for path, wanted in files.items() if not path.exists() or path.read_text() != wanted]
        for path in different:
            print(f"{path} is not what scripts/make_wgmma.py writes", file=sys.stderr)
        return 1 if different else 0
    for path, wanted in files.items():
        path.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
