// From raw products to probabilities, with queries in the lanes: a step's scores are S^T [key][32 queries] float32, so
// that row maxima, sums and rescaling are vertical and need no shuffles. Scores are kept in base 2. Invariant: a masked
// score is replaced by -inf, never added to, so that what a masked key holds cannot matter.
#pragma once

#include <cstdint>
#include <limits>

#include "cpu/amx/pack.hpp"
#include "cpu/amx/task.hpp"
#include "problem.hpp"
#include "semantics.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

inline constexpr int64_t kUnitRows = amx::kUnit;  // queries of a unit: two tiles side by side
inline constexpr int64_t kStepKeys = amx::kStep;  // S, P and the step's K and V tiles share the 48 KB of L1
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
  int64_t keys;                   // the sequence's
  const core::BiasOperand* bias;  // null: none
  const char* bias_base;          // element (batch, head, 0, 0)
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

inline float bias_element(const core::BiasOperand& bias, const char* base, int64_t index) {
  switch (bias.dtype) {
    case TESSERA_U8:
      return reinterpret_cast<const uint8_t*>(base)[index] != 0 ? 0.0f : -kInfinity;
    case TESSERA_F32:
      return reinterpret_cast<const float*>(base)[index];
    case TESSERA_F16:
      return float_from_f16(reinterpret_cast<const uint16_t*>(base)[index]);
    default:
      return float_from_bf16(reinterpret_cast<const uint16_t*>(base)[index]);
  }
}

// Softcap, bias and ALiBi of one key over 16 rows; base e in, base 2 out. `bias_rows` is element (row 0 of the lanes,
// 0).
template <class V>
inline V transform_scores(V scores, const ScoreOptions& options, int64_t row, int64_t rows, int64_t diagonal,
                          int64_t key) {
  V x = scores * V::broadcast(options.factor);
  if (options.softcap > 0) x = V::broadcast(options.softcap) * tanh(x / V::broadcast(options.softcap));
  alignas(64) float extra[16] = {};
  if (options.bias != nullptr)
    for (int64_t i = 0; i < rows; ++i)
      extra[i] = bias_element(*options.bias, options.bias_base,
                              (row + i) * options.bias->stride[2] + key * options.bias->stride[3]);
  if (options.slope != 0)
    for (int64_t i = 0; i < 16; ++i) extra[i] += core::alibi_bias(options.slope, diagonal + i, key);
  return (x + V::load(extra)) * V::broadcast(float(core::kLog2E));
}

// Takes the maximum of each row over the step's scores, in base 2, after rewriting them where options or the mask ask
// for it; returns the factor that the probabilities still have to apply.
template <class V>
inline float step_maximum(float* scores, const ScoreOptions& options, const RowBounds* mask, int64_t step_begin,
                          int64_t row, int64_t rows, int64_t diagonal, V (&maximum)[2]) {
  const V minus_infinity = V::broadcast(-kInfinity);
  maximum[0] = maximum[1] = minus_infinity;
  if (mask == nullptr && !options.transforms) {
    for (int64_t j = 0; j < kStepKeys; ++j)
      for (int half = 0; half < 2; ++half)
        maximum[half] = V::max(V::load(scores + j * kUnitRows + 16 * half), maximum[half]);
    for (V& m : maximum) m = m * V::broadcast(options.factor);
    return options.factor;
  }
  LaneBounds<V> bounds{};
  if (mask != nullptr) bounds = lane_bounds<V>(*mask, step_begin);
  for (int64_t j = 0; j < kStepKeys; ++j) {
    const V key = V::broadcast(float(j));
    for (int half = 0; half < 2; ++half) {
      float* at = scores + j * kUnitRows + 16 * half;
      const int64_t first = row + 16 * half;
      const int64_t lanes = rows - 16 * half < 0 ? 0 : rows - 16 * half > 16 ? 16 : rows - 16 * half;
      // Keys past the sequence may lie behind the bias: it is not read there.
      V x = options.transforms
                ? transform_scores(V::load(at), options, first, step_begin + j < options.keys ? lanes : 0,
                                   diagonal + 16 * half, step_begin + j)
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
