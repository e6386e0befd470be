// The two products of decode on vectors, on rows as they lie in the cache: each key's and value's row is loaded and
// converted once for kDecodeRows query rows.
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

// What is asked for while a block is worked on, one row at a time between the products: in one burst the requests would
// fill the core's few outstanding misses and stall it. In one of two ways, by what the plan found room for:
// far: the rows of the next block in the order of memory, key by key and the unit's heads within each, into L2. The
//   hardware follows a few streams, not many that lie a head's row apart.
// near: some rows ahead in the order of use into L1, of this block and then of what follows it. No product then waits
//   for L2, whose misses queue behind those of memory.
// Loops work on a copy of their own, which the compiler keeps in registers.
struct RowsAhead {
  // Rows `offset` behind keys[0] to *last, bytes [begin, end) of each.
  struct Run {
    const std::byte* const* key = nullptr;
    const std::byte* const* last = nullptr;
    int64_t offset = 0, begin = 0, end = 0;
    Run share(int64_t from, int64_t to, int64_t columns) const {
      return {key, last, offset, end * from / columns, end * to / columns};
    }
  };
  Run run, then;
  const std::byte* at = nullptr;      // the row that is next; null: nothing is left
  int64_t left = 0;                   // heads of this key, from `at` on
  int64_t heads = 0, head_bytes = 0;  // of a key, and from one to the next
  bool near = false;

  [[gnu::always_inline]] void ask() {
    if (at == nullptr) return;
    if (near) {
      for (int64_t byte = run.begin; byte < run.end; byte += 64) __builtin_prefetch(at + byte, 0, 3);
    } else {
      for (int64_t byte = run.begin; byte < run.end; byte += 64) __builtin_prefetch(at + byte, 0, 2);
    }
    at += head_bytes;
    if (--left == 0) next_key();
  }
  // The part of each row that belongs to columns [column, column + width) of `columns`.
  RowsAhead share(int64_t column, int64_t columns, int64_t width) const {
    RowsAhead part = *this;
    const int64_t to = column + width < columns ? column + width : columns;
    part.run = run.share(column, to, columns);
    part.then = then.share(column, to, columns);
    return part;
  }

