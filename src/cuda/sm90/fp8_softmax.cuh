// The online softmax of the e4m3 forward, in base 2, for the two rows of a lane. Probabilities are times 2^8: the
// largest of a row is 256 of e4m3's 448, so what is rounded to nothing is 2^17 below it.
// Invariant: row_sum sums what the tensor cores multiply v by, rounded p, so that o and lse are those of one matrix.
#pragma once

#include "../tile/softmax.cuh"

namespace tessera::cuda::sm90 {

inline constexpr float kProbShift = 8.0f, kProbUnit = 0x1p-8f;

struct Fp8Rows {
  float row_max[2];     // of the scores
  float row_sum[2];     // times 2^8, relative to the base before the latest tile
  float correction[2];  // by how much the latest tile shrinks what was accumulated before it
};

// What does not change over the tiles of a view, of the rows of one thread. Kept in shared memory, to which nobody but
// the thread goes: the registers are full (fp8_config.hpp).
struct alignas(16) Fp8Notes {
  int begin[2], end[2];  // keys that the rows keep; not written at d 256, see Fp8Consumer::mask
  float scale[2];        // positive: scores times it are in base 2
  float first_scale[2];  // what scores are multiplied by before, where they are (Fp8Consumer::multiply_odd)
  int odd;               // negative: some row of the warp has a scale that is no ordinary positive number
};

// The largest of a row's scores in this lane and `before`.
template <int kColumns>
__device__ __forceinline__ float lane_maximum(const float (&scores)[kColumns][4], int half, float before) {
  float maximum = before;
#pragma unroll
  for (int n = 0; n < kColumns; ++n) maximum = fmaxf(maximum, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
  return maximum;
}
// The same where `before` is not negative: then the bits' order as integers is that of the numbers, and one instruction
// compares three.
template <int kColumns>
__device__ __forceinline__ float natural_maximum(const float (&scores)[kColumns][4], int half, float before) {
  int maximum = __float_as_int(before);
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
    const int first = __float_as_int(scores[n][2 * half]), second = __float_as_int(scores[n][2 * half + 1]);
    const int larger = maximum > first ? maximum : first;
    maximum = larger > second ? larger : second;
  }
  return __int_as_float(maximum);
}

// How a tile's scores become exponents in base 2: times factor plus shift.
struct Fp8Exponents {
  float factor[2], shift[2];
};

// Takes a tile's scores into the rows' maxima. kNatural: `special` says whether some row of the warp had a negative
// maximum before the tile, or prepare() has something to do to the scores.
template <bool kNatural, int kColumns, class Prepare>
__device__ __forceinline__ Fp8Exponents find_exponents(float (&scores)[kColumns][4], Fp8Rows& rows,
                                                       const float (&scale)[2], bool special, const Prepare& prepare) {
  float bases[2], maxima[2];
  bool large = false;
  Fp8Exponents out;
  if constexpr (kNatural) {
#pragma unroll
    for (int half = 0; half < 2; ++half) maxima[half] = natural_maximum(scores, half, rows.row_max[half]);
    // Asked of the lanes' own maxima, while they look for the rows': where they are not negative, the largest decides.
    large = maxima[0] * scale[0] > kFusedBaseLimit || maxima[1] * scale[1] > kFusedBaseLimit;
    if (special) {
      prepare();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        maxima[half] = quad_max(lane_maximum(scores, half, rows.row_max[half]));
      }
      large = fabsf(RowStatistics<1>::base(maxima[0], scale[0])) > kFusedBaseLimit ||
              fabsf(RowStatistics<1>::base(maxima[1], scale[1])) > kFusedBaseLimit;
    }
    large = __any_sync(0xffffffffu, large) != 0;
  } else {
#pragma unroll
    for (int half = 0; half < 2; ++half) maxima[half] = lane_maximum(scores, half, rows.row_max[half]);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float before = rows.row_max[half], maximum = quad_max(maxima[half]);
    rows.row_max[half] = maximum;
    out.factor[half] = scale[half];
    bases[half] = RowStatistics<1>::base(maximum, scale[half]);
    // 0 for a row without keys so far, however low its first scores are.
    rows.correction[half] = ptx::ex2(__fmul_rn(before, scale[half]) - bases[half]);
    out.shift[half] = kProbShift - bases[half];
    if (!kNatural) large |= fabsf(bases[half]) > kFusedBaseLimit;
  }
  if (!kNatural) large = __any_sync(0xffffffffu, large) != 0;
  // Rare, as in tile/softmax.cuh.
  if (large) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool round_first = fabsf(bases[half]) > kFusedBaseLimit;
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          const float x = scores[n][e];
          scores[n][e] =
              round_first ? __fsub_rn(__fmul_rn(x, scale[half]), bases[half]) : fmaf(x, scale[half], -bases[half]);
        }
      }
      out.factor[half] = 1.0f;
      out.shift[half] = kProbShift;
    }
  }
  return out;
}

// The same number, but not before a probability of the same row is there (NaN if that is).
__device__ __forceinline__ float behind(float probability, float number) { return fmaf(probability, 0.0f, number); }

// Scores of a tile to probabilities, kChunk blocks of 8 keys at a time, and between(chunk, first) after each, `first`
// the chunk's first probabilities of the two rows. kChain: a chunk's exponents wait for the first results of the chunk
// before, since the assembler would have them all, 64 instructions at d 128, in front of the first exponential, while
// the unit for these idles.
template <int kChunk, bool kChain = true, int kColumns, class Between>
__device__ __forceinline__ void exponentiate(float (&scores)[kColumns][4], Fp8Exponents with, const Between& between) {
  static_assert(kColumns % kChunk == 0);
#pragma unroll
  for (int chunk = 0; chunk < kColumns / kChunk; ++chunk) {
#pragma unroll
    for (int n = chunk * kChunk; n < (chunk + 1) * kChunk; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[n][e] = ptx::ex2(fmaf(scores[n][e], with.factor[e / 2], with.shift[e / 2]));
    }
    const float first[2] = {scores[chunk * kChunk][0], scores[chunk * kChunk][2]};
    between(chunk, first);
    if (kChain) with.shift[0] = behind(first[0], with.shift[0]);
    if (kChain) with.shift[1] = behind(first[1], with.shift[1]);
  }
}

}  // namespace tessera::cuda::sm90
