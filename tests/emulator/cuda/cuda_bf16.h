// What kernels outside of the library use of CUDA's header of the same name.
#pragma once

#include "../half.hpp"

struct __nv_bfloat16 {
  uint16_t bits;
};
inline float __bfloat162float(__nv_bfloat16 value) { return tessera::emulator::from_bf16(value.bits); }
inline __nv_bfloat16 __float2bfloat16(float value) { return {tessera::emulator::to_bf16(value)}; }