 private:
  [[gnu::always_inline]] void next_key() {
    left = heads;
    if (run.key != run.last) {
      at = *++run.key + run.offset;
      return;
    }
    run = then;
    then = {};
    at = run.key == nullptr ? nullptr : *run.key + run.offset;
  }
};
inline RowsAhead rows_far(const std::byte* const* keys, int64_t count, int64_t heads, int64_t head_bytes,
                          int64_t row_bytes) {
  if (count == 0) return {};
  return {{keys, keys + count - 1, 0, 0, row_bytes}, {}, keys[0], heads, heads, head_bytes, false};
}
// Some of a head's rows that are used one after the other.
struct RowsInUse {
  const std::byte* const* rows;
  int64_t count, head, row_bytes;
  RowsAhead::Run run(int64_t begin, int64_t end) const {
    if (end > count) end = count;
    if (begin >= end) return {};
    return {rows + begin, rows + end - 1, head, 0, row_bytes};
  }
};
// `distance` rows ahead in what is used now and then.
inline RowsAhead rows_near(const RowsInUse& now, const RowsInUse& then, int64_t distance) {
  RowsAhead ahead;
  ahead.run = now.run(distance, now.count);
  ahead.then = then.run(0, distance);
  if (ahead.run.key == nullptr) {
    ahead.run = ahead.then;
    ahead.then = {};
  }
  ahead.at = ahead.run.key == nullptr ? nullptr : *ahead.run.key + ahead.run.offset;
  ahead.left = ahead.heads = 1;
  ahead.near = true;
  return ahead;
}

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
                                                 int64_t stride, int64_t dim, V* sums, RowsAhead& ahead, int& asks) {
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
    if (asks > 0) --asks, ahead.ask();
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
// kDecodeStride. Every 4 keys ask for 4 rows of the next block. Kept out of line, with all it needs in arguments:
// inlined into the loop over heads, the accumulators go to the stack.
template <class V, class Element>
[[gnu::noinline]] void score_keys(BlockRows keys, const float* q, int64_t stride, float factor, float* scores,
                                  RowsAhead& shared) {
  RowsAhead ahead = shared;
  constexpr int kWidth = kDecodeWidth<V>;
  for (int64_t j = 0; j < keys.count; j += 4) {
    int asks = 4;
    V sums[16];
#pragma GCC unroll 4
    for (int c = 0; c < 4; c += kWidth)
      multiply_keys<V, Element, kWidth>(keys.rows + j + c, keys.head, q, stride, keys.dim, sums + c, ahead, asks);
    alignas(64) float reduced[16];
    (V::sum_lanes(sums) * V::broadcast(factor)).store(reduced);
#pragma GCC unroll 4
    for (int64_t i = 0; i < kDecodeRows; ++i)
      std::memcpy(scores + i * kDecodeStride + j, reduced + 4 * i, 4 * sizeof(float));
    for (; asks > 0; --asks) ahead.ask();
  }
  shared = ahead;
}

// o[row][0 .. 16 kVecs] = o * alpha + sum over keys of p(row) v[column ..], for the `kept` first of kDecodeRows rows. p
// lies in rows of kDecodeStride, o in rows of `stride` floats. Every key asks for one row.
template <class V, class Element, int kVecs>
[[gnu::noinline]] void multiply_values(BlockRows values, int64_t column, const float* p, const float* alpha,
                                       int64_t kept, float* o, int64_t stride, RowsAhead& shared) {
  RowsAhead ahead = shared;
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
    ahead.ask();
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
  shared = ahead;
  for (int64_t i = 0; i < kDecodeRows && i < kept; ++i) {
    const V factor = V::broadcast(alpha[i]);
    float* at = o + i * stride;
#pragma GCC unroll 4
    for (int c = 0; c < kVecs; ++c) V::fma(V::load(at + c * kLanes), factor, total[i][c]).store(at + c * kLanes);
  }
}

// One head's rows against the keys of a block: scores[row][key] = factor * q(row) . k(key), in rows of kDecodeStride
// floats. q in rows of `stride` floats, zero up to a multiple of kDecodeRows rows.
struct ScoreBlock {
  BlockRows keys;
  int64_t head;  // of the unit
  int64_t rows;
  const float* q;
  int64_t stride;
  float factor;
  float* scores;
};
// o[row] = o[row] * alpha[row] + sum over keys of p(row, key) v(key); p in rows of kDecodeStride floats, o of `stride`.
struct ValueBlock {
  BlockRows values;
  int64_t rows;
  const float *p, *alpha;
  float* o;
  int64_t stride;
};

// The two products of a head's block on vectors. `ahead`: what is asked for meanwhile, one row for every key.
template <class V, class Element>
class VectorProducts {
  static constexpr int kWidth = kDecodeWidth<V>;
  static_assert(kWidth == 4 || !Element::kInterleaved, "single vectors would split a pair");

 public:
  VectorProducts(const DecodeCall&, std::byte*) {}
  void begin_head(int64_t, const float*, int64_t) {}

  void scores(const ScoreBlock& block, RowsAhead& ahead) {
    RowsAhead nothing;
    for (int64_t r = 0; r < block.rows; r += kDecodeRows)
      score_keys<V, Element>(block.keys, block.q + r * block.stride, block.stride, block.factor,
                             block.scores + r * kDecodeStride, r == 0 ? ahead : nothing);
  }
  void values(const ValueBlock& block, RowsAhead& ahead) {
    const int64_t dim = block.values.dim;
    for (int64_t r = 0; r < block.rows; r += kDecodeRows) {
      int64_t c = 0;
      if constexpr (kWidth == 4) {
        for (; c + 2 * kPair <= dim; c += 2 * kPair) multiply<4>(block, r, c, ahead);
        for (; c + kPair <= dim; c += kPair) multiply<2>(block, r, c, ahead);
      }
      for (; c < dim; c += V::kLanes) multiply<1>(block, r, c, ahead);
    }
  }

 private:
  template <int kVecs>
  void multiply(const ValueBlock& block, int64_t r, int64_t c, RowsAhead& ahead) {
    const int64_t dim = block.values.dim, width = kVecs * V::kLanes;
    // Each pass over the columns asks for its part of the same rows; the last one moves on.
    RowsAhead part = r == 0 ? ahead.share(c, dim, width) : RowsAhead{};
    multiply_values<V, Element, kVecs>(block.values, c, block.p + r * kDecodeStride, block.alpha + r, block.rows - r,
                                       block.o + r * block.stride + c, block.stride, part);
    if (r != 0 || c + width < dim) return;
    part.run.begin = 0;
    ahead = part;
  }
};

}  // namespace tessera::cpu::TESSERA_CPU_ISA
