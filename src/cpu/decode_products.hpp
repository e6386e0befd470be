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
// Rows are asked for ahead in 8 streams, or 4 where a stream's part of a block would be less than a page, or none: in
// parts of half a page int8 was slower than without (docs/notes/cpu.md).
inline constexpr int64_t kMostStreams = 8, kStreamPart = 4096;

// What is asked for while a head's keys or values are worked on: with row j of them row j of two lists, each of which
// may be absent (docs/notes/cpu.md),
// far: the next block, in the order of memory in some streams at once, into L2: the hardware follows these and brings
//   more than the core's few outstanding misses; it does not follow rows that lie a key apart.
// near: what comes some rows later in the order of use, into L1, so that no product waits for L2, whose misses queue
//   behind those of memory. Absent where L1 is too small.
// One row at a time, and as many during keys as during values: a burst fills the outstanding misses and stalls.
struct RowsAhead {
  const std::byte* const* near;
  const std::byte* const* far;

  // With `rows`, which are there already, where there is no list.
  RowsAhead with_far(const std::byte* const* rows) const { return {near, far != nullptr ? far : rows}; }

  // The line of 64 bytes from `byte` on of row j.
  [[gnu::always_inline]] void ask(int64_t j, int64_t byte) const {
    if (far != nullptr) __builtin_prefetch(far[j] + byte, 0, 2);
    if (near != nullptr) __builtin_prefetch(near[j] + byte, 0, 3);
  }
  // The lines that begin in `kBytes` bytes from `byte`, a multiple of kBytes, on; far must be there, since the vector
  // loops pay for another branch.
  template <int kBytes>
  [[gnu::always_inline]] void ask_for(int64_t j, int64_t byte) const {
    if constexpr (kBytes >= 64) {
#pragma GCC unroll 4
      for (int line = 0; line < kBytes; line += 64) ask_both(j, byte + line);
    } else if (byte % 64 == 0) {
      ask_both(j, byte);
    }
  }

 private:
  [[gnu::always_inline]] void ask_both(int64_t j, int64_t byte) const {
    __builtin_prefetch(far[j] + byte, 0, 2);
    if (near != nullptr) __builtin_prefetch(near[j] + byte, 0, 3);
  }
};
// Some of a head's rows that are used one after the other, `head` bytes behind rows[].
struct RowsInUse {
  const std::byte* const* rows;
  int64_t count, head;
};
// to[j]: the row `distance` behind row j of what is used now and then, and row j itself where nothing is left.
inline void rows_near(const RowsInUse& now, const RowsInUse& then, int64_t distance, const std::byte** to) {
  const int64_t own = now.count > distance ? now.count - distance : 0;
  const int64_t begin = distance > now.count ? distance - now.count : 0;  // of `then`
  const int64_t rest = then.count > begin ? then.count - begin : 0,
                end = own + rest < now.count ? own + rest : now.count;
  for (int64_t j = 0; j < own; ++j) to[j] = now.rows[j + distance] + now.head;
  for (int64_t j = own; j < end; ++j) to[j] = then.rows[j - own + begin] + then.head;
  for (int64_t j = end; j < now.count; ++j) to[j] = now.rows[j] + now.head;
}
// to[j]: the rows from number `first` on of `heads` heads, head_bytes apart, of the keys of `next`, in the order of
// memory; the last of them where nothing is left.
inline void rows_far(const RowsInUse& next, int64_t heads, int64_t head_bytes, int64_t first, int64_t count,
                     const std::byte** to) {
  int64_t key = first / heads, head = first % heads;
  for (int64_t j = 0; j < count; ++j) {
    const bool left = key < next.count;
    to[j] = next.rows[left ? key : next.count - 1] + (left ? head : heads - 1) * head_bytes;
    if (++head == heads) head = 0, ++key;
  }
}
// to[0 .. 2 kDecodeBlock): what head `index` of `heads` asks for of the next block, a row of each stream in turn: keys
// and values alternate, and each has kStreams / 2 parts of the block. The heads of stream s lie head_bytes[s] apart.
// Rows of keys that are not there are those of the last one.
template <int kStreams>
inline void rows_in_streams(const RowsInUse& keys, const RowsInUse& values, const int64_t (&head_bytes)[kMostStreams],
                            int64_t heads, int64_t index, const std::byte** to) {
  constexpr int64_t kShare = 2 * kDecodeBlock / kStreams;  // keys of a stream, and rows that a head asks it for
  const int64_t first = index * kShare / heads, skipped = index * kShare % heads;
  const auto row_of = [&](int64_t s, int64_t key, int64_t head) {
    const RowsInUse& all = s % 2 == 0 ? keys : values;
    const int64_t own = s / 2 * kShare + key;
    return all.rows[own < all.count ? own : all.count - 1] + head * head_bytes[s];
  };
  const auto end_of = [&](int64_t j, int64_t head) { return kShare < j + heads - head ? kShare : j + heads - head; };
#if defined(__AVX512F__)
  // All streams at once on a vector. It must not be loaded from what was stored just before in pieces: such a load
  // waits for all stores in flight.
  for (int64_t j = 0, key = first, head = skipped; j < kShare; head = 0, ++key) {
    const std::byte* row[kStreams];
#pragma GCC unroll 8
    for (int64_t s = 0; s < kStreams; ++s) row[s] = row_of(s, key, head);
    for (const int64_t end = end_of(j, head); j < end; ++j, to += kStreams) {
#pragma GCC unroll 8
      for (int64_t s = 0; s < kStreams; ++s) {
        to[s] = row[s];
        row[s] += head_bytes[s];
      }
    }
  }
#else
  // g++ 12.2 compiles the loop above wrongly for vectors of less than kStreams pointers.
  for (int64_t s = 0; s < kStreams; ++s)
    for (int64_t j = 0, key = first, head = skipped; j < kShare; head = 0, ++key) {
      const std::byte* row = row_of(s, key, head);
      for (const int64_t end = end_of(j, head); j < end; ++j, row += head_bytes[s]) to[j * kStreams + s] = row;
    }
#endif
}

