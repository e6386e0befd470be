// The 16-bit types by their bits, rounding to nearest even; written for the emulator, so that kernels are not judged by
// the conversions of the judge.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace tessera::emulator {

inline float from_bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

inline uint16_t to_bf16(float value) {
  if (std::isnan(value)) return 0x7fff;
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

inline float from_f16(uint16_t bits) {
  const uint32_t magnitude = uint32_t{bits & 0x7fffu} << 13;
  // The exponent's bias differs by 112; a subnormal f16 is a subnormal f32 before the product.
  float value = std::bit_cast<float>(magnitude) * 0x1p112f;
  if (magnitude >= 0x7c00u << 13) value = std::bit_cast<float>(magnitude | 0x7f800000u);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | uint32_t{bits & 0x8000u} << 16);
}

inline uint16_t to_f16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7fff;
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and above
  if (magnitude < 0x38800000u) {
    // Below 2^-14: in steps of 2^-24, which the sum with 2^-1 rounds to.
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(sum) - 0x3f000000u));
  }
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13));
}

}  // namespace tessera::emulator
