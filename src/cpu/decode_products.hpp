// The two products of decode, on rows as they lie in the cache: each key's and value's row is loaded and converted once
// for kDecodeRows query rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "decode_call.hpp"
#include "load.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

// Rows and keys of a score block, rows and vectors of a value block: 16 accumulators on 32 registers, 4 pairs on 16.
inline constexpr int kDecodeRows = 4;
template <class V>
inline constexpr int kDecodeWidth = V::kVecs > 1 ? 4 : 1;
inline constexpr int64_t kPair = 32;  // elements that load_pair takes

// What is asked for while a block is worked on: the rows of the next one, listed in the order of memory, key by key and
// the unit's heads within each. The hardware follows a few streams, not many that lie a head's row apart; and in one
// burst the requests would fill the core's few outstanding misses and stall it, so every few keys of work take their
// share.
struct RowsAhead {
  const std::byte* const* rows = nullptr;
  int64_t count = 0;           // of rows
  int64_t begin = 0, end = 0;  // bytes of a row

  [[gnu::always_inline]] void ask(int64_t row) const {
    const std::byte* at = rows[row];
    __builtin_prefetch(at + begin, 0, 2);
    for (int64_t byte = begin + 64; byte < end; byte += 64) __builtin_prefetch(at + byte, 0, 2);
  }
  // What is left when `used` rows were asked for.
  RowsAhead after(int64_t used) const {
    return used < count ? RowsAhead{rows + used, count - used, begin, end} : RowsAhead{};
  }
  // The part of each row that belongs to columns [column, column + width) of `columns`.
  RowsAhead share(int64_t column, int64_t columns, int64_t width) const {
    const int64_t last = column + width < columns ? column + width : columns;
    return {rows, count, end * column / columns, end * last / columns};
  }
};

// Rows [next, end) of `rows`, asked for one by one between other work.
struct AskAhead {
  const RowsAhead& rows;
  int64_t next, end;
  [[gnu::always_inline]] void ask() {
    if (next < end) rows.ask(next++);
  }
};

template <class V, int kWidth>
[[gnu::always_inline]] inline void add_products(const float* q, int64_t stride, const V (&k)[kWidth],
                                                V (&total)[kDecodeRows][kWidth]) {
#pragma GCC unroll 4
  for (int i = 0; i < kDecodeRows; ++i) {
    const V query = V::load(q + i * stride);
#pragma GCC unroll 4
    for (int c = 0; c < kWidth; ++c) total[i][c] = V::fma(query, k[c], total[i][c]);
  }
}

// sums[4 * row + key] = q(row) * k(key), lane by lane, for kDecodeRows rows of `stride` floats and kWidth keys whose
// rows begin `head` bytes behind keys[].
template <class V, class Element, int kWidth>
[[gnu::always_inline]] inline void multiply_keys(const std::byte* const* keys, int64_t head, const float* q,
                                                 int64_t stride, int64_t dim, V* sums, AskAhead& ahead) {
  constexpr int64_t kLanes = V::kLanes;
  const std::byte* row[kWidth];
#pragma GCC unroll 4
  for (int c = 0; c < kWidth; ++c) row[c] = keys[c] + head;
  V total[kDecodeRows][kWidth];
#pragma GCC unroll 4
  for (int i = 0; i < kDecodeRows; ++i) {
#pragma GCC unroll 4
    for (int c = 0; c < kWidth; ++c) total[i][c] = V::zero();
  }
  int64_t d = 0;
#pragma GCC unroll 1
  for (; d + kPair <= dim; d += kPair) {
    ahead.ask();
    V first[kWidth], second[kWidth];
#pragma GCC unroll 4
    for (int c = 0; c < kWidth; ++c) load_pair<V, Element>(row[c] + d * Element::kBytes, first[c], second[c]);
    add_products<V, kWidth>(q + d, stride, first, total);
    add_products<V, kWidth>(q + d + kLanes, stride, second, total);
  }
#pragma GCC unroll 1
  for (; d < dim; d += kLanes) {
    V k[kWidth];
#pragma GCC unroll 4
    for (int c = 0; c < kWidth; ++c) k[c] = load_partial<V, Element>(row[c] + d * Element::kBytes, dim - d);
    add_products<V, kWidth>(q + d, stride, k, total);
  }
#pragma GCC unroll 4
  for (int i = 0; i < kDecodeRows; ++i) {
#pragma GCC unroll 4
    for (int c = 0; c < kWidth; ++c) sums[4 * i + c] = total[i][c];
  }
}

