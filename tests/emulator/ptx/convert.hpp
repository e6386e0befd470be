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

// Sign, four bits of exponent with bias 7, three of mantissa; 0x7f is NaN, and there is no infinity.
inline uint32_t e4m3_to_f16x2(uint16_t bytes) {
  const auto one = [](uint32_t byte) {
    const int exponent = static_cast<int>(byte >> 3 & 15), mantissa = static_cast<int>(byte & 7);
    if ((byte & 0x7f) == 0x7f) return uint32_t{0x7fff};
    const float magnitude =
        exponent == 0 ? std::ldexp(float(mantissa), -9) : std::ldexp(float(8 + mantissa), exponent - 10);
    return emulator::to_f16(magnitude) | (byte & 0x80) << 8;
  };
  return one(bytes & 0xffu) | one(uint32_t{bytes} >> 8) << 16;
}

// By search: of two numbers beside one another the closer, of equally close ones the even byte.
inline uint16_t pack_e4m3(float low, float high) {
  const auto number = [](uint32_t byte) {
    const int exponent = static_cast<int>(byte >> 3), mantissa = static_cast<int>(byte & 7);
    return exponent == 0 ? std::ldexp(double(mantissa), -9) : std::ldexp(double(8 + mantissa), exponent - 10);
  };
  const auto one = [&](float x) -> uint32_t {
    if (x != x) return 0x7f;
    const double magnitude = std::fabs(double(x));
    uint32_t byte = 0;
    while (byte < 0x7e && number(byte + 1) <= magnitude) ++byte;
    if (byte < 0x7e) {
      const double below = magnitude - number(byte), above = number(byte + 1) - magnitude;
      if (above < below || (above == below && byte % 2 == 1)) ++byte;
    }
    return byte | (std::signbit(x) ? 0x80u : 0u);
  };
  return static_cast<uint16_t>(one(low) | one(high) << 8);
}

}  // namespace tessera::cuda::ptx
