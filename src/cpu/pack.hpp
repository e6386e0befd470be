// Operands as the microkernels read them, zero where the source has nothing: queries in strips, keys and values of one
// chunk in panels. Rows come by address, so dense, packed and paged layouts are the same here.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::cpu::TESSERA_CPU_ISA {

// Width of the panel that starts at `column` of a chunk with `columns` columns (a multiple of V::kLanes).
template <class V>
inline int panel_vecs(int64_t column, int64_t columns) {
  const int64_t left = (columns - column) / V::kLanes;
  return left < V::kVecs ? static_cast<int>(left) : V::kVecs;
}

// Asks for a row ahead of its use. Rows of [batch, seqlen, heads, dim] lie pages apart, which hardware prefetchers do
// not follow: without asking, every row costs the full latency of L3 or memory.
inline constexpr int64_t kRowsAhead = 8;
inline void prefetch_row(const std::byte* row, int64_t row_bytes) {
  for (int64_t at = 0; at < row_bytes; at += 64) __builtin_prefetch(row + at);
}

// Queries [first, first + count) of a block, `dim` elements each, to strips [row / kRows][dim][kRows].
template <class V, class Element>
void pack_queries(const std::byte* const* row_address, int64_t first, int64_t count, int64_t dim,
                  typename V::Scalar* to) {
  using T = typename V::Scalar;
  for (int64_t row = first; row < first + count; ++row) {
    if (row - first + kRowsAhead < count) prefetch_row(row_address[row - first + kRowsAhead], dim * Element::kBytes);
    T* strip = to + (row / V::kRows) * V::kRows * dim + row % V::kRows;
    for (int64_t d = 0; d < dim; d += V::kLanes) {
      alignas(64) T lane[V::kLanes];
      load_partial<V, Element>(row_address[row - first] + d * Element::kBytes, dim - d).store(lane);
      const int64_t filled = dim - d < V::kLanes ? dim - d : V::kLanes;
      for (int64_t c = 0; c < filled; ++c) strip[(d + c) * V::kRows] = lane[c];
    }
  }
}

// `keys` rows of `dim` elements to panels [key / width][dim][width], where width is panel_vecs vectors; the columns
// beyond `keys` of the last vector are zero.
template <class V, class Element>
void pack_keys(const std::byte* const* row_address, int64_t keys, int64_t dim, typename V::Scalar* to) {
  const int64_t columns = (keys + V::kLanes - 1) / V::kLanes * V::kLanes;
  for (int64_t first = 0; first < columns; first += V::kLanes) {
    const int64_t panel = first - first % (V::kVecs * V::kLanes);
    const int64_t width = panel_vecs<V>(panel, columns) * V::kLanes;
    typename V::Scalar* out = to + panel * dim + (first - panel);
    for (int64_t next = first + V::kLanes; next < first + 2 * V::kLanes && next < keys; ++next) {
      prefetch_row(row_address[next], dim * Element::kBytes);
    }
    for (int64_t d = 0; d < dim; d += V::kLanes) {
      V rows[V::kLanes];
      for (int64_t r = 0; r < V::kLanes; ++r) {
        rows[r] = first + r < keys ? load_partial<V, Element>(row_address[first + r] + d * Element::kBytes, dim - d)
                                   : V::zero();
      }
      V::store_transposed(rows, out + d * width, width, dim - d);
    }
  }
}

// `keys` rows of `dim` elements to panels [column / width][keys][width]; columns beyond `dim` are zero.
template <class V, class Element>
void pack_values(const std::byte* const* row_address, int64_t keys, int64_t dim, typename V::Scalar* to) {
  const int64_t columns = (dim + V::kLanes - 1) / V::kLanes * V::kLanes;
  for (int64_t key = 0; key < keys; ++key) {
    if (key + kRowsAhead < keys) prefetch_row(row_address[key + kRowsAhead], dim * Element::kBytes);
    for (int64_t d = 0; d < columns; d += V::kLanes) {
      const int64_t panel = d - d % (V::kVecs * V::kLanes);
      const int64_t width = panel_vecs<V>(panel, columns) * V::kLanes;
      load_partial<V, Element>(row_address[key] + d * Element::kBytes, dim - d)
          .store(to + panel * keys + key * width + (d - panel));
    }
  }
}

}  // namespace tessera::cpu::TESSERA_CPU_ISA
