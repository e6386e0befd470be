// The two register-blocked products: scores = scale * Q K^T and O = O * alpha + P V. Both multiply a strip of a few
// rows by a panel, [depth][width] with width a whole number of vectors, and differ in where the strip's elements lie
// and in what becomes of the sums.
// Per depth step a block of kRows x kVecs vectors does kRows * kVecs vector FMAs for kVecs panel loads and kRows
// broadcasts; the panel is read once a strip, so a strip of R rows moves 4 / R bytes from L2 for each float FMA.
// Invariant: a row's sums do not depend on how many rows the strip has.
#pragma once

#include <cstdint>
#include <utility>

namespace tessera::cpu::TESSERA_CPU_ISA {

// Keys a chunk holds at most, and the distance between rows of a strip's scores: 16 more, so that rows of equal
// column do not share L1 sets.
inline constexpr int kMaxChunk = 256;
inline constexpr int kScoreStride = kMaxChunk + 16;

template <class V, int kRows, int kVecs>
[[gnu::always_inline]] inline void clear(V (&sums)[kRows][kVecs]) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int c = 0; c < kVecs; ++c) sums[r][c] = V::zero();
  }
}

// sums[r][c] += sum over depth of strip(r, k) * panel(k, c).
template <class V, int kRows, int kVecs, int kRowStride, int kDepthStride>
[[gnu::always_inline]] inline void accumulate(const typename V::Scalar* strip, const typename V::Scalar* panel,
                                              int64_t depth, V (&sums)[kRows][kVecs]) {
#pragma GCC unroll 1
  for (int64_t k = 0; k < depth; ++k) {
    V columns[kVecs];
#pragma GCC unroll 2
    for (int c = 0; c < kVecs; ++c) columns[c] = V::load(panel + c * V::kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const V element = V::broadcast(strip[r * kRowStride]);
#pragma GCC unroll 2
      for (int c = 0; c < kVecs; ++c) sums[r][c] = V::fma(element, columns[c], sums[r][c]);
    }
    strip += kDepthStride;
    panel += kVecs * V::kLanes;
  }
}

// sums[r][c] = sum over depth of strip(r, k) * panel(k, c).
template <class V, int kRows, int kVecs, int kRowStride, int kDepthStride>
[[gnu::always_inline]] inline void multiply(const typename V::Scalar* strip, const typename V::Scalar* panel,
                                            int64_t depth, V (&sums)[kRows][kVecs]) {
  clear(sums);
  accumulate<V, kRows, kVecs, kRowStride, kDepthStride>(strip, panel, depth, sums);
}

// Depth of a score's partial sums: longer ones are added up in pieces. One running sum over 128 misses the tolerance
// once scores are large (scale 3 at d 128: 7 of 12 random problems), 64 still does (2 of 12), 32 does not, at no
// measurable cost.
inline constexpr int64_t kDepthPiece = 32;

// q: strip of the packed queries, element (r, k) at k * V::kRows + r. scores: rows kScoreStride apart.
template <class V, int kRows, int kVecs>
void score_block(const typename V::Scalar* q, const typename V::Scalar* panel, int64_t depth, typename V::Scalar scale,
                 typename V::Scalar* scores) {
  for (int64_t done = 0; done < depth; done += kDepthPiece) {
    V sums[kRows][kVecs];
    multiply<V, kRows, kVecs, 1, V::kRows>(q + done * V::kRows, panel + done * kVecs * V::kLanes,
                                           depth - done < kDepthPiece ? depth - done : kDepthPiece, sums);
    const V factor = V::broadcast(scale);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int c = 0; c < kVecs; ++c) {
        typename V::Scalar* at = scores + r * kScoreStride + c * V::kLanes;
        (done == 0 ? sums[r][c] * factor : V::fma(sums[r][c], factor, V::load(at))).store(at);
      }
    }
  }
}

// probs: rows kScoreStride apart. o: rows o_stride apart, each scaled by its alpha before the product is added.
template <class V, int kRows, int kVecs>
void value_block(const typename V::Scalar* probs, const typename V::Scalar* panel, int64_t depth,
                 const typename V::Scalar* alpha, typename V::Scalar* o, int64_t o_stride) {
  V sums[kRows][kVecs];
  multiply<V, kRows, kVecs, kScoreStride, 1>(probs, panel, depth, sums);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const V factor = V::broadcast(alpha[r]);
#pragma GCC unroll 2
    for (int c = 0; c < kVecs; ++c) {
      typename V::Scalar* at = o + r * o_stride + c * V::kLanes;
      V::fma(V::load(at), factor, sums[r][c]).store(at);
    }
  }
}

// The instantiations for 1..V::kRows rows and 1..V::kVecs vectors.
template <class V>
struct Blocks {
  using T = typename V::Scalar;
  using Score = void (*)(const T*, const T*, int64_t, T, T*);
  using Value = void (*)(const T*, const T*, int64_t, const T*, T*, int64_t);
  Score score[V::kRows][V::kVecs];
  Value value[V::kRows][V::kVecs];

  template <int... kRow>
  static constexpr Blocks make(std::integer_sequence<int, kRow...>) {
    if constexpr (V::kVecs == 1) {
      return {{{&score_block<V, kRow + 1, 1>}...}, {{&value_block<V, kRow + 1, 1>}...}};
    } else {
      return {{{&score_block<V, kRow + 1, 1>, &score_block<V, kRow + 1, 2>}...},
              {{&value_block<V, kRow + 1, 1>, &value_block<V, kRow + 1, 2>}...}};
    }
  }
};
template <class V>
inline constexpr Blocks<V> kBlocks = Blocks<V>::make(std::make_integer_sequence<int, V::kRows>{});

}  // namespace tessera::cpu::TESSERA_CPU_ISA
