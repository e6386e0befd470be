// What the forward kernel did before two steps of FlashAttention-2, for the rows of ablations/ alone (switches of
// ForwardShape): warps that share their rows and split the keys (kKeyWarps), and accumulators that are normalised at
// every step (kNormalises).
// Source: Dao et al., FlashAttention, Algorithm 1; Dao, FlashAttention-2, sections 3.1 and 3.3.
#pragma once

#include <cstdint>

#include "../tile/row_store.cuh"
#include "../tile/softmax.cuh"
#include "epilogue.cuh"
#include "products.cuh"

namespace tessera::cuda::sm80 {

// Normalised accumulators times the sums of their rows, which undoes the division.
template <int kBlocks, int kColumns>
__device__ __forceinline__ void weigh(float (&acc)[kBlocks][kColumns][4], const RowStatistics<kBlocks>& rows) {
  SoftmaxStep<kBlocks> sums;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    sums.corrections[b][0] = quad_sum(rows.row_sum[b][0]);
    sums.corrections[b][1] = quad_sum(rows.row_sum[b][1]);
  }
  rescale(acc, sums);
}

// Algorithm 1, line 12: acc = (acc l_before e^(m_before - m) + P V) / l. Two multiplications of every accumulator and a
// sum over the row's lanes a step, where one at most is needed.
template <class Element, class Config>
__device__ __forceinline__ void multiply_normalised(typename Fragments<Config>::Accumulators& acc,
                                                    typename Fragments<Config>::Scores& scores,
                                                    RowStatistics<Config::kRowBlocks>& rows, float scale,
                                                    uint32_t value) {
  constexpr int kBlocks = Config::kRowBlocks;
  SoftmaxStep<kBlocks> step = update_maxima<false>(scores, rows, scale);
  rescale(rows, step);  // l_before e^(m_before - m)
  // Always so, which the compiler does not know: its branch keeps ptxas from mixing the multiplications with the
  // exponentials, for which d 128 has no registers.
  if (__any_sync(0xffffffffu, !(rows.row_sum[0][0] < 0.0f))) weigh(acc, rows);
  exponentiate(scores, rows, step, scale);
  multiply_registers<Element, Config::kHeadDim>(acc, scores, value);
  SoftmaxStep<kBlocks> inverse;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = quad_sum(rows.row_sum[b][half]);
      inverse.corrections[b][half] = sum == 0.0f ? 0.0f : ptx::rcp(sum);  // 0: a row without keys so far
    }
  }
  rescale(acc, inverse);
}

// Of a warp's columns of 8, the one that column n of its share is: pairs go round the warps.
template <class Config>
__device__ __forceinline__ int own_column(int n) {
  return (static_cast<int>(threadIdx.x / 32) + n / 2 * Config::kKeyWarps) * 2 + n % 2;
}

// A number a row of every warp to all warps of the block, and what `merge` makes of them. `values`: [warp][row].
template <class Config, class Merge>
__device__ __forceinline__ void exchange_rows(float (&of_rows)[Config::kRowBlocks][2], float* values, Merge merge) {
  float* const own = values + threadIdx.x / 32 * Config::kWarpRows;
#pragma unroll
  for (int b = 0; b < Config::kRowBlocks; ++b) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (threadIdx.x % 4 == 0) own[fragment_row(b, half)] = of_rows[b][half];
    }
  }
  __syncthreads();
#pragma unroll
  for (int b = 0; b < Config::kRowBlocks; ++b) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float merged = values[fragment_row(b, half)];
#pragma unroll
      for (int warp = 1; warp < Config::kKeyWarps; ++warp) {
        merged = merge(merged, values[warp * Config::kWarpRows + fragment_row(b, half)]);
      }
      of_rows[b][half] = merged;
    }
  }
}

