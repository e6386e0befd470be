// What the backward kernel multiplies beside the forward kernel's two products, and how it packs query rows. Scores of
// a block of rows lie in a tile, rows kScoreStride apart; the gradients of keys read it by columns: strip element
// (key, row) at row * kScoreStride + key. Invariant: a key's sums do not depend on how many keys a strip has.
#pragma once

#include <cstdint>
#include <utility>

#include "load.hpp"
#include "microkernel.hpp"
#include "pack.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

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

// The instantiations for 1..V::kRows keys and 1..V::kVecs vectors.
template <class V>
struct KeyBlocks {
  using T = typename V::Scalar;
  using Key = void (*)(const T*, const T*, int64_t, T*, int64_t);
  Key key[V::kRows][V::kVecs];

  template <int... kRow>
  static constexpr KeyBlocks make(std::integer_sequence<int, kRow...>) {
    if constexpr (V::kVecs == 1) {
      return {{{&key_block<V, kRow + 1, 1>}...}};
    } else {
      return {{{&key_block<V, kRow + 1, 1>, &key_block<V, kRow + 1, 2>}...}};
    }
  }
};
template <class V>
inline constexpr KeyBlocks<V> kKeyBlocks = KeyBlocks<V>::make(std::make_integer_sequence<int, V::kRows>{});

// Columns [d, d + kLanes) of up to kRows rows, to strip [dim][kRows]. Writes up to kLanes elements past what belongs to
// it, which the next columns and the next strip overwrite.
template <class V>
inline void store_strip(const V* rows, int64_t columns, typename V::Scalar* strip) {
  using T = typename V::Scalar;
  constexpr int kLanes = V::kLanes, kGroups = (V::kRows + kLanes - 1) / kLanes;
  alignas(64) T turned[kGroups][kLanes * kLanes];
  for (int g = 0; g < kGroups; ++g) {
    V group[kLanes];
    for (int r = 0; r < kLanes; ++r) group[r] = g * kLanes + r < V::kRows ? rows[g * kLanes + r] : V::zero();
    V::store_transposed(group, turned[g], kLanes, kLanes);
  }
  for (int64_t c = 0; c < columns; ++c) {
    for (int g = 0; g < kGroups; ++g) V::load(turned[g] + c * kLanes).store(strip + c * V::kRows + g * kLanes);
  }
}

// `count` rows of `dim` elements to strips [row / kRows][dim][kRows], as pack_queries, and to panels as pack_values
// (null: none). `strips` has room for V::kLanes elements more.
template <class V, class Element>
void pack_rows(const std::byte* const* row_address, int64_t count, int64_t dim, typename V::Scalar* strips,
               typename V::Scalar* panels) {
  using T = typename V::Scalar;
  constexpr int64_t kRows = V::kRows, kLanes = V::kLanes;
  // Where a strip holds few of a vector's lanes, most of a transpose would be for nothing.
  constexpr bool kTransposes = 2 * kRows > kLanes;
  const int64_t padded = (dim + kLanes - 1) / kLanes * kLanes;
  for (int64_t first = 0; first < count; first += kRows) {
    const int64_t filled = count - first < kRows ? count - first : kRows;
    for (int64_t next = first + kRows; next < first + 2 * kRows && next < count; ++next) {
      prefetch_row(row_address[next], dim * Element::kBytes);
    }
    T* strip = strips + first * dim;
    for (int64_t d = 0; d < dim; d += kLanes) {
      const int64_t columns = dim - d < kLanes ? dim - d : kLanes;
      const int64_t panel = d - d % (V::kVecs * kLanes), width = panel_vecs<V>(panel, padded) * kLanes;
      V rows[kRows];
      for (int64_t r = 0; r < kRows; ++r) {
        rows[r] =
            r < filled ? load_partial<V, Element>(row_address[first + r] + d * Element::kBytes, dim - d) : V::zero();
        if (panels != nullptr && r < filled) rows[r].store(panels + panel * count + (first + r) * width + (d - panel));
      }
      if constexpr (kTransposes) {
        store_strip<V>(rows, columns, strip + d * kRows);
      } else {
        for (int64_t r = 0; r < filled; ++r) {
          alignas(64) T lane[kLanes];
          rows[r].store(lane);
          for (int64_t c = 0; c < columns; ++c) strip[(d + c) * kRows + r] = lane[c];
        }
      }
    }
  }
}

}  // namespace tessera::cpu::TESSERA_CPU_ISA
