// The definition of attention that every kernel, baseline and test shares: the band, which keys and tiles a row sees,
// softcap, ALiBi, the base of lse, and the merge of partial states. Compiles under g++ and nvcc; includes no host-only
// header. docs/semantics.md states the same in prose. Invariant: no kernel spells any of these rules again.
#pragma once

#if defined(__CUDACC__)
#define TESSERA_HD __host__ __device__ __forceinline__
#else
// Always inlined, so that no copy compiled for a newer instruction set can be linked into code for an older one.
#define TESSERA_HD [[gnu::always_inline]] inline
#endif

#include <cmath>
#include <cstdint>

namespace tessera::core {

// Half-open range of key columns or tiles.
struct Range {
  int64_t begin, end;
  TESSERA_HD int64_t size() const { return end > begin ? end - begin : 0; }
  TESSERA_HD bool empty() const { return end <= begin; }
};

// Key tiles that a block of query rows sees: every row keeps every key of [unmasked_begin, unmasked_end), so a kernel
// runs a masked head [begin, unmasked_begin), a plain middle and a masked tail [unmasked_end, end).
struct TileRange {
  int64_t begin, unmasked_begin, unmasked_end, end;
};

// A bound so wide that it never acts; sums of a few of them stay inside int64.
inline constexpr int64_t kUnbounded = int64_t{1} << 40;

// The mask of one sequence: row i keeps key j when d(i) - left <= j <= d(i) + right, where d(i) = i + offset and
// 0 <= j < seqlen_k.
struct Band {
  int64_t seqlen_q, seqlen_k;
  int64_t offset;
  int64_t left, right;  // >= 0; kUnbounded: no bound

  TESSERA_HD int64_t diagonal(int64_t row) const { return row + offset; }

  TESSERA_HD bool keeps(int64_t row, int64_t key) const {
    const int64_t d = diagonal(row);
    return key >= 0 && key < seqlen_k && key >= d - left && key <= d + right;
  }

  TESSERA_HD Range visible_keys(int64_t row) const {
    const int64_t d = diagonal(row);
    const int64_t begin = d - left > 0 ? d - left : 0;
    const int64_t end = d + right + 1 < seqlen_k ? d + right + 1 : seqlen_k;
    return begin < end ? Range{begin, end} : Range{0, 0};
  }

  // Rows that see some key of [key_begin, key_end): visible_keys the other way round. Rows of a band that see a key are
  // neighbours.
  TESSERA_HD Range seeing_rows(int64_t key_begin, int64_t key_end) const {
    if (key_end > seqlen_k) key_end = seqlen_k;
    if (key_begin >= key_end) return {0, 0};
    const int64_t first = key_begin - right - offset, last = key_end - 1 + left - offset;
    const int64_t begin = first > 0 ? first : 0, end = last + 1 < seqlen_q ? last + 1 : seqlen_q;
    return begin < end ? Range{begin, end} : Range{0, 0};
  }

  // Rows that see every key of [key_begin, key_end), which is not empty.
  TESSERA_HD Range fully_seeing_rows(int64_t key_begin, int64_t key_end) const {
    if (key_end > seqlen_k) return {0, 0};
    const int64_t first = key_end - 1 - right - offset, last = key_begin + left - offset;
    const int64_t begin = first > 0 ? first : 0, end = last + 1 < seqlen_q ? last + 1 : seqlen_q;
    return begin < end ? Range{begin, end} : Range{0, 0};
  }

