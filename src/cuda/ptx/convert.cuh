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

// Whether the GPU that is compiled for has e4m3_to_f16().
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
inline constexpr bool kConvertsE4m3 = false;
#else
inline constexpr bool kConvertsE4m3 = true;
#endif

// Four e4m3 to f16, exact, in order; sm_89 and later. Both halves in one place, or a shift brings the high one down.
// PTX ISA: cvt.rn.f16x2.e4m3x2.
__device__ __forceinline__ void e4m3_to_f16(uint32_t bytes, uint32_t& pair, uint32_t& others) {
  asm("{.reg .b16 low, high; mov.b32 {low, high}, %2; cvt.rn.f16x2.e4m3x2 %0, low; cvt.rn.f16x2.e4m3x2 %1, high;}"
      : "=r"(pair), "=r"(others)
      : "r"(bytes));
}

// Four floats to e4m3, the first to the lowest byte, nearest even, beyond 448 the largest number, NaN 0x7f; sm_89 and
// later. PTX ISA: cvt.rn.satfinite.e4m3x2.f32, whose first source goes to the high byte.
__device__ __forceinline__ uint32_t pack_e4m3(float first, float second, float third, float fourth) {
  uint32_t bytes;
  asm("{.reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, %2, %1; cvt.rn.satfinite.e4m3x2.f32 high, %4, %3; "
      "mov.b32 %0, {low, high};}"
      : "=r"(bytes)
      : "f"(first), "f"(second), "f"(third), "f"(fourth));
  return bytes;
}

}  // namespace tessera::cuda::ptx

#endif
