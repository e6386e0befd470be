// The vector half of a step: probabilities, rounded into the pairs that the tile product reads.
#pragma once

#include <cstdint>

#include "cpu/amx/arrange.hpp"
#include "cpu/amx/exp.hpp"
#include "cpu/amx/scores.hpp"
#include "cpu/convert.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

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
      split_pairs<kParts, false>(even, odd, to, kPartElements);
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
