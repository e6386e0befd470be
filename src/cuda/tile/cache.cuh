// How the elements of a cache become those of a product: of q's own type as they are, bytes as f16. Every number of a
// byte is exact in f16, so only the scale is left to be applied.
#pragma once

#include <cstdint>

#include "../ptx/convert.cuh"
#include "element.cuh"

namespace tessera::cuda {

// Caches of q's own type.
struct PlainCache {
  static constexpr int kBytes = 2;
  template <class Element>
  using Product = Element;  // the type that is multiplied
};

enum class ByteType { int8, e4m3 };

// e4m3 as f16 by integers, of bytes in the high halves' of 16 bits: times 2^-8. Exponent and mantissa move to their
// places, where the bias differs by 8, subnormal where e4m3's is. All ones are the only NaN: there a carry fills the
// exponent.
__device__ __forceinline__ uint32_t shifted_e4m3(uint32_t high) {
  const uint32_t magnitude = (high & 0x7f007f00u) >> 1;
  return (high & 0x80008000u) | magnitude | ((magnitude + 0x00800080u) & 0x40004000u);
}

// Bytes as pairs of f16, times 1 / kUnit.
template <ByteType kType>
struct ByteCache {
  static constexpr int kBytes = 1;
  template <class Element>
  using Product = F16;
  static constexpr bool kConverted = kType == ByteType::e4m3 && ptx::kConvertsE4m3;  // by one instruction a pair
  static constexpr float kUnit = kType == ByteType::e4m3 && !kConverted ? 256.0f : 1.0f;

  // Numbers kFirst (low) and kSecond of four, then the other two in order.
  template <int kFirst, int kSecond>
  __device__ static __forceinline__ void pairs(uint32_t bytes, uint32_t& pair, uint32_t& others) {
    constexpr int kThird = kFirst != 0 ? 0 : (kSecond != 1 ? 1 : 2), kFourth = 6 - kFirst - kSecond - kThird;
    if constexpr (kConverted) {
      if constexpr (kSecond != kFirst + 1) {
        bytes = ptx::permute_bytes(bytes, 0u, kFirst | kSecond << 4 | kThird << 8 | kFourth << 12);
      }
      ptx::e4m3_to_f16(bytes, pair, others);
    } else if constexpr (kType == ByteType::int8) {
      // 1024 + (x + 128), of which the last digit is 1; minus 1152.
      const uint32_t digits = bytes ^ 0x80808080u;
      const auto number = [&](uint32_t first, uint32_t second) {
        return ptx::fma_f16x2(ptx::permute_bytes(digits, 0x64646464u, first | 4u << 4 | second << 8 | 4u << 12),
                              0x3c003c00u, 0xe480e480u);
      };
      pair = number(kFirst, kSecond), others = number(kThird, kFourth);
    } else {
      const auto number = [&](uint32_t first, uint32_t second) {
        return shifted_e4m3(ptx::permute_bytes(bytes, 0u, 4u | first << 4 | 4u << 8 | second << 12));
      };
      pair = number(kFirst, kSecond), others = number(kThird, kFourth);
    }
  }
};

}  // namespace tessera::cuda
