// The vector half of a step: exp2 as exact as bf16 probabilities need, and their rounding into the pairs that the tile
// product reads.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/amx/scores.hpp"
#include "cpu/convert.hpp"
#include "cpu/exp.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

// 2^x, exactly 1 at 0, +0 for -inf, NaN stays. kParts 1: relative error below 1.02e-4 (a rounded P misses by 2^-9 =
// 2e-3); kParts 2 keeps 16 bits of P and takes the full polynomial. Minimax coefficients for |r| <= 1/2 with the
// constant term fixed to 1, by reweighted least squares.
inline constexpr float kCubic[3] = {0.6932829f, 0.24221097f, 0.055008933f};
template <int kParts, class V>
inline V exp2_of_score(V x) {
  if constexpr (kParts == 2) {
    return exp2(x);
  } else {
    const V whole = V::nearest(x), r = x - whole;
    V quotient = V::fma(V::broadcast(kCubic[2]), r, V::broadcast(kCubic[1]));
    quotient = V::fma(quotient, r, V::broadcast(kCubic[0]));
    const V power = V::scale_exponent(V::fma(quotient, r, V::broadcast(1.0f)), whole);
    return V::zero_where_less(x, V::broadcast(-126.0f), power);
  }
}

// bf16 of `even` in the low and of `odd` in the high half of 16 dwords at `to`; the second part `part_stride` elements
// on holds what the first lost. Values are finite and not negative, or NaN, whose row the sum already marks.
template <int kParts, class V>
inline void store_pairs(V even, V odd, uint16_t* to, int64_t part_stride) {
  alignas(64) uint32_t low[16], high[16], pairs[16];
  even.store(low);
  odd.store(high);
  if constexpr (kParts == 1) {
    for (int i = 0; i < 16; ++i) pairs[i] = ((low[i] + 0x8000u) >> 16) | ((high[i] + 0x8000u) & 0xffff0000u);
    std::memcpy(to, pairs, 64);
  } else {
    for (int i = 0; i < 16; ++i) pairs[i] = (low[i] >> 16) | (high[i] & 0xffff0000u);
    std::memcpy(to, pairs, 64);
    for (int i = 0; i < 16; ++i) {
      const float rest_low = float_from_bits(low[i]) - float_from_bits(low[i] & 0xffff0000u);
      const float rest_high = float_from_bits(high[i]) - float_from_bits(high[i] & 0xffff0000u);
      pairs[i] = ((bits_from_float(rest_low) + 0x8000u) >> 16) | ((bits_from_float(rest_high) + 0x8000u) & 0xffff0000u);
    }
    std::memcpy(to + part_stride, pairs, 64);
  }
}

// P^T of one step, rounded to bf16 parts, and the row sums of the unrounded values, piece by piece: a piece is two keys
// of 16 rows.
template <int kParts, class V>
class ProbabilityPieces {
 public:
  static constexpr int64_t kPieces = kStepKeys;  // kStepKeys / 2 pairs of keys, two halves of the rows each

  ProbabilityPieces(const float* scores, float factor, const V (&row_max)[2], uint16_t* p)
      : scores_(scores), p_(p), factor_(factor), row_max_{row_max[0], row_max[1]}, sum_{V::zero(), V::zero()} {}

  [[gnu::noinline]] void advance(int64_t end) {
    constexpr int64_t kPartElements = kStepKeys / 32 * 2 * kTileElements;
    const V multiplier = V::broadcast(factor_);
    V sum[2] = {sum_[0], sum_[1]};
    for (; done_ < end; done_ += 2) {
      const int64_t key = done_;
      for (int half = 0; half < 2; ++half) {
        const float* at = scores_ + key * kUnitRows + 16 * half;
        const V even = exp2_of_score<kParts>(V::load(at) * multiplier - row_max_[half]);
        const V odd = exp2_of_score<kParts>(V::load(at + kUnitRows) * multiplier - row_max_[half]);
        sum[half] = sum[half] + (even + odd);
        uint16_t* to = p_ + ((key / 32) * 2 + half) * kTileElements + (key % 32) / 2 * 32;
        store_pairs<kParts>(even, odd, to, kPartElements);
      }
    }
    for (int half = 0; half < 2; ++half) sum_[half] = sum[half];
  }
  void add_sums(float* row_sum) const {
    for (int half = 0; half < 2; ++half) (V::load(row_sum + 16 * half) + sum_[half]).store(row_sum + 16 * half);
  }

 private:
  const float* scores_;
  uint16_t* p_;
  const float factor_;
  const V row_max_[2];
  V sum_[2];
  int64_t done_ = 0;
};

}  // namespace tessera::cpu::TESSERA_CPU_ISA
