// What kernels outside of the library use of CUDA's header of the same name.
#pragma once

#include "../half.hpp"

struct __half {
  uint16_t bits;
};
inline float __half2float(__half value) { return tessera::emulator::from_f16(value.bits); }
inline __half __float2half(float value) { return {tessera::emulator::to_f16(value)}; }