// A step of warps that have the same rows and a share of the keys each: they exchange the maxima of the rows, and then
// their products, of which each adds up the columns that it owns. `exchange`: maxima [warp][row], then products
// [warp][element][lane].
template <class Element, class Config>
__device__ __forceinline__ void multiply_shared_rows(typename Fragments<Config>::Accumulators& acc,
                                                     typename Fragments<Config>::Scores& scores,
                                                     RowStatistics<Config::kRowBlocks>& rows, float scale,
                                                     uint32_t value, float* exchange) {
  static_assert(Config::kKeyWarps == Config::kWarps && Config::kHeadDim % (16 * Config::kWarps) == 0);
  constexpr int kBlocks = Config::kRowBlocks, kColumns = Config::kHeadDim / 8, kElements = kBlocks * kColumns * 4;
  float maxima[kBlocks][2];
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    maxima[b][0] = row_maximum(scores, rows, b, 0);
    maxima[b][1] = row_maximum(scores, rows, b, 1);
  }
  exchange_rows<Config>(maxima, exchange, [](float a, float b) { return fmaxf(a, b); });
  SoftmaxStep<kBlocks> step = change_bases<false>(rows, scale, [&](int b, int half) { return maxima[b][half]; });
  rescale(rows, step);
  exponentiate(scores, rows, step, scale);

  float product[kBlocks][kColumns][4];
  clear(product);
  multiply_registers<Element, Config::kHeadDim>(product, scores, value);
  float* const products = exchange + Config::kWarps * Config::kWarpRows + threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    products[(threadIdx.x / 32 * kElements + i) * 32] = product[i / 4 / kColumns][i / 4 % kColumns][i % 4];
  }
  __syncthreads();
  rescale(acc, step);
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int n = 0; n < kColumns / Config::kKeyWarps; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int element = (b * kColumns + own_column<Config>(n)) * 4 + e;
#pragma unroll
        for (int warp = 0; warp < Config::kKeyWarps; ++warp) {
          acc[b][n][e] += products[(warp * kElements + element) * 32];
        }
      }
    }
  }
}

// The sums of the rows over all warps, for the end of the tile: in the first lane of a row, as their share.
template <class Config>
__device__ __forceinline__ void gather_sums(RowStatistics<Config::kRowBlocks>& rows, float* exchange) {
  float sums[Config::kRowBlocks][2];
#pragma unroll
  for (int b = 0; b < Config::kRowBlocks; ++b) {
    sums[b][0] = quad_sum(rows.row_sum[b][0]);
    sums[b][1] = quad_sum(rows.row_sum[b][1]);
  }
  exchange_rows<Config>(sums, exchange, [](float a, float b) { return a + b; });
#pragma unroll
  for (int b = 0; b < Config::kRowBlocks; ++b) {
    rows.row_sum[b][0] = threadIdx.x % 4 == 0 ? sums[b][0] : 0.0f;
    rows.row_sum[b][1] = threadIdx.x % 4 == 0 ? sums[b][1] : 0.0f;
  }
}

// The output of warps that own columns, by the Q tile.
template <class Element, class Config>
__device__ __forceinline__ void store_shared_rows(const ForwardParams& p, const SequenceView& sequence,
                                                  const OutputRows& at, typename Fragments<Config>::Accumulators& acc,
                                                  const float (&factors)[Config::kRowBlocks][2], char* shared) {
#pragma unroll
  for (int b = 0; b < Config::kRowBlocks; ++b) {
#pragma unroll
    for (auto& column : acc[b]) {
#pragma unroll
      for (int e = 0; e < 4; ++e) column[e] = finished(column[e], factors[b][e / 2]);
    }
  }
  const RowTarget target = row_target(p.o, p.o_stride, sequence.q_batch, sequence.q_row + at.first, at.head,
                                      sequence.rows_q - at.first, p.head_dim_v, p.o_is_float);
  __syncthreads();
  store_rows<Element, Config::kHeadDim, Config::kKeyWarps>(target, shared, acc, 0, static_cast<int>(threadIdx.x / 32),
                                                           1.0f);
  __syncthreads();
  copy_rows<Config::kTileM, Config::kHeadDim, Config::kThreads>(target, shared, static_cast<int>(threadIdx.x));
}

}  // namespace tessera::cuda::sm80
