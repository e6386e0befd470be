// float16, bfloat16 and E4M3 to float32, the first two back, in plain integer arithmetic, exact for every bit pattern:
// subnormals kept, rounding to nearest even, NaN stays NaN. Used where no instruction does it, and as the yardstick of
// those that do. Source: IEEE 754-2019, binary16; bfloat16 is the upper half of binary32; OCP 8-bit floating point.
#pragma once

#include <cstdint>
#include <cstring>

namespace tessera::cpu {

[[gnu::always_inline]] inline float float_from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
[[gnu::always_inline]] inline uint32_t bits_from_float(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

[[gnu::always_inline]] inline float float_from_bf16(uint16_t h) { return float_from_bits(uint32_t{h} << 16); }

[[gnu::always_inline]] inline uint16_t bf16_from_float(float value) {
  const uint32_t bits = bits_from_float(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

[[gnu::always_inline]] inline float float_from_f16(uint16_t h) {
  const uint32_t sign = uint32_t{h & 0x8000u} << 16, exponent = (h >> 10) & 31u, fraction = h & 0x3FFu;
  if (exponent == 31u)
    return float_from_bits(sign | 0x7F800000u | (fraction << 13) | (fraction != 0 ? 0x00400000u : 0u));
  if (exponent != 0u) return float_from_bits(sign | ((exponent + 112u) << 23) | (fraction << 13));
  // Subnormal: fraction * 2^-24, exact in float32.
  const float magnitude = static_cast<float>(static_cast<int32_t>(fraction)) * 0x1p-24f;
  return float_from_bits(sign | bits_from_float(magnitude));
}

[[gnu::always_inline]] inline uint16_t f16_from_float(float value) {
  const uint32_t bits = bits_from_float(value), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu));
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // 65520 and above round to infinity
  if (magnitude < 0x38800000u) {
    // Below 2^-14: adding 1/2 puts the unit of the last place at 2^-24, so the addition itself rounds.
    const float sum = float_from_bits(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (bits_from_float(sum) - 0x3F000000u));
  }
  const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

// OCP 8-bit E4M3 to float, exact: 4 bits of exponent, biased by 7, with subnormals, no infinity, NaN where all are set.
[[gnu::always_inline]] inline float float_from_e4m3(uint8_t h) {
  const uint32_t sign = uint32_t{h & 0x80u} << 24, magnitude = h & 0x7Fu;
  const float subnormal = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-9f;
  const uint32_t normal = magnitude == 0x7Fu ? 0x7FC00000u : (magnitude << 20) + (120u << 23);  // 120 = 127 - 7
  return float_from_bits(sign | (magnitude < 8u ? bits_from_float(subnormal) : normal));
}

}  // namespace tessera::cpu
