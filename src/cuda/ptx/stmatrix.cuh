// Fragments of 16-bit elements to shared memory: one function an instruction. sm_90 and later.
// Source: PTX ISA, "Warp-level Matrix Store Instruction: stmatrix".
#pragma once

#include <cstdint>

#ifdef TESSERA_EMULATED
#include "emulator/ptx/stmatrix.hpp"
#else

namespace tessera::cuda::ptx {

// Four 8 x 8 matrices in the fragment layout of mma.m16n8k16, each stored transposed; lane l gives the address of row
// l % 8 of the transpose of matrix l / 8. PTX ISA: stmatrix.sync.aligned.m8n8.x4.trans.
__device__ __forceinline__ void stmatrix_x4_trans(uint32_t shared_address, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

}  // namespace tessera::cuda::ptx

#endif
