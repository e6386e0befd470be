// The online softmax of the e4m3 forward, in base 2, for the two rows of a lane. Probabilities are times 2^kShift of
// the shape. With 2^8 the largest of a row is 256 of e4m3's 448, and what is rounded to nothing is 2^17 below it; with
// 2^5 2^14, and a row's base, its largest score so far, may stay until a score is 3.75 above it.
// Invariant: row_sum sums what the tensor cores multiply v by, rounded p, so that o and lse are those of one matrix.
#pragma once

#include "../tile/softmax.cuh"

namespace tessera::cuda::sm90 {

inline constexpr float kLargestExponent = 8.75f;  // of probabilities that e4m3 holds, below log2(448)

struct Fp8Rows {
  float row_max[2];     // of the scores, or the base that stays
  float row_sum[2];     // times 2^kShift, relative to the base before the latest tile, or the one that stays
  float correction[2];  // by how much the latest tile shrinks what was accumulated before it
};

// What does not change over the tiles of a view, of the rows of one thread. Kept in shared memory, to which nobody but
// the thread goes: the registers are full (fp8_config.hpp).
struct alignas(16) Fp8Notes {
  int begin[2], end[2];  // keys that the rows keep; not written at d 256, see Fp8Consumer::mask
  float scale[2];        // positive: scores times it are in base 2
  float first_scale[2];  // what scores are multiplied by before, where they are (Fp8Consumer::multiply_odd)
  int odd;               // negative: some row of the warp has a scale that is no ordinary positive number
  float shift[2];        // what is added to that while the base stays, see note_shifts(); not at d 256, where
                         // it is last: before first_scale it had 250 bytes spilled there
};

// The largest of a row's scores in this lane and `before`.
template <int kColumns>
__device__ __forceinline__ float lane_maximum(const float (&scores)[kColumns][4], int half, float before) {
  float maximum = before;
#pragma unroll
  for (int n = 0; n < kColumns; ++n) maximum = fmaxf(maximum, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
  return maximum;
}
// The largest of a row's scores in this lane and 0: of numbers that are not negative the bits' order as integers is
// theirs, and one instruction compares three.
template <int kColumns>
__device__ __forceinline__ float natural_maximum(const float (&scores)[kColumns][4], int half) {
  int maximum = 0;
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

// Takes a tile's scores into the rows' maxima.
template <int kShift, int kColumns>
__device__ __forceinline__ Fp8Exponents find_exponents(float (&scores)[kColumns][4], Fp8Rows& rows,
                                                       const float (&scale)[2]) {
  float bases[2], maxima[2];
  bool large = false;
  Fp8Exponents out;
#pragma unroll
  for (int half = 0; half < 2; ++half) maxima[half] = lane_maximum(scores, half, rows.row_max[half]);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float before = rows.row_max[half], maximum = quad_max(maxima[half]);
    rows.row_max[half] = maximum;
    out.factor[half] = scale[half];
    bases[half] = RowStatistics<1>::base(maximum, scale[half]);
    // 0 for a row without keys so far, however low its first scores are.
    rows.correction[half] = ptx::ex2(__fmul_rn(before, scale[half]) - bases[half]);
    out.shift[half] = kShift - bases[half];
    large |= fabsf(bases[half]) > kFusedBaseLimit;
  }
  large = __any_sync(0xffffffffu, large) != 0;
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
      out.shift[half] = kShift;
    }
  }
  return out;
}

// What later scores of the rows become exponents by, as long as the bases stay. Infinite, so that every tile looks for
// the maxima: without keys so far, and where the scores have to be multiplied first.
template <int kShift>
__device__ __forceinline__ void note_shifts(Fp8Notes& own, const Fp8Rows& rows) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float base = rows.row_max[half] * own.scale[half];
    own.shift[half] = fabsf(base) <= kFusedBaseLimit && own.odd == 0 ? kShift - base : INFINITY;
  }
}

// Whether some row of the warp has exponents beyond e4m3's numbers, or a shift that says so whatever the scores are.
// What is below 0 is not looked for: a row whose base is so low exceeds by its shift.
template <int kColumns>
__device__ __forceinline__ bool exceeds(const float (&scores)[kColumns][4], const Fp8Exponents& with) {
  const float first = fmaf(natural_maximum(scores, 0), with.factor[0], with.shift[0]);
  const float second = fmaf(natural_maximum(scores, 1), with.factor[1], with.shift[1]);
  return __any_sync(0xffffffffu, !(first <= kLargestExponent) || !(second <= kLargestExponent)) != 0;
}

// Where they do: takes the tile into the maxima, and what was accumulated to the new bases.
template <int kShift, int kColumns, int kOutputs>
__device__ __forceinline__ void change_bases(float (&scores)[kColumns][4], Fp8Rows& rows, float (&acc)[kOutputs][4],
                                             Fp8Notes& own, Fp8Exponents& with) {
  const float scale[2] = {with.factor[0], with.factor[1]};
  with = find_exponents<kShift>(scores, rows, scale);
  note_shifts<kShift>(own, rows);
#pragma unroll
  for (int n = 0; n < kOutputs; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) acc[n][e] *= rows.correction[e / 2];
  }
  rows.row_sum[0] *= rows.correction[0];
  rows.row_sum[1] *= rows.correction[1];
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
