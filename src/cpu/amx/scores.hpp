// From raw products to probabilities, with queries in the lanes: a step's scores are S^T [key][32 queries] float32, so
// that row maxima, sums and rescaling are vertical and need no shuffles. Scores are kept in base 2. Invariant: a masked
// score is replaced by -inf, never added to, so that what a masked key holds cannot matter.
#pragma once

#include <cstdint>
#include <limits>

#include "cpu/amx/pack.hpp"
#include "cpu/amx/task.hpp"
#include "cpu/exp.hpp"
#include "cpu/score_bias.hpp"
#include "problem.hpp"
#include "semantics.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

inline constexpr int64_t kUnitRows = amx::kUnit;  // queries of a unit: two tiles side by side
inline constexpr int64_t kStepKeys = amx::kStep;  // S, P and the step's K and V tiles share the 48 KB of L1
// Probabilities of one part stand where the scores of their two keys stood, in the first of them: L1 holds the rest.
inline constexpr int64_t kPairElements = 2 * kUnitRows * 2;  // of bf16
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The running statistics of a unit: row_max in base 2, row_sum of exp2(x - row_max), both [32].
struct UnitStatistics {
  float* row_max;
  float* row_sum;
};

// What the scores of one unit need besides the products.
struct ScoreOptions {
  float factor;     // scale * log2(e); scale alone where `transforms`
  bool transforms;  // softcap, bias, ALiBi or a negative scale: scores are rewritten before the maximum is taken
  float softcap, slope;
  int64_t keys;  // the sequence's
  bool biased;
  int64_t batch, head;
  const core::Problem* problem;
  const tessera_tensors* tensors;
};

// Key bounds of the 32 rows, in keys of the sequence.
struct RowBounds {
  int64_t begin[kUnitRows], end[kUnitRows];
};

template <class V>
struct LaneBounds {
  V begin[2], end[2];
};

// The bounds relative to a step: small numbers, exact in float32 at any sequence length.
template <class V>
inline LaneBounds<V> lane_bounds(const RowBounds& rows, int64_t step_begin) {
  alignas(64) float begin[kUnitRows], end[kUnitRows];
  for (int i = 0; i < kUnitRows; ++i) {
    const auto clamp = [](int64_t key) { return float(key < 0 ? 0 : key > kStepKeys ? kStepKeys : key); };
    begin[i] = clamp(rows.begin[i] - step_begin);
    end[i] = clamp(rows.end[i] - step_begin);
  }
  return {{V::load(begin), V::load(begin + 16)}, {V::load(end), V::load(end + 16)}};
}

// terms[key][lane]: the bias of a step's keys and of `lanes` rows from `row` on. Keys past the sequence may lie behind
// the bias: like lanes past the rows, they are 0 and not read.
template <class V>
inline void load_terms(const ScoreOptions& options, int64_t step_begin, int64_t row, int64_t lanes,
                       float (&terms)[kStepKeys][16]) {
  alignas(64) float rows[16][kStepKeys] = {};
  const int64_t left = options.keys - step_begin;
  const core::Range keys{0, left < 0 ? 0 : left < kStepKeys ? left : kStepKeys};
  for (int64_t i = 0; i < lanes; ++i)
    load_bias<V>(*options.problem, *options.tensors, {options.batch, options.head, row + i}, step_begin, keys, rows[i]);
  for (int64_t key = 0; key < kStepKeys; key += 16) {
    V block[16];
    for (int64_t i = 0; i < 16; ++i) block[i] = V::load(rows[i] + key);
    V::store_transposed(block, terms[key], 16, 16);
  }
}

// Softcap, bias and ALiBi of one key over 16 rows, the first of which has diagonal `diagonal`; base e in, base 2 out.
template <class V>
inline V transform_scores(V scores, const ScoreOptions& options, const float* terms, int64_t diagonal, int64_t key) {
  V x = scores * V::broadcast(options.factor);
  if (options.softcap > 0) x = V::broadcast(options.softcap) * tanh(x / V::broadcast(options.softcap));
  V extra = options.biased ? V::load(terms) : V::zero();
  if (options.slope != 0)
    extra = extra + V::broadcast(-options.slope) * V::abs(V::iota() + V::broadcast(float(diagonal - key)));
  return (x + extra) * V::broadcast(float(core::kLog2E));
}

// Takes the maximum of each row over the step's scores, in base 2, after rewriting them where options or the mask ask
// for it; returns the factor that the probabilities still have to apply.
template <class V>
inline float step_maximum(float* scores, const ScoreOptions& options, const RowBounds* mask, int64_t step_begin,
                          int64_t row, int64_t rows, int64_t diagonal, V (&maximum)[2]) {
  const V minus_infinity = V::broadcast(-kInfinity);
  maximum[0] = maximum[1] = minus_infinity;
  if (mask == nullptr && !options.transforms) {
    // Four chains a half: one would wait four cycles at each of 64 keys.
    constexpr int kChains = 4;
    V chain[2][kChains];
    for (auto& half : chain)
      for (V& c : half) c = minus_infinity;
    for (int64_t j = 0; j < kStepKeys; j += kChains)
#pragma GCC unroll 4
      for (int c = 0; c < kChains; ++c)
        for (int half = 0; half < 2; ++half)
          chain[half][c] = V::max(V::load(scores + (j + c) * kUnitRows + 16 * half), chain[half][c]);
    for (int half = 0; half < 2; ++half)
      maximum[half] = V::max(V::max(chain[half][0], chain[half][1]), V::max(chain[half][2], chain[half][3])) *
                      V::broadcast(options.factor);
    return options.factor;
  }
  LaneBounds<V> bounds{};
  if (mask != nullptr) bounds = lane_bounds<V>(*mask, step_begin);
  alignas(64) float terms[2][kStepKeys][16];
  for (int half = 0; half < 2 && options.biased; ++half) {
    const int64_t lanes = rows - 16 * half < 0 ? 0 : rows - 16 * half > 16 ? 16 : rows - 16 * half;
    load_terms<V>(options, step_begin, row + 16 * half, lanes, terms[half]);
  }
  for (int64_t j = 0; j < kStepKeys; ++j) {
    const V key = V::broadcast(float(j));
    for (int half = 0; half < 2; ++half) {
      float* at = scores + j * kUnitRows + 16 * half;
      V x = options.transforms
                ? transform_scores(V::load(at), options, terms[half][j], diagonal + 16 * half, step_begin + j)
                : V::load(at) * V::broadcast(options.factor);
      if (mask != nullptr) {
        x = V::where_less(key, bounds.end[half], x, minus_infinity);
        x = V::where_less(key, bounds.begin[half], minus_infinity, x);
      }
      x.store(at);
      maximum[half] = V::max(x, maximum[half]);
    }
  }
  return 1.0f;
}

}  // namespace tessera::cpu::TESSERA_CPU_ISA
