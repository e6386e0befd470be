// How the elements of a cache become those of a product: of q's own type as they are, bytes by a few integer
// instructions. Every number of a byte is exact in both 16-bit types, so only the scale is left to be applied.
#pragma once

#include <cstdint>

#include "../ptx/convert.cuh"
#include "element.cuh"

namespace tessera::cuda {

// Caches of q's own type.
struct PlainCache {
  static constexpr int kBytes = 2;
};

enum class ByteType { int8, e4m3 };

// Bytes as pairs of Element, times 1 / kUnit.
template <class Element, ByteType kType>
struct ByteCache {
  static constexpr int kBytes = 1;
  static constexpr bool kF16 = Element::kType == ptx::HalfType::f16;
  static constexpr float kUnit = kType == ByteType::e4m3 && kF16 ? 256.0f : 1.0f;

  // Numbers kFirst (low) and kSecond of four.
  template <int kFirst, int kSecond>
  __device__ static uint32_t pair(uint32_t bytes) {
    // The bytes are the low halves' of 16 bits, or the high halves', beside a byte of another operand.
    constexpr uint32_t kLow = kFirst | 4u << 4 | kSecond << 8 | 4u << 12,
                       kHigh = 4u | kFirst << 4 | 4u << 8 | kSecond << 12;
    if constexpr (kType == ByteType::int8 && kF16) {
      // 1024 + (x + 128), of which the last digit is 1; minus 1152.
      return ptx::fma_f16x2(ptx::permute_bytes(bytes ^ 0x80808080u, 0x64646464u, kLow), 0x3c003c00u, 0xe480e480u);
    } else if constexpr (kType == ByteType::int8) {
      // The sign's weight is -128: 128 + the digits below it, minus 128 or 256, whose exponents differ by the sign.
      const uint32_t with_exponent = ptx::permute_bytes(bytes, 0x43434343u, kLow);
      return ptx::fma_bf16x2(with_exponent & 0xff7fff7fu, 0x3f803f80u, (with_exponent & 0xff80ff80u) ^ 0x80008000u);
    } else {
      // Exponent and mantissa move to their places; the bias differs by 8 (f16) or 120 (bf16), so the number is 2^-8 or
      // 2^-120 of what it was, subnormal where e4m3's is. All ones are the only NaN: there a carry fills the exponent.
      constexpr int kShift = kF16 ? 1 : 4;
      constexpr uint32_t kCarry = (0x7f00u >> kShift) + (0x0100u >> kShift), kLast = 0x0100u >> kShift;
      const uint32_t high = ptx::permute_bytes(bytes, 0u, kHigh);
      const uint32_t magnitude = (high & 0x7f007f00u) >> kShift;
      const uint32_t carry = (magnitude + (kLast | kLast << 16)) & (kCarry | kCarry << 16);
      const uint32_t small = (high & 0x80008000u) | magnitude | (kF16 ? carry : (carry << 4) - carry);
      return kF16 ? small : ptx::fma_bf16x2(small, 0x7b807b80u, 0x80008000u);  // times 2^120
    }
  }
};

}  // namespace tessera::cuda
