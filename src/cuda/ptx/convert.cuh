// What turns bytes into pairs of 16-bit numbers: one function an instruction. sm_80 and later.
// Source: PTX ISA, "Data Movement and Conversion Instructions: prmt" and "Half Precision Floating Point Instructions".
#pragma once

#include <cstdint>

#ifdef TESSERA_EMULATED
#include "emulator/ptx/convert.hpp"
#else

namespace tessera::cuda::ptx {

// Byte i of the result is byte `selector` nibble i of {low, high}, 0 to 7. PTX ISA: prmt.b32.
__device__ __forceinline__ uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selector) {
  uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(selector));
  return bytes;
}

// a * b + c of pairs, rounded once; subnormals stay. PTX ISA: fma.rn.f16x2.
__device__ __forceinline__ uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// The same of bf16. PTX ISA: fma.rn.bf16x2.
__device__ __forceinline__ uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

}  // namespace tessera::cuda::ptx

#endif