  // Tiles of tile_n keys that some row of [row_begin, row_end) sees. Empty blocks give {0, 0, 0, 0}.
  TESSERA_HD TileRange visible_tiles(int64_t row_begin, int64_t row_end, int64_t tile_n) const {
    if (row_end > seqlen_q) row_end = seqlen_q;
    if (row_begin >= row_end || seqlen_k <= 0) return {0, 0, 0, 0};
    const int64_t d_first = diagonal(row_begin), d_last = diagonal(row_end - 1);
    // Union over rows: the first row has the lowest bounds, the last row the highest.
    const int64_t any_begin = d_first - left > 0 ? d_first - left : 0;
    const int64_t any_end = d_last + right + 1 < seqlen_k ? d_last + right + 1 : seqlen_k;
    if (any_begin >= any_end) return {0, 0, 0, 0};
    const int64_t begin = any_begin / tile_n, end = (any_end + tile_n - 1) / tile_n;
    // Intersection over rows.
    const int64_t all_begin = d_last - left > 0 ? d_last - left : 0;
    const int64_t all_end = d_first + right + 1 < seqlen_k ? d_first + right + 1 : seqlen_k;
    int64_t unmasked_begin = (all_begin + tile_n - 1) / tile_n;
    int64_t unmasked_end = all_end > 0 ? all_end / tile_n : 0;
    if (unmasked_begin < begin) unmasked_begin = begin;
    if (unmasked_begin > end) unmasked_begin = end;
    if (unmasked_end < unmasked_begin) unmasked_end = unmasked_begin;
    return {begin, unmasked_begin, unmasked_end, end};
  }
};

// The bounds of tessera_problem (-1: unbounded) for one sequence. Bounds beyond seqlen_q + seqlen_k become unbounded
// before any arithmetic.
TESSERA_HD Band make_band(int64_t seqlen_q, int64_t seqlen_k, int64_t left, int64_t right, bool top_left) {
  const int64_t reach = seqlen_q + seqlen_k;
  return {seqlen_q, seqlen_k, top_left ? 0 : seqlen_k - seqlen_q, left < 0 || left > reach ? kUnbounded : left,
          right < 0 || right > reach ? kUnbounded : right};
}

// Keys of split s of n, for a sequence of seqlen_k keys: 64 * ceil(ceil(seqlen_k / 64) / n) keys a split.
TESSERA_HD int64_t split_size(int64_t seqlen_k, int64_t num_splits) {
  const int64_t blocks = (seqlen_k + 63) / 64;
  return 64 * ((blocks + num_splits - 1) / num_splits);
}
TESSERA_HD Range split_keys(int64_t seqlen_k, int64_t num_splits, int64_t split) {
  const int64_t size = split_size(seqlen_k, num_splits);
  const int64_t begin = split * size, end = begin + size < seqlen_k ? begin + size : seqlen_k;
  return begin < end ? Range{begin, end} : Range{0, 0};
}

// softcap * tanh(c / softcap) and its derivative in c, from the capped score.
template <class T>
TESSERA_HD T apply_softcap(T score, T softcap) {
  return softcap * T(::tanh(score / softcap));
}
template <class T>
TESSERA_HD T softcap_derivative(T capped, T softcap) {
  const T t = capped / softcap;
  return T(1) - t * t;
}

// -slope * |d(i) - j|.
template <class T>
TESSERA_HD T alibi_bias(T slope, int64_t diagonal, int64_t key) {
  const int64_t distance = diagonal > key ? diagonal - key : key - diagonal;
  return -slope * T(distance);
}

// lse leaves the library in base e; a kernel whose running maximum and scores are in base 2 converts it once.
inline constexpr double kLog2E = 1.4426950408889634074;
inline constexpr double kLn2 = 0.69314718055994530942;

// lse (base e) from a row's maximum in base 2 and its sum of exp2(x - row_max). row_sum 0: empty row, -inf.
template <class T>
TESSERA_HD T lse_from_base2(T row_max, T row_sum) {
  return row_sum == T(0) ? -T(INFINITY) : T(row_max * T(kLn2) + T(::log(row_sum)));
}

// The same from a maximum in natural units.
template <class T>
TESSERA_HD T lse_from_base_e(T row_max, T row_sum) {
  return row_sum == T(0) ? -T(INFINITY) : T(row_max + T(::log(row_sum)));
}

// Merge of states. A state is (o, lse); (0, -inf) is neutral, also merged with itself.
// merged lse of two; NaN stays NaN, nothing overflows.
template <class T>
TESSERA_HD T merge_lse(T a, T b) {
  if (a != a || b != b) return a + b;
  const T high = a > b ? a : b, low = a > b ? b : a;
  if (high == -T(INFINITY)) return high;
  if (low == -T(INFINITY) || high == T(INFINITY)) return high;
  return high + T(::log1p(::exp(low - high)));
}
// Weight of a state in the merged result: exp(lse - merged), 0 for empty states.
template <class T>
TESSERA_HD T merge_weight(T lse, T merged) {
  return lse == -T(INFINITY) ? T(0) : T(::exp(lse - merged));
}
// Weights of two states in their merge. They are taken from the larger lse and sum to 1 also where an lse is so large
// that its last digit is coarser than ln 2: at 1.4e11 weights from a merged double are off by 4e-6, from a float by a
// factor of 2.
template <class T>
struct MergeWeights {
  T first, second;
};
template <class T>
TESSERA_HD MergeWeights<T> merge_weights(T a, T b) {
  const T high = a > b ? a : b;
  const T first = merge_weight(a, high), second = merge_weight(b, high);
  const T sum = first + second;
  return sum == T(0) ? MergeWeights<T>{first, second} : MergeWeights<T>{first / sum, second / sum};
}

}  // namespace tessera::core
