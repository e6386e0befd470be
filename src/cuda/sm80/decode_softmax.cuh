// The online softmax of decode, in base 2, over the scores of 16 keys and blocks of 8 rows in registers. With g = l / 4
// and t = l % 4, lane l holds of block b keys g (elements 0, 1) and g + 8 (2, 3) of rows 8 b + 2 t and the next; its
// accumulators [m][b] have value columns where scores have keys.
// Invariant: accumulators and sums are relative to a row's base, its maximum so far, so the largest element of a row
// counts exactly 1; sums are this lane's share. Where no score of the warp passes its base, lanes exchange a vote only.
// Source: Milakov and Gimelshein, online normaliser.
#pragma once

#include <cfloat>
#include <cstdint>

#include "../ptx/math.cuh"

namespace tessera::cuda::sm80 {

// The largest over the lanes that hold the same rows.
__device__ __forceinline__ float column_max(float value) {
#pragma unroll
  for (int distance = 4; distance < 32; distance *= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  return value;
}
__device__ __forceinline__ float column_sum(float value) {
#pragma unroll
  for (int distance = 4; distance < 32; distance *= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}

template <int kColumns, int kBlocks>
__device__ __forceinline__ void multiply_row(float (&acc)[kColumns][kBlocks][4], int block, int row, float factor) {
#pragma unroll
  for (int m = 0; m < kColumns; ++m) acc[m][block][row] *= factor, acc[m][block][row + 2] *= factor;
}

// Of the lane's rows.
template <int kBlocks>
struct DecodeSoftmax {
  float base[kBlocks][2], sum[kBlocks][2];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int j = 0; j < 2; ++j) base[b][j] = -FLT_MAX, sum[b][j] = 0.0f;  // finite: -inf less it is -inf
    }
  }

  // Scores to probabilities, which are added to the sums. `scale` brings scores to base 2. Products are rounded before
  // the base is subtracted, so the largest element of a row is what its base was made from.
  template <int kColumns>
  __device__ __forceinline__ void apply(float (&scores)[kBlocks][4], float (&acc)[kColumns][kBlocks][4], float scale) {
    bool passed = false;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        scores[b][e] = __fmul_rn(scores[b][e], scale);
        passed |= scores[b][e] > base[b][e % 2];
      }
    }
    if (__any_sync(0xffffffffu, passed)) move(scores, acc);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[b][e] = ptx::ex2(__fsub_rn(scores[b][e], base[b][e % 2]));
      sum[b][0] += scores[b][0] + scores[b][2];
      sum[b][1] += scores[b][1] + scores[b][3];
    }
  }

 private:
  template <int kColumns>
  __device__ __forceinline__ void move(const float (&scores)[kBlocks][4], float (&acc)[kColumns][kBlocks][4]) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float highest = column_max(fmaxf(scores[b][j], scores[b][j + 2]));
        const float before = base[b][j];
        base[b][j] = highest > before ? highest : before;
        const float shrink = ptx::ex2(__fsub_rn(before, base[b][j]));  // 1 where nothing moved
        sum[b][j] *= shrink;
        multiply_row(acc, b, j, shrink);
      }
    }
  }
};

// The scales of a tile of bytes. Those of keys multiply scores. Those of values would multiply probabilities, which f16
// may not hold; so they do over the largest so far, which is what the accumulators are counted in. One scale of all
// values is the largest, and probabilities stay as they are.
template <int kBlocks>
struct ScaleState {
  // `factor`: the inverse of the largest; where scales are one for all, that of the keys times the unit.
  float largest = 0.0f, factor = 0.0f;

  // `values`: of the warp's 16 keys.
  template <int kColumns>
  __device__ __forceinline__ void apply(float (&probs)[kBlocks][4], float (&acc)[kColumns][kBlocks][4],
                                        const float* values) {
    const int key = threadIdx.x % 32 / 4;
    const float scale[2] = {values[key], values[key + 8]};
    const float highest = fmaxf(fabsf(scale[0]), fabsf(scale[1]));
    if (__any_sync(0xffffffffu, highest > largest)) {
      const float before = largest;
      largest = column_max(fmaxf(highest, largest));
      const float shrink = before / largest;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) multiply_row(acc, b, 0, shrink), multiply_row(acc, b, 1, shrink);
      factor = largest < 0x1p-126f ? 0.0f : 1.0f / largest;  // what would overflow is no number's scale
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float weight = scale[half] * factor;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) probs[b][2 * half] *= weight, probs[b][2 * half + 1] *= weight;
    }
  }

  // `row`: of the lane's rows; `scales`: of the warp's 16 keys, null: one for all.
  template <class Cache>
  __device__ __forceinline__ void apply_keys(float (&scores)[kBlocks][4], const float* scales,
                                             const float (&row)[kBlocks][2]) const {
    const int key = threadIdx.x % 32 / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float scale = scales == nullptr ? factor : scales[key + 8 * half] * Cache::kUnit;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
        for (int j = 0; j < 2; ++j) scores[b][2 * half + j] = scores[b][2 * half + j] * row[b][j] * scale;
      }
    }
  }
};

}  // namespace tessera::cuda::sm80
