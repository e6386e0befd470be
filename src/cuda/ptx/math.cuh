// Scalar instructions that C++ cannot name: one function an instruction. Source: PTX ISA, "Floating Point Instructions"
// and "cvt".
#pragma once

#include <cstdint>

#ifdef TESSERA_EMULATED
#include "emulator/ptx/math.hpp"
#else

namespace tessera::cuda::ptx {

// 2^x within 2 ulp; -inf gives +0, NaN stays, results below 2^-126 flush to 0. PTX ISA: ex2.approx.ftz.f32.
__device__ __forceinline__ float ex2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// log2(x) within 2^-22 (relative where |log2 x| > 1), for positive normal x. PTX ISA: lg2.approx.ftz.f32.
__device__ __forceinline__ float lg2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x within 1 ulp; results below 2^-126 flush to 0. PTX ISA: rcp.approx.ftz.f32.
__device__ __forceinline__ float rcp(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two floats to a pair of bf16, `low` in the lower half, nearest even. PTX ISA: cvt.rn.bf16x2.f32.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// Two floats to a pair of f16, `low` in the lower half, nearest even. PTX ISA: cvt.rn.f16x2.f32.
__device__ __forceinline__ uint32_t pack_f16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// One f16 to float, exact. PTX ISA: cvt.f32.f16.
__device__ __forceinline__ float unpack_f16(uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

}  // namespace tessera::cuda::ptx

#endif
