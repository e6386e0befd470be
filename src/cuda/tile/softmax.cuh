// The online softmax over score tiles in registers, in base 2. A warp owns kBlocks * 16 rows; lane l holds, of every 16
// x 8 block of scores [b][n], elements 0, 1 of row l / 4 and 2, 3 of row l / 4 + 8, columns 8 n + 2 (l % 4) + {0, 1}.
// Invariant: the accumulators and row sums are relative to the row's base (its maximum in base-2 units, rounded once),
// so the largest element of a row counts exactly 1 and nothing is divided before the end.
// Source: Dao, FlashAttention-2, section 3.1 (unnormalised accumulators); Milakov and Gimelshein, online normaliser.
#pragma once

#include <cmath>
#include <cstdint>

#include "../ptx/math.cuh"

namespace tessera::cuda {

// Above this |base| the rounding of a fused multiply-add's other operand reaches 2^-11 in the exponent: the scores of
// such a row are multiplied and rounded like their maximum before the subtraction.
inline constexpr float kFusedBaseLimit = 4096.0f;
// A lazy base stays while the row's maximum is less than 2^8 times of it: P then fits f16, and sums keep their digits.
inline constexpr float kLazyGrowth = 8.0f;

__device__ __forceinline__ float quad_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}
__device__ __forceinline__ float quad_sum(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

// Statistics of the rows of one lane. row_max is in the units of the scores; row_sum is this lane's share.
template <int kBlocks>
struct RowStatistics {
  float row_max[kBlocks][2], row_sum[kBlocks][2];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      row_max[b][0] = row_max[b][1] = -INFINITY;
      row_sum[b][0] = row_sum[b][1] = 0.0f;
    }
  }

  // The base of a row: 0 while it has seen no key, so that -inf scores give 0 and not NaN.
  __device__ static __forceinline__ float base(float maximum, float scale) {
    return maximum == -INFINITY ? 0.0f : __fmul_rn(maximum, scale);
  }
};

// What one tile of scores changes: the new bases, and by how much what was summed before them shrinks.
template <int kBlocks>
struct SoftmaxStep {
  float bases[kBlocks][2], corrections[kBlocks][2];
  bool changed;  // some correction of this lane is not 1
  bool large;    // some base of this lane is above kFusedBaseLimit
};

// The maxima of a row's scores in a tile and of those before it.
template <int kBlocks, int kColumns>
__device__ __forceinline__ float row_maximum(const float (&scores)[kBlocks][kColumns][4],
                                             const RowStatistics<kBlocks>& rows, int b, int half) {
  float maximum = rows.row_max[b][half];
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
    maximum = fmaxf(maximum, fmaxf(scores[b][n][2 * half], scores[b][n][2 * half + 1]));
  }
  return quad_max(maximum);
}

// Takes new maxima of the rows, by `maximum_of(b, half)`, for their bases. Scores times `scale` are in base 2; scale is
// positive. kLazy: a row keeps its base while its maximum stays below 2^8 times of it, so most tiles change nothing.
template <bool kLazy, int kBlocks, class MaximumOf>
__device__ __forceinline__ SoftmaxStep<kBlocks> change_bases(RowStatistics<kBlocks>& rows, float scale,
                                                             MaximumOf maximum_of) {
  SoftmaxStep<kBlocks> step;
  step.changed = step.large = false;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float before = rows.row_max[b][half];
      float maximum = maximum_of(b, half);
      if (kLazy && !((maximum - before) * scale > kLazyGrowth)) maximum = before;
      rows.row_max[b][half] = maximum;
      step.bases[b][half] = RowStatistics<kBlocks>::base(maximum, scale);
      // 0 for a row without keys so far, however low its first scores are.
      step.corrections[b][half] = ptx::ex2(__fmul_rn(before, scale) - step.bases[b][half]);
      step.changed |= maximum != before;
      step.large |= fabsf(step.bases[b][half]) > kFusedBaseLimit;
    }
  }
  return step;
}

// Takes a tile of scores into the row maxima.
template <bool kLazy, int kBlocks, int kColumns>
__device__ __forceinline__ SoftmaxStep<kBlocks> update_maxima(const float (&scores)[kBlocks][kColumns][4],
                                                              RowStatistics<kBlocks>& rows, float scale) {
  return change_bases<kLazy>(
      rows, scale, [&](int b, int half) __attribute__((always_inline)) { return row_maximum(scores, rows, b, half); });
}

// Shrinks the sums under the bases before.
template <int kBlocks>
__device__ __forceinline__ void rescale(RowStatistics<kBlocks>& rows, const SoftmaxStep<kBlocks>& step) {
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    rows.row_sum[b][0] *= step.corrections[b][0];
    rows.row_sum[b][1] *= step.corrections[b][1];
  }
}

// Shrinks what was accumulated under the bases before.
template <int kBlocks, int kValueColumns>
__device__ __forceinline__ void rescale(float (&acc)[kBlocks][kValueColumns][4], const SoftmaxStep<kBlocks>& step) {
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int n = 0; n < kValueColumns; ++n) {
        acc[b][n][2 * half] *= step.corrections[b][half];
        acc[b][n][2 * half + 1] *= step.corrections[b][half];
      }
    }
  }
}

// Scores to probabilities relative to the new bases, added to the sums.
template <int kBlocks, int kColumns>
__device__ __forceinline__ void exponentiate(float (&scores)[kBlocks][kColumns][4], RowStatistics<kBlocks>& rows,
                                             SoftmaxStep<kBlocks>& step, float scale) {
  // Rare: a warp with such a row subtracts here, every row by its own rule, and leaves fma(x, 1, -0) to do below.
  float factor = scale;
  if (__any_sync(0xffffffffu, step.large)) {
    factor = 1.0f;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const bool round_first = fabsf(step.bases[b][half]) > kFusedBaseLimit;
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            const float x = scores[b][n][e];
            scores[b][n][e] = round_first ? __fsub_rn(__fmul_rn(x, scale), step.bases[b][half])
                                          : fmaf(x, scale, -step.bases[b][half]);
          }
        }
        step.bases[b][half] = 0.0f;
      }
    }
  }
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = 0.0f;
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          scores[b][n][e] = ptx::ex2(fmaf(scores[b][n][e], factor, -step.bases[b][half]));
          sum += scores[b][n][e];
        }
      }
      rows.row_sum[b][half] += sum;
    }
  }
}

// Turns scores into probabilities relative to the new row maximum, adds them to row_sum and rescales `acc`.
template <int kBlocks, int kColumns, int kValueColumns>
__device__ __forceinline__ void online_softmax(float (&scores)[kBlocks][kColumns][4],
                                               float (&acc)[kBlocks][kValueColumns][4], RowStatistics<kBlocks>& rows,
                                               float scale) {
  SoftmaxStep<kBlocks> step = update_maxima<false>(scores, rows, scale);
  // Where no row of the warp has a new maximum every correction is exactly 1.
  if (__any_sync(0xffffffffu, step.changed)) {
    rescale(rows, step);
    rescale(acc, step);
  }
  exponentiate(scores, rows, step, scale);
}

}  // namespace tessera::cuda
