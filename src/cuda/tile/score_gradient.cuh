// Probabilities and score gradients from recomputed products, elementwise:
//   x = the score as in forward;  P = e^min(x - lse, 0);  dX = P * (dP - delta);  dC = dX * d capped / d c
// Scores are transposed: a lane's fragment rows are keys, its columns queries.
// Invariant: what the band hides, and rows whose lse is +inf, have P = 0 and dX = 0.
#pragma once

#include <cmath>
#include <cstdint>

#include "../ptx/math.cuh"
#include "score.cuh"

namespace tessera::cuda {

// lse, to base 2, and -delta of the queries of a tile, in shared memory.
struct QueryStatistics {
  const float *lse, *minus_delta;
};

// 2^min(x - lse, 0), both to base 2: a rounded lse near 1e11 must not make it infinite.
__device__ __forceinline__ float probability(float x_minus_lse) { return ptx::ex2(fminf(x_minus_lse, 0.0f)); }
// The same of a natural x.
__device__ __forceinline__ float probability(float x, float lse_log2) {
  return probability(fmaf(x, static_cast<float>(core::kLog2E), -lse_log2));
}

// Replaces what the band hides by P = 0 and dX = 0. `key`, `query`: the sequence's numbers of the warp's first key and
// of the fragments' first query.
template <int kBlocks, int kColumns>
__device__ __forceinline__ void mask_transposed(float (&probs)[kBlocks][kColumns][4],
                                                float (&grads)[kBlocks][kColumns][4], const core::Band& band,
                                                int64_t key, int64_t query) {
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t my_key = key + fragment_row(b, half);
      const core::Range rows = band.seeing_rows(my_key, my_key + 1);
      const int begin = static_cast<int>(clamp_to(rows.begin - query, 0, kColumns * 8));
      const int end = static_cast<int>(clamp_to(rows.end - query, 0, kColumns * 8));
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          const int column = fragment_column(n, e);
          if (column < begin || column >= end) {
            probs[b][n][e] = grads[b][n][e] = 0.0f;
          }
        }
      }
    }
  }
}

// Products to P and dP to dX, the scores to base 2 being `scale_log2` times the products; it is positive.
template <int kBlocks, int kColumns>
__device__ __forceinline__ void differentiate_plain(float (&scores)[kBlocks][kColumns][4],
                                                    float (&grads)[kBlocks][kColumns][4],
                                                    const QueryStatistics& queries, float scale_log2) {
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
    const float2 lse = *reinterpret_cast<const float2*>(queries.lse + fragment_column(n, 0));
    const float2 minus_delta = *reinterpret_cast<const float2*>(queries.minus_delta + fragment_column(n, 0));
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float probs = probability(fmaf(scores[b][n][e], scale_log2, e % 2 == 0 ? -lse.x : -lse.y));
        scores[b][n][e] = probs;
        grads[b][n][e] = probs * (grads[b][n][e] + (e % 2 == 0 ? minus_delta.x : minus_delta.y));
      }
    }
  }
}

// What the general scores of one head need besides the parameters.
struct HeadScores {
  int64_t bias_row0;  // the bias element of (batch, head, row 0, key 0)
  float slope;
};

TESSERA_HD HeadScores head_scores(const ForwardParams& p, uint32_t batch, int head) {
  return {batch * p.bias_stride[0] + head * p.bias_stride[1],
          p.alibi_slopes != nullptr ? p.alibi_slopes[batch * p.alibi_stride + head] : 0.0f};
}

// Products to P and dP to dC (kCapped) or dX, with softcap, bias, ALiBi and any scale.
template <class Element, bool kCapped, int kBlocks, int kColumns>
__device__ __forceinline__ void differentiate_general(float (&scores)[kBlocks][kColumns][4],
                                                      float (&grads)[kBlocks][kColumns][4],
                                                      const QueryStatistics& queries, const ForwardParams& p,
                                                      const HeadScores& head, const core::Band& band, int64_t key,
                                                      int64_t query) {
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
    const float2 lse = *reinterpret_cast<const float2*>(queries.lse + fragment_column(n, 0));
    const float2 minus_delta = *reinterpret_cast<const float2*>(queries.minus_delta + fragment_column(n, 0));
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const ScoreRow row = score_row(p, band, head.bias_row0, query + fragment_column(n, e));
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        float capped;
        const float x =
            general_score<Element>(p, band, head.slope, row, key + fragment_row(b, e / 2), scores[b][n][e], &capped);
        const float probs = probability(x, e % 2 == 0 ? lse.x : lse.y);
        const float bend = kCapped && p.softcap > 0.0f ? core::softcap_derivative(capped, p.softcap) : 1.0f;
        scores[b][n][e] = probs;
        grads[b][n][e] = probs * (grads[b][n][e] + (e % 2 == 0 ? minus_delta.x : minus_delta.y)) * bend;
      }
    }
  }
}

}  // namespace tessera::cuda
