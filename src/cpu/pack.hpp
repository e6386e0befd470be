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

// Queries [first, first + count) of a block, `dim` elements each, to strips [row / kRows][dim][kRows]. Here and below:
// `scale` holds one factor a row and is read where Element is quantised.
template <class V, class Element>
void pack_queries(const std::byte* const* row_address, int64_t first, int64_t count, int64_t dim,
                  const typename V::Scalar* scale, typename V::Scalar* to) {
  using T = typename V::Scalar;
  for (int64_t row = first; row < first + count; ++row) {
    if (row - first + kRowsAhead < count) prefetch_row(row_address[row - first + kRowsAhead], dim * Element::kBytes);
    T* strip = to + (row / V::kRows) * V::kRows * dim + row % V::kRows;
    for (int64_t d = 0; d < dim; d += V::kLanes) {
      alignas(64) T lane[V::kLanes];
      load_scaled<V, Element>(row_address[row - first] + d * Element::kBytes, dim - d, scale, row - first).store(lane);
      const int64_t filled = dim - d < V::kLanes ? dim - d : V::kLanes;
      for (int64_t c = 0; c < filled; ++c) strip[(d + c) * V::kRows] = lane[c];
    }
  }
}

// `keys` rows of `dim` elements to panels [key / width][dim][width], where width is panel_vecs vectors; the columns
// beyond `keys` of the last vector are zero.
template <class V, class Element>
void pack_keys(const std::byte* const* row_address, int64_t keys, int64_t dim, const typename V::Scalar* scale,
               typename V::Scalar* to) {
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
        const std::byte* from = first + r < keys ? row_address[first + r] + d * Element::kBytes : nullptr;
        rows[r] = from != nullptr ? load_scaled<V, Element>(from, dim - d, scale, first + r) : V::zero();
      }
      V::store_transposed(rows, out + d * width, width, dim - d);
    }
  }
}

// `keys` rows of `dim` elements to panels [column / width][keys][width]; columns beyond `dim` are zero. `mean`, of dim
// floats, is added to quantised rows; null: none.
template <class V, class Element>
void pack_values(const std::byte* const* row_address, int64_t keys, int64_t dim, const typename V::Scalar* scale,
                 [[maybe_unused]] const float* mean, typename V::Scalar* to) {
  const int64_t columns = (dim + V::kLanes - 1) / V::kLanes * V::kLanes;
  for (int64_t key = 0; key < keys; ++key) {
    if (key + kRowsAhead < keys) prefetch_row(row_address[key + kRowsAhead], dim * Element::kBytes);
    for (int64_t d = 0; d < columns; d += V::kLanes) {
      const int64_t panel = d - d % (V::kVecs * V::kLanes);
      const int64_t width = panel_vecs<V>(panel, columns) * V::kLanes;
      V row = load_scaled<V, Element>(row_address[key] + d * Element::kBytes, dim - d, scale, key);
      if constexpr (Element::kScaled) {
        if (mean != nullptr)
          row = row + load_partial<V, F32Element>(reinterpret_cast<const std::byte*>(mean + d), dim - d);
      }
      row.store(to + panel * keys + key * width + (d - panel));
    }
  }
}

// The same of values whose elements lie `step` apart, as under v_order 1.
template <class V, class Element>
void pack_ordered_values(const std::byte* const* row_address, int64_t keys, int64_t dim, int64_t step,
                         const typename V::Scalar* scale, const float* mean, typename V::Scalar* to) {
  const int64_t columns = (dim + V::kLanes - 1) / V::kLanes * V::kLanes;
  for (int64_t c = 0; c < columns; ++c) {
    const int64_t panel = c - c % (V::kVecs * V::kLanes);
    const int64_t width = panel_vecs<V>(panel, columns) * V::kLanes;
    typename V::Scalar* out = to + panel * keys + (c - panel);
    const float shift = mean != nullptr && c < dim ? mean[c] : 0.0f;
    for (int64_t key = 0; key < keys; ++key) {
      out[key * width] = c < dim ? Element::load_one(row_address[key] + c * step) * scale[key] + shift : 0.0f;
    }
  }
}

}  // namespace tessera::cpu::TESSERA_CPU_ISA
