// Scalar element types: how a stored value becomes a number and back, rounding to nearest even. For host code that is
// not a hot loop; vector kernels have their own conversions, tested against these.
#pragma once

#include <cstdint>
#include <cstring>

#include "semantics.hpp"

namespace tessera::core {

inline uint32_t float_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float bits_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline float bf16_to_float(uint16_t stored) { return bits_float(uint32_t{stored} << 16); }
inline uint16_t float_to_bf16(float value) {
  const uint32_t bits = float_bits(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);  // quiet NaN
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float f16_to_float(uint16_t stored) {
  const uint32_t sign = uint32_t{stored} << 16 & 0x80000000;
  const uint32_t exponent = stored >> 10 & 0x1f, mantissa = stored & 0x3ff;
  if (exponent == 0x1f) return bits_float(sign | 0x7f800000 | mantissa << 13);
  if (exponent != 0) return bits_float(sign | (exponent + 112) << 23 | mantissa << 13);  // 112 = 127 - 15
  const float tiny = static_cast<float>(mantissa) * 0x1p-24f;                            // zero and subnormals
  return bits_float(sign | float_bits(tiny));
}
inline uint16_t float_to_f16(float value) {
  const uint32_t bits = float_bits(value), magnitude = bits & 0x7fffffff;
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
  if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // 65520 and above round to infinity
  if (magnitude < 0x38800000) {                                              // below 2^-14: subnormal
    // 0.5 has 2^-24 as its last place: the sum rounds to a multiple of f16's smallest step.
    const float shifted = bits_float(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (float_bits(shifted) - float_bits(0.5f)));
  }
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return static_cast<uint16_t>(sign | ((rounded >> 13) - (112u << 10)));
}

// The nearest of -127 to 127, ties to even; 0 of NaN. On the host and on devices.
TESSERA_HD int8_t float_to_int8(float value) {
  if (value != value) return 0;
  constexpr float kShift = 0x1.8p23f;  // its last place is 1, so the addition rounds
  const float inside = value < -127.0f ? -127.0f : value > 127.0f ? 127.0f : value;
  return static_cast<int8_t>(inside + kShift - kShift);
}

// A float's bits as OCP 8-bit E4M3: beyond 448 the largest number, NaN stays NaN. On the host and on devices, without
// branches.
TESSERA_HD uint8_t float_bits_to_e4m3(uint32_t bits) {
  const uint32_t sign = bits >> 24 & 0x80, magnitude = bits & 0x7fffffff;
  const uint32_t normal = ((magnitude + 0x7ffff + (magnitude >> 20 & 1)) >> 20) - (120u << 3);  // 120 = 127 - 7
  // Below 2^-6: 2^14 has 2^-9, the smallest number, as its last place, so the sum rounds.
  float shifted;
  std::memcpy(&shifted, &magnitude, sizeof shifted);
  shifted += 0x1p14f;
  uint32_t number;
  std::memcpy(&number, &shifted, sizeof number);
  number = magnitude < 0x3c800000 ? number - 0x46800000 : normal;
  number = magnitude >= 0x43e00000 ? 0x7e : number;  // 448
  return magnitude > 0x7f800000 ? uint8_t{0x7f} : static_cast<uint8_t>(sign | number);
}

// Storage and the type that arithmetic on it uses.
struct ElementF64 {
  using Storage = double;
  using Number = double;
  static double load(double stored) { return stored; }
  static double store(double value) { return value; }
};
struct ElementF32 {
  using Storage = float;
  using Number = float;
  static float load(float stored) { return stored; }
  static float store(float value) { return value; }
};
struct ElementF16 {
  using Storage = uint16_t;
  using Number = float;
  static float load(uint16_t stored) { return f16_to_float(stored); }
  static uint16_t store(float value) { return float_to_f16(value); }
};
struct ElementBF16 {
  using Storage = uint16_t;
  using Number = float;
  static float load(uint16_t stored) { return bf16_to_float(stored); }
  static uint16_t store(float value) { return float_to_bf16(value); }
};

}  // namespace tessera::core
