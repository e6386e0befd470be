// The 16-bit types and e4m3 by their bits, rounding to nearest even; written for the emulator, so that kernels are not
// judged by the conversions of the judge.
#pragma once

#include <algorithm>
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

// Sign, four bits of exponent with bias 7, three of mantissa; 0x7f is NaN, and there is no infinity.
inline float from_e4m3(uint8_t bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  if ((bits & 0x7f) == 0x7f) return std::bit_cast<float>(0x7fffffffu);
  const float magnitude =
      exponent == 0 ? std::ldexp(float(mantissa), -9) : std::ldexp(float(8 + mantissa), exponent - 10);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

// Beyond 448 the largest number, NaN stays.
inline uint8_t to_e4m3(float value) {
  if (std::isnan(value)) return 0x7f;
  const auto sign = static_cast<uint8_t>(std::signbit(value) ? 0x80 : 0);
  const float magnitude = std::fabs(value);
  if (magnitude >= 448.0f) return sign | 0x7e;
  if (magnitude == 0.0f) return sign;
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  // Units of the last of four digits, at least 2^-9; a sum that reaches the next power of two carries by itself.
  const int place = std::max(exponent, -5) - 4;
  const auto units = static_cast<int>(std::nearbyint(std::ldexp(magnitude, -place)));
  return static_cast<uint8_t>(sign | (units + ((place + 9) << 3)));
}

}  // namespace tessera::emulator