// The keys or values of one head in a block: `count` rows that begin `head` bytes behind rows[].
struct BlockRows {
  const std::byte* const* rows;  // for keys: readable up to a multiple of 4
  int64_t head, count;
  int64_t dim;  // elements of a row
};

// scores[row][key] = factor * q(row) . k(key) for kDecodeRows rows; q in rows of `stride` floats, scores in rows of
// kDecodeStride. Every 4 keys ask for 4 rows of the next block. Kept out of line, with all it needs in arguments: inlined into the loop
// over heads, the accumulators go to the stack.
template <class V, class Element>
[[gnu::noinline]] void score_keys(BlockRows keys, const float* q, int64_t stride, float factor, float* scores,
                                  RowsAhead ahead) {
  constexpr int kWidth = kDecodeWidth<V>;
  for (int64_t j = 0; j < keys.count; j += 4) {
    AskAhead asking = {ahead, j, j + 4 < ahead.count ? j + 4 : ahead.count};
    V sums[16];
#pragma GCC unroll 4
    for (int c = 0; c < 4; c += kWidth)
      multiply_keys<V, Element, kWidth>(keys.rows + j + c, keys.head, q, stride, keys.dim, sums + c, asking);
    asking.ask();
    alignas(64) float reduced[16];
    (V::sum_lanes(sums) * V::broadcast(factor)).store(reduced);
#pragma GCC unroll 4
    for (int64_t i = 0; i < kDecodeRows; ++i)
      std::memcpy(scores + i * kDecodeStride + j, reduced + 4 * i, 4 * sizeof(float));
    while (asking.next < asking.end) asking.ask();
  }
}

// o[row][0 .. 16 kVecs] = o * alpha + sum over keys of p(row) v[column ..], for the `kept` first of kDecodeRows rows. p
// lies in rows of kDecodeStride, o in rows of `stride` floats. Every key asks for one row.
template <class V, class Element, int kVecs>
[[gnu::noinline]] void multiply_values(BlockRows values, int64_t column, const float* p, const float* alpha,
                                       int64_t kept, float* o, int64_t stride, RowsAhead ahead) {
  constexpr int64_t kLanes = V::kLanes;
  V total[kDecodeRows][kVecs];
#pragma GCC unroll 4
  for (int i = 0; i < kDecodeRows; ++i) {
#pragma GCC unroll 4
    for (int c = 0; c < kVecs; ++c) total[i][c] = V::zero();
  }
  const int64_t offset = values.head + column * Element::kBytes;
#pragma GCC unroll 1
  for (int64_t j = 0; j < values.count; ++j) {
    if (j < ahead.count) ahead.ask(j);
    const std::byte* from = values.rows[j] + offset;
    V v[kVecs];
    if constexpr (kVecs == 1) {
      v[0] = load_partial<V, Element>(from, values.dim - column);
    } else {
#pragma GCC unroll 2
      for (int c = 0; c < kVecs; c += 2) load_pair<V, Element>(from + c * kLanes * Element::kBytes, v[c], v[c + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < kDecodeRows; ++i) {
      const V weight = V::broadcast(p[i * kDecodeStride + j]);
#pragma GCC unroll 4
      for (int c = 0; c < kVecs; ++c) total[i][c] = V::fma(weight, v[c], total[i][c]);
    }
  }
  for (int64_t i = 0; i < kDecodeRows && i < kept; ++i) {
    const V factor = V::broadcast(alpha[i]);
    float* at = o + i * stride;
#pragma GCC unroll 4
    for (int c = 0; c < kVecs; ++c) V::fma(V::load(at + c * kLanes), factor, total[i][c]).store(at + c * kLanes);
  }
}

}  // namespace tessera::cpu::TESSERA_CPU_ISA
