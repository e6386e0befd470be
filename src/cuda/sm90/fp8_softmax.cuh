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
  int begin[2], end[2];  // keys that the rows keep
  float scale[2];        // positive: scores times it are in base 2
  float first_scale[2];  // what scores are multiplied by before, where they are (Fp8Consumer::softmax_tile)
  bool odd;              // some row of the warp has a scale that is no ordinary positive number
};

// Scores of a tile to probabilities.
template <int kColumns>
__device__ __forceinline__ void exponentiate(float (&scores)[kColumns][4], Fp8Rows& rows, const float (&scale)[2]) {
  float bases[2], shifts[2], factors[2];
  bool large = false;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float before = rows.row_max[half];
    float maximum = before;
#pragma unroll
    for (int n = 0; n < kColumns; ++n) maximum = fmaxf(maximum, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
    maximum = quad_max(maximum);
    rows.row_max[half] = maximum;
    factors[half] = scale[half];
    bases[half] = RowStatistics<1>::base(maximum, factors[half]);
    // 0 for a row without keys so far, however low its first scores are.
    rows.correction[half] = ptx::ex2(__fmul_rn(before, factors[half]) - bases[half]);
    shifts[half] = kProbShift - bases[half];
    large |= fabsf(bases[half]) > kFusedBaseLimit;
  }
  // Rare, as in tile/softmax.cuh.
  if (__any_sync(0xffffffffu, large)) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool round_first = fabsf(bases[half]) > kFusedBaseLimit;
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          const float x = scores[n][e];
          scores[n][e] =
              round_first ? __fsub_rn(__fmul_rn(x, factors[half]), bases[half]) : fmaf(x, factors[half], -bases[half]);
        }
      }
      factors[half] = 1.0f;
      shifts[half] = kProbShift;
    }
  }
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) scores[n][e] = ptx::ex2(fmaf(scores[n][e], factors[e / 2], shifts[e / 2]));
  }
}

}  // namespace tessera::cuda::sm90
