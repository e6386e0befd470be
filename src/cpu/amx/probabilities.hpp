// The vector half of a step: exp2 as exact as bf16 probabilities need, and their rounding into the pairs that the tile
// product reads.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/amx/arrange.hpp"
#include "cpu/amx/scores.hpp"
#include "cpu/convert.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

// (2^r - 1) / r for 0 <= r < 1 by kParts, minimax in relative error of 2^r: 8.6e-5 (a bf16 P misses by 2^-9 = 2e-3),
// 8.2e-8 (16 bits of P) and 2.0e-9. By reweighted least squares.
inline constexpr int kExp2Terms[] = {0, 3, 5, 6};
inline constexpr float kExp2Term[][6] = {
    {},
    {0.69511676f, 0.227644995f, 0.07706704f},
    {0.6931513f, 0.24016444f, 0.055799913f, 0.0090170307f, 0.00186713f},
    {0.69314706f, 0.2402293f, 0.05548528f, 0.0096754516f, 0.0012467847f, 0.00021612915f}};
// 2^x, exactly 1 at 0, 0 for -inf, NaN stays. Counted from the whole number below x, since the instruction that scales
// by a power of two takes just that one, and -inf needs no further care.
template <int kParts, class V>
inline V exp2_of_score(V x) {
  constexpr int kTerms = kExp2Terms[kParts];
  const V r = above_floor(x);
  V quotient = V::broadcast(kExp2Term[kParts][kTerms - 1]);
#pragma GCC unroll 5
  for (int i = kTerms - 2; i >= 0; --i) quotient = V::fma(quotient, r, V::broadcast(kExp2Term[kParts][i]));
  return scale_by_floor(V::fma(quotient, r, V::broadcast(1.0f)), x);
}

// bf16 of `even` in the low and of `odd` in the high half of 16 dwords at `to`; each further part, `part_stride`
// elements on, holds what those before it lost. Values are finite and not negative, or NaN, whose row the sum already
// marks.
template <int kParts, class V>
inline void store_pairs(V even, V odd, uint16_t* to, int64_t part_stride) {
  if constexpr (kParts == 1) {
    alignas(64) uint32_t low[16], high[16], pairs[16];
    even.store(low);
    odd.store(high);
    for (int i = 0; i < 16; ++i) pairs[i] = ((low[i] + 0x8000u) >> 16) | ((high[i] + 0x8000u) & 0xffff0000u);
    std::memcpy(to, pairs, 64);
  } else {
    split_pairs<kParts, false>(even, odd, to, part_stride);
  }
}

// P^T of one step, rounded to bf16 parts, and the row sums of the unrounded values, piece by piece: a piece is two keys
// of 16 rows.
template <int kParts, class V>
class ProbabilityPieces {
 public:
  static constexpr int64_t kPieces = kStepKeys;  // kStepKeys / 2 pairs of keys, two halves of the rows each

  ProbabilityPieces(const float* scores, float factor, const V (&row_max)[2], uint16_t* p)
      : scores_(scores),
        p_(p),
        factor_(factor),
        offset_{V::zero() - row_max[0], V::zero() - row_max[1]},
        sum_{V::zero(), V::zero()} {}

  [[gnu::noinline]] void advance(int64_t end) {
    constexpr int64_t kPartElements = kStepKeys / 32 * 2 * kTileElements;
    const V multiplier = V::broadcast(factor_);
    for (; done_ < end; ++done_) {
      const uint64_t piece = static_cast<uint64_t>(done_), key = piece / 2 * 2, half = piece % 2;
      const float* at = scores_ + key * kUnitRows + 16 * half;
      const V even = exp2_of_score<kParts>(V::fma(V::load(at), multiplier, offset_[half]));
      const V odd = exp2_of_score<kParts>(V::fma(V::load(at + kUnitRows), multiplier, offset_[half]));
      sum_[half] = sum_[half] + (even + odd);
      uint16_t* to = kParts == 1 ? p_ + key / 2 * kPairElements + half * 32
                                 : p_ + ((key / 32) * 2 + half) * kTileElements + (key % 32) / 2 * 32;
      store_pairs<kParts>(even, odd, to, kPartElements);
    }
  }
  void add_sums(float* row_sum) const {
    for (int half = 0; half < 2; ++half) (V::load(row_sum + 16 * half) + sum_[half]).store(row_sum + 16 * half);
  }

 private:
  const float* scores_;
  uint16_t* p_;
  const float factor_;
  const V offset_[2];
  V sum_[2];
  int64_t done_ = 0;
};

}  // namespace tessera::cpu::TESSERA_CPU_ISA
