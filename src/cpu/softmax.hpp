// The online softmax of one strip's scores, row by row, and the score terms that come before it. Scores stay in natural
// units: x - row_max is formed before the factor log2(e), so the largest score gives exactly 1 and a bias at the
// end of float's range stays finite. Invariants: masked scores are selected to -inf, never added to; NaN reaches
// its own row's sum alone.
#pragma once

#include <cstdint>
#include <limits>

#include "exp.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

template <class T>
inline constexpr T kInfinity = std::numeric_limits<T>::infinity();

// scores[i] = softcap * tanh(scores[i]) for whole vectors of [begin, end); the product came with scale / softcap.
template <class V>
void cap_scores(typename V::Scalar softcap, typename V::Scalar* scores, int64_t begin, int64_t end) {
  for (int64_t j = begin; j < end; j += V::kLanes)
    (V::broadcast(softcap) * tanh(V::load(scores + j))).store(scores + j);
}

// scores[i] += bias[i]; a bias of -inf masks whatever the score is.
template <class V>
void add_bias(const typename V::Scalar* bias, typename V::Scalar* scores, int64_t begin, int64_t end) {
  using T = typename V::Scalar;
  const V lowest = V::broadcast(std::numeric_limits<T>::lowest()), masked = V::broadcast(-kInfinity<T>);
  for (int64_t j = begin; j < end; j += V::kLanes) {
    const V term = V::load(bias + j);
    V::where_less(term, lowest, masked, V::load(scores + j) + term).store(scores + j);
  }
}

// scores[i] -= slope * |distance - i|, distance from column 0 to the row's diagonal.
template <class V>
void add_alibi(typename V::Scalar slope, typename V::Scalar distance, typename V::Scalar* scores, int64_t begin,
               int64_t end) {
  using T = typename V::Scalar;
  const V factor = V::broadcast(-slope);
  for (int64_t j = begin; j < end; j += V::kLanes) {
    const V steps = V::abs(V::broadcast(distance - T(j)) - V::iota());
    V::fma(factor, steps, V::load(scores + j)).store(scores + j);
  }
}

// -inf outside of [keep_begin, keep_end), for columns [begin, end).
template <class T>
inline void mask_row(T* scores, int64_t begin, int64_t end, int64_t keep_begin, int64_t keep_end) {
  for (int64_t j = begin; j < keep_begin && j < end; ++j) scores[j] = -kInfinity<T>;
  for (int64_t j = keep_end > begin ? keep_end : begin; j < end; ++j) scores[j] = -kInfinity<T>;
}

// The largest of whole vectors [begin, end); NaN may hide values, which its row no longer needs.
template <class V>
inline typename V::Scalar largest(const typename V::Scalar* scores, int64_t begin, int64_t end) {
  V high = V::load(scores + begin), other = high;
  int64_t j = begin + V::kLanes;
  for (; j + V::kLanes < end; j += 2 * V::kLanes) {
    high = V::max(high, V::load(scores + j));
    other = V::max(other, V::load(scores + j + V::kLanes));
  }
  if (j < end) high = V::max(high, V::load(scores + j));
  return V::reduce_max(V::max(high, other));
}

// scores = e^(scores - row_max) in place, for whole vectors [begin, end); returns their sum.
template <class V>
inline typename V::Scalar exponentiate(typename V::Scalar row_max, typename V::Scalar* scores, int64_t begin,
                                       int64_t end) {
  const V high = V::broadcast(row_max);
  V sum = V::zero(), other = V::zero();
  int64_t j = begin;
  for (; j + V::kLanes < end; j += 2 * V::kLanes) {
    const V first = exp(V::load(scores + j) - high), second = exp(V::load(scores + j + V::kLanes) - high);
    first.store(scores + j);
    second.store(scores + j + V::kLanes);
    sum = sum + first;
    other = other + second;
  }
  if (j < end) {
    const V last = exp(V::load(scores + j) - high);
    last.store(scores + j);
    sum = sum + last;
  }
  return V::reduce_sum(sum + other);
}

}  // namespace tessera::cpu::TESSERA_CPU_ISA
