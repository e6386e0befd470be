// The instructions of src/cuda/ptx/convert.cuh.
#pragma once

#include "../half.hpp"

namespace tessera::cuda::ptx {

inline uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t both = low | uint64_t{high} << 32;
  uint32_t bytes = 0;
  for (int i = 0; i < 4; ++i) bytes |= static_cast<uint32_t>(both >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return bytes;
}

// In double, whose rounding to float is exact wherever the kernels use these: a product and a sum without rounding.
inline uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
  const auto one = [&](int shift) {
    const auto part = [&](uint32_t pair) { return double(emulator::from_f16(static_cast<uint16_t>(pair >> shift))); };
    return uint32_t{emulator::to_f16(static_cast<float>(std::fma(part(a), part(b), part(c))))} << shift;
  };
  return one(0) | one(16);
}

inline constexpr bool kConvertsE4m3 = true;

inline void e4m3_to_f16(uint32_t bytes, uint32_t& pair, uint32_t& others) {
  const auto one = [&](int index) {
    return uint32_t{emulator::to_f16(emulator::from_e4m3(static_cast<uint8_t>(bytes >> 8 * index)))};
  };
  pair = one(0) | one(1) << 16, others = one(2) | one(3) << 16;
}

inline uint32_t pack_e4m3(float first, float second, float third, float fourth) {
  return emulator::to_e4m3(first) | uint32_t{emulator::to_e4m3(second)} << 8 |
         uint32_t{emulator::to_e4m3(third)} << 16 | uint32_t{emulator::to_e4m3(fourth)} << 24;
}

}  // namespace tessera::cuda::ptx
