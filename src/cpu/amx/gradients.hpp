// The vector half of a step of backward: from S^T and dP^T of 32 keys x 32 rows, rows in the lanes, to P^T and dS^T in
// bf16 parts, as the three products behind them read them. lse, delta and the band are values of a lane, so nothing
// here crosses lanes. Invariant: what the band hides is 0 in all of them, whatever the products gave.
#pragma once

#include <cstdint>

#include "cpu/amx/backward_products.hpp"
#include "cpu/amx/exp.hpp"
#include "cpu/backward_scores.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

// Of a unit of 32 rows; bounds and diagonal count from the chunk's first key.
struct alignas(64) UnitLanes {
  float lse[32], delta[32], slope[32], diagonal[32], begin[32], end[32];
  int64_t first, first_key;  // row of lane 0; the chunk's first key
};

// A step's buffers. p_rows and g_rows: tiles [part][half of the keys], a key's 32 rows paired i with i + 16; g_pairs:
// tiles [part][half of the rows], keys paired.
struct StepOutput {
  uint16_t *p_rows, *g_rows, *g_pairs;
};

template <int kParts, class V>
class TileGradients {
 public:
  explicit TileGradients(const ScoreGradients<V>& scores) : scores_(scores) {}

  // From `sums`, S and then dP, four tiles each, of keys from `key` on, and a bias in S's order where there is one.
  // `masked`: the band hides some of it.
  void differentiate(const UnitLanes& lanes, bool masked, int64_t key, const float* sums, const float* bias,
                     StepOutput to) const {
    if (scores_.has_terms) {
      run<true, true>(lanes, key, sums, bias, to);
    } else if (masked) {
      run<true, false>(lanes, key, sums, bias, to);
    } else {
      run<false, false>(lanes, key, sums, bias, to);
    }
  }

 private:
  template <bool kMasked, bool kTerms>
  [[gnu::noinline]] void run(const UnitLanes& lanes, int64_t key, const float* sums, const float* bias,
                             StepOutput to) const {
    const V factor = V::broadcast(scores_.score_factor);
    V lse[2], delta[2], begin[2], end[2];
    for (int h = 0; h < 2; ++h) {
      lse[h] = V::load(lanes.lse + 16 * h);
      delta[h] = V::load(lanes.delta + 16 * h);
      begin[h] = V::load(lanes.begin + 16 * h);
      end[h] = V::load(lanes.end + 16 * h);
    }
    for (int64_t i = 0; i < 16; ++i) {  // keys i and i + 16
      Parts<kParts, V> grads[2][2];
      for (int a = 0; a < 2; ++a) {
        const V column = V::broadcast(float(key + i + 16 * a));
        Parts<kParts, V> probs[2];
        for (int h = 0; h < 2; ++h) {
          const int64_t place = (2 * a + h) * kTileFloats + i * 16;
          const float* at = sums + place;
          V prob, grad = V::load(at + kSumFloats) - delta[h];
          if constexpr (kTerms) {
            V bend = V::broadcast(1.0f);
            const V tilt = V::load(lanes.slope + 16 * h), distance = V::load(lanes.diagonal + 16 * h) - column;
            prob = probability(scores_.add_terms(V::load(at) * factor, bias + place, tilt, distance, bend) - lse[h]);
            grad = prob * grad * bend;
          } else {
            prob = probability(V::fma(V::load(at), factor, V::zero() - lse[h]));
            grad = prob * grad;
          }
          if constexpr (kMasked) {
            prob = V::where_less(column, end[h], V::where_less(column, begin[h], V::zero(), prob), V::zero());
            grad = V::where_less(column, end[h], V::where_less(column, begin[h], V::zero(), grad), V::zero());
          }
          probs[h] = split<kParts, false>(prob);
          grads[a][h] = split<kParts, false>(grad);
        }
        const int64_t row = a * kTileElements + i * kPaired;
        store_parts(merge_parts(probs[0], probs[1]), to.p_rows + row, 2 * kTileElements);
        store_parts(merge_parts(grads[a][0], grads[a][1]), to.g_rows + row, 2 * kTileElements);
      }
      for (int h = 0; h < 2; ++h)
        store_parts(merge_parts(grads[0][h], grads[1][h]), to.g_pairs + h * kTileElements + i * kPaired,
                    2 * kTileElements);
    }
  }

  static V probability(V exponent) {
    exponent = V::where_less(V::zero(), exponent, V::zero(), exponent);
    return exp2_of_score<kParts>(exponent * V::broadcast(float(core::kLog2E)));
  }

  const ScoreGradients<V>& scores_;
};

}  // namespace tessera::cpu::TESSERA_CPU_ISA
