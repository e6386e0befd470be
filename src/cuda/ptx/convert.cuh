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

// Whether the GPU that is compiled for has e4m3_to_f16x2().
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
inline constexpr bool kConvertsE4m3 = false;
#else
inline constexpr bool kConvertsE4m3 = true;
#endif

// Two e4m3 to f16, exact, the low byte to the low half; sm_89 and later. PTX ISA: cvt.rn.f16x2.e4m3x2.
__device__ __forceinline__ uint32_t e4m3_to_f16x2(uint16_t bytes) {
  uint32_t pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(bytes));
  return pair;
}

// Two floats to e4m3, `low` to the low byte, to nearest even, at most 448 in magnitude, NaN to 0x7f; sm_89 and later.
// PTX ISA: cvt.rn.satfinite.e4m3x2.f32.
__device__ __forceinline__ uint16_t pack_e4m3(float low, float high) {
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
}

}  // namespace tessera::cuda::ptx

#endif
