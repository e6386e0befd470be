// Tensor-core products and their fragment loads: one function an instruction, nothing else. sm_80 and later.
// Executed by all 32 lanes of a warp, converged. Lane l holds, with g = l / 4 and t = l % 4:
//   A (16 x 16): a0 = rows g, columns 2t..2t+1; a1 = rows g + 8; a2, a3 = the same rows, columns 8 further
//   B (16 x 8):  b0 = rows 2t..2t+1 of column g; b1 = rows 8 further
//   C (16 x 8):  c0, c1 = row g, columns 2t, 2t+1; c2, c3 = row g + 8
// Source: PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type", "ldmatrix" and "movmatrix".
#pragma once

#include <cstdint>

#ifdef TESSERA_EMULATED
#include "emulator/ptx/mma.hpp"
#else

namespace tessera::cuda::ptx {

// d += a * b, f16 inputs, f32 accumulators. PTX ISA: mma.sync.aligned.m16n8k16.
__device__ __forceinline__ void mma_m16n8k16_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// d += a * b, bf16 inputs, f32 accumulators. PTX ISA: mma.sync.aligned.m16n8k16.
__device__ __forceinline__ void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8 x 8 matrices of 16-bit elements from shared memory; lane l gives the address of row l % 8 of matrix l / 8.
// Reads what the warp's earlier barrier made visible. PTX ISA: ldmatrix.sync.aligned.m8n8.x4.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t shared_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address)
               : "memory");
}

// The same with every 8 x 8 matrix transposed. PTX ISA: ldmatrix.sync.aligned.m8n8.x4.trans.
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t shared_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address)
               : "memory");
}

// The transpose of an 8 x 8 matrix of 16-bit elements: lane l gives and gets columns 2t, 2t+1 of row g. PTX ISA:
// movmatrix.sync.aligned.m8n8.trans.
__device__ __forceinline__ uint32_t transpose(uint32_t row) {
  uint32_t column;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(column) : "r"(row));
  return column;
}

}  // namespace tessera::cuda::ptx

#endif
