// The backward kernel's products beside the forward kernel's. Query rows lie in panels as pack_values makes them,
// [column / width][rows][width], which serve both as the panels of one product and as the strips of another: element
// (row, k) of a strip is at row * width + k. Scores of a block of rows lie in a tile, rows kScoreStride apart; the
// gradients of keys read it by columns: strip element (key, row) at row * kScoreStride + key. Invariant: a sum does not
// depend on how many rows or keys a strip has.
#pragma once

#include <cstdint>
#include <utility>

#include "load.hpp"
#include "microkernel.hpp"
#include "pack.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

// scores[r][c] = factor * sum over depth of row(r, k) * column(k, c), summed in pieces as score_block's. `rows`: the
// strip's first row in panels of `count` rows. columns: panel [depth][kVecs vectors].
template <class V, int kRows, int kVecs>
void dot_block(const typename V::Scalar* panels, int64_t row, int64_t count, const typename V::Scalar* columns,
               int64_t depth, typename V::Scalar factor, typename V::Scalar* scores) {
  constexpr int kLanes = V::kLanes, kWidth = V::kVecs * kLanes;
  static_assert(kDepthPiece % kWidth == 0);
  const int64_t padded = (depth + kLanes - 1) / kLanes * kLanes;
  for (int64_t done = 0; done < depth; done += kDepthPiece) {
    const int64_t end = depth - done < kDepthPiece ? depth : done + kDepthPiece;
    V sums[kRows][kVecs];
    clear(sums);
    for (int64_t k = done; k < end; k += kWidth) {
      const typename V::Scalar *panel = panels + k * count, *column = columns + k * kVecs * kLanes;
      if (kWidth == kLanes || padded - k >= kWidth) {
        accumulate<V, kRows, kVecs, kWidth, 1>(panel + row * kWidth, column, end - k < kWidth ? end - k : kWidth, sums);
      } else {
        accumulate<V, kRows, kVecs, kLanes, 1>(panel + row * kLanes, column, end - k, sums);
      }
    }
    const V scale = V::broadcast(factor);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int c = 0; c < kVecs; ++c) {
        typename V::Scalar* at = scores + r * kScoreStride + c * kLanes;
        (done == 0 ? sums[r][c] * scale : V::fma(sums[r][c], scale, V::load(at))).store(at);
      }
    }
  }
}

// sums[key][c] = sum over rows of tile(row, key) * panel(row, c), added to `to`, whose rows are `stride` apart.
template <class V, int kKeys, int kVecs>
void key_block(const typename V::Scalar* tile, const typename V::Scalar* panel, int64_t rows, typename V::Scalar* to,
               int64_t stride) {
  V sums[kKeys][kVecs];
  multiply<V, kKeys, kVecs, 1, kScoreStride>(tile, panel, rows, sums);
#pragma GCC unroll 16
  for (int r = 0; r < kKeys; ++r) {
#pragma GCC unroll 2
    for (int c = 0; c < kVecs; ++c) {
      typename V::Scalar* at = to + r * stride + c * V::kLanes;
      (V::load(at) + sums[r][c]).store(at);
    }
  }
}

// The instantiations for 1..V::kRows rows or keys and 1..V::kVecs vectors.
template <class V>
struct GradientBlocks {
  using T = typename V::Scalar;
  using Dot = void (*)(const T*, int64_t, int64_t, const T*, int64_t, T, T*);
  using Key = void (*)(const T*, const T*, int64_t, T*, int64_t);
  Dot dot[V::kRows][V::kVecs];
  Key key[V::kRows][V::kVecs];

  template <int... kRow>
  static constexpr GradientBlocks make(std::integer_sequence<int, kRow...>) {
    if constexpr (V::kVecs == 1) {
      return {{{&dot_block<V, kRow + 1, 1>}...}, {{&key_block<V, kRow + 1, 1>}...}};
    } else {
      return {{{&dot_block<V, kRow + 1, 1>, &dot_block<V, kRow + 1, 2>}...},
              {{&key_block<V, kRow + 1, 1>, &key_block<V, kRow + 1, 2>}...}};
    }
  }
};
template <class V>
inline constexpr GradientBlocks<V> kGradientBlocks =
    GradientBlocks<V>::make(std::make_integer_sequence<int, V::kRows>{});

}  // namespace tessera::cpu::TESSERA_CPU_ISA
