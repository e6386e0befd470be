// The vector half of a step: probabilities, rounded into the pairs that the tile product reads.
#pragma once

#include <cstdint>

#include "cpu/amx/arrange.hpp"
#include "cpu/amx/exp.hpp"
#include "cpu/amx/scores.hpp"
#include "cpu/convert.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

// P^T of one step, rounded to bf16 parts, and the row sums of the unrounded values, piece by piece: a piece is two keys
// of 32 rows.
template <int kParts, class V>
class ProbabilityPieces {
 public:
  static constexpr int64_t kPieces = kStepKeys / 2;

  ProbabilityPieces(const float* scores, float factor, const V (&row_max)[2], uint16_t* p, int64_t pair_elements)
      : scores_(scores),
        p_(p),
        pair_elements_(pair_elements),
        multiplier_(V::broadcast(factor)),
        offset_{V::zero() - row_max[0], V::zero() - row_max[1]},
        sum_{V::zero(), V::zero()} {}

  // Inlined, so that sums and constants stay in registers between the products.
  [[gnu::always_inline]] void advance(int64_t end) {
    constexpr int64_t kPartElements = kStepKeys / 32 * 2 * kTileElements;
    for (; done_ < end; ++done_) {
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const float* at = scores_ + 2 * done_ * kUnitRows + 16 * half;
        const V first = V::fma(V::load(at), multiplier_, offset_[half]);
        const V second = V::fma(V::load(at + kUnitRows), multiplier_, offset_[half]);
        const V even = exp2_of_score<kParts>(first), odd = exp2_of_score<kParts>(second);
        sum_[half] = sum_[half] + (even + odd);
        uint16_t* to = kParts == 1 ? p_ + done_ * pair_elements_ + half * 32
                                   : p_ + (done_ / 16 * 2 + half) * kTileElements + done_ % 16 * 32;
        split_pairs<kParts, false>(even, odd, to, kPartElements);
      }
    }
  }
  // Whether the sum of a row, and so perhaps a probability, exceeds 2^8.
  bool exceeds() const {
    const V most = V::broadcast(256.0f), one = V::broadcast(1.0f);
    return V::reduce_max(V::max(V::where_less(most, sum_[0], one, V::zero()),
                                V::where_less(most, sum_[1], one, V::zero()))) != 0.0f;
  }
  void add_sums(float* row_sum) const {
    for (int half = 0; half < 2; ++half) (V::load(row_sum + 16 * half) + sum_[half]).store(row_sum + 16 * half);
  }

 private:
  const float* scores_;
  uint16_t* p_;
  const int64_t pair_elements_;
  const V multiplier_, offset_[2];
  V sum_[2];
  int64_t done_ = 0;
};

}  // namespace tessera::cpu::TESSERA_CPU_ISA
