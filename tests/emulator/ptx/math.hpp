// The instructions of src/cuda/ptx/math.cuh.
#pragma once

#include "../half.hpp"

namespace tessera::cuda::ptx {

// What flush-to-zero leaves of a number.
inline float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

inline float ex2(float x) { return flushed(std::exp2(flushed(x))); }
inline float lg2(float x) { return std::log2(flushed(x)); }
inline float rcp(float x) { return flushed(1.0f / flushed(x)); }

inline uint32_t pack_bf16(float low, float high) {
  return emulator::to_bf16(low) | uint32_t{emulator::to_bf16(high)} << 16;
}
inline uint32_t pack_f16(float low, float high) {
  return emulator::to_f16(low) | uint32_t{emulator::to_f16(high)} << 16;
}
inline float unpack_f16(uint16_t bits) { return emulator::from_f16(bits); }

}  // namespace tessera::cuda::ptx
