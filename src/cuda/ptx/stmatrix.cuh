// Fragment stores to shared memory: one function an instruction. sm_90. Executed by all 32 lanes of a warp, converged.
// Lane l gives the address of row l % 8 of matrix l / 8; r[i] is its part of matrix i, as ldmatrix (mma.cuh) returns
// it. Source: PTX ISA, "stmatrix".
#pragma once

#include <cstdint>

#ifdef TESSERA_EMULATED
#include "emulator/ptx/stmatrix.hpp"
#else

namespace tessera::cuda::ptx {

// Four 8 x 8 matrices of 16-bit elements to shared memory. PTX ISA: stmatrix.sync.aligned.m8n8.x4.
__device__ __forceinline__ void stmatrix_x4(uint32_t shared_address, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

// The same with every 8 x 8 matrix transposed. PTX ISA: stmatrix.sync.aligned.m8n8.x4.trans.
__device__ __forceinline__ void stmatrix_x4_trans(uint32_t shared_address, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

}  // namespace tessera::cuda::ptx

#endif