// Query rows lie in blocks of kDecodeRows, 16 columns of each row beside those of the others, so that the score loop
// reads them at constant distances from one pointer.
inline int64_t query_place(int64_t row, int64_t column, int64_t columns) {
  return ((row / kDecodeRows * (columns / 16) + column / 16) * kDecodeRows + row % kDecodeRows) * 16 + column % 16;
}

template <class V, int kWidth>
[[gnu::always_inline]] inline void add_products(const float* q, const V (&k)[kWidth], V (&total)[kDecodeRows][kWidth]) {
#pragma GCC unroll 4
  for (int i = 0; i < kDecodeRows; ++i) {
    const V query = V::load(q + i * V::kLanes);
#pragma GCC unroll 4
    for (int c = 0; c < kWidth; ++c) total[i][c] = V::fma(query, k[c], total[i][c]);
  }
}

// sums[4 * row + key] = q(row) * k(key), lane by lane, for a block of kDecodeRows rows of q and kWidth keys from number
// j on, whose rows begin `head` bytes behind keys[].
template <class V, class Element, int kWidth>
[[gnu::always_inline]] inline void multiply_keys(const std::byte* const* keys, int64_t j, int64_t head, const float* q,
                                                 int64_t dim, V* sums, RowsAhead ahead) {
  constexpr int64_t kLanes = V::kLanes;
  const std::byte* row[kWidth];
#pragma GCC unroll 4
  for (int c = 0; c < kWidth; ++c) row[c] = keys[j + c] + head;
  V total[kDecodeRows][kWidth];
#pragma GCC unroll 4
  for (int i = 0; i < kDecodeRows; ++i) {
#pragma GCC unroll 4
    for (int c = 0; c < kWidth; ++c) total[i][c] = V::zero();
  }
  int64_t d = 0;
#pragma GCC unroll 1
  for (; d + kPair <= dim; d += kPair) {
    V first[kWidth], second[kWidth];
#pragma GCC unroll 4
    for (int c = 0; c < kWidth; ++c) ahead.template ask_for<kPair * Element::kBytes>(j + c, d * Element::kBytes);
#pragma GCC unroll 4
    for (int c = 0; c < kWidth; ++c) load_pair<V, Element>(row[c] + d * Element::kBytes, first[c], second[c]);
    add_products<V, kWidth>(q, first, total);
    add_products<V, kWidth>(q + kDecodeRows * kLanes, second, total);
    q += 2 * kDecodeRows * kLanes;
  }
#pragma GCC unroll 1
  for (; d < dim; d += kLanes) {
    V k[kWidth];
#pragma GCC unroll 4
    for (int c = 0; c < kWidth; ++c) k[c] = load_partial<V, Element>(row[c] + d * Element::kBytes, dim - d);
    add_products<V, kWidth>(q, k, total);
    q += kDecodeRows * kLanes;
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

// scores[row][key] = factor * q(row) . k(key) for a block of kDecodeRows rows of q, scores in rows of kDecodeStride.
// Kept out of line, with all it needs in arguments: inlined into the loop over heads, the accumulators go to the stack.
template <class V, class Element>
[[gnu::noinline]] void score_keys(BlockRows keys, const float* q, float factor, float* scores, RowsAhead ahead) {
  constexpr int kWidth = kDecodeWidth<V>;
  for (int64_t j = 0; j < keys.count; j += 4) {
    V sums[16];
#pragma GCC unroll 4
    for (int c = 0; c < 4; c += kWidth)
      multiply_keys<V, Element, kWidth>(keys.rows, j + c, keys.head, q, keys.dim, sums + c, ahead);
    alignas(64) float reduced[16];
    (V::sum_lanes(sums) * V::broadcast(factor)).store(reduced);
#pragma GCC unroll 4
    for (int64_t i = 0; i < kDecodeRows; ++i)
      std::memcpy(scores + i * kDecodeStride + j, reduced + 4 * i, 4 * sizeof(float));
  }
}

// o[row][0 .. 16 kVecs] = o * alpha + sum over keys of p(row) v[column ..], for the `kept` first of kDecodeRows rows. p
// lies in rows of kDecodeStride, o in rows of `stride` floats.
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
    ahead.template ask_for<kVecs * kLanes * Element::kBytes>(j, column * Element::kBytes);
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
#pragma GCC unroll 4
  for (int64_t i = 0; i < kDecodeRows; ++i) {
    if (i >= kept) break;
    const V factor = V::broadcast(alpha[i]);
    float* at = o + i * stride;
#pragma GCC unroll 4
    for (int c = 0; c < kVecs; ++c) V::fma(V::load(at + c * kLanes), factor, total[i][c]).store(at + c * kLanes);
  }
}

// One head's rows against the keys of a block: scores[row][key] = factor * q(row) . k(key), in rows of kDecodeStride
// floats. q as query_place says, `stride` columns, zero up to a multiple of kDecodeRows rows.
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

// The two products of a head's block on vectors. `ahead`: what is asked for meanwhile.
template <class V, class Element>
class VectorProducts {
  static constexpr int kWidth = kDecodeWidth<V>;
  static_assert(kWidth == 4 || !Element::kInterleaved, "single vectors would split a pair");

 public:
  VectorProducts(const DecodeCall&, std::byte*) {}
  void begin_head(int64_t, const float*, int64_t) {}

  void scores(const ScoreBlock& block, RowsAhead ahead) {
    ahead = ahead.with_far(block.keys.rows);
    for (int64_t r = 0; r < block.rows; r += kDecodeRows)
      score_keys<V, Element>(block.keys, block.q + r * block.stride, block.factor, block.scores + r * kDecodeStride,
                             ahead);
  }
  void values(const ValueBlock& block, RowsAhead ahead) {
    ahead = ahead.with_far(block.values.rows);
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
  void multiply(const ValueBlock& block, int64_t r, int64_t c, RowsAhead ahead) {
    multiply_values<V, Element, kVecs>(block.values, c, block.p + r * kDecodeStride, block.alpha + r, block.rows - r,
                                       block.o + r * block.stride + c, block.stride, ahead);
  }
};

}  // namespace tessera::cpu::TESSERA_CPU_ISA
