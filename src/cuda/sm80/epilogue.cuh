// End of a query block: sinks, the one division, lse, and the output rows. 16-bit rows pass through the warp's own part
// of the Q tile, so that they leave in 16-byte stores; float32 rows leave as they lie, 32 bytes a quad.
// Invariant: rows that saw no key, and those past a used length, are +0 and -inf, whatever the accumulators hold.
#pragma once

#include <cmath>
#include <cstdint>

#include "../tile/scheduler.cuh"
#include "../tile/score.cuh"
#include "../tile/softmax.cuh"
#include "products.cuh"

namespace tessera::cuda::sm80 {

// Where a warp writes.
struct OutputRows {
  int64_t first;  // its first row, counted from the sequence's
  int64_t split;  // of partial states; else 0
  int head;
};

// Completes the statistics: acc times `factors` is o, 0 meaning +0. Writes lse.
template <class Config, ScoreKind kKind>
__device__ __forceinline__ void finish_rows(const ForwardParams& p, const SequenceView& sequence, const OutputRows& at,
                                            const RowStatistics<Config::kRowBlocks>& rows,
                                            float (&factors)[Config::kRowBlocks][2]) {
  const float scale = kKind == ScoreKind::plain ? p.scale_log2 : 1.0f;
  const int64_t lse_row = p.cu_seqlens_q != nullptr ? at.head * p.total_q + sequence.q_row
                                                    : (sequence.q_batch * p.heads_q + at.head) * p.seqlen_q;
#pragma unroll
  for (int b = 0; b < Config::kRowBlocks; ++b) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = at.first + fragment_row(b, half);
      float sum = quad_sum(rows.row_sum[b][half]);
      // The largest element of a row counts 1, so only a row without keys sums to 0.
      const bool empty = row >= sequence.band.seqlen_q || sum == 0.0f;
      float base = empty ? -INFINITY : RowStatistics<Config::kRowBlocks>::base(rows.row_max[b][half], scale);
      float factor = 1.0f;
      const float sink = p.sinks != nullptr ? p.sinks[at.head] * static_cast<float>(core::kLog2E) : -INFINITY;
      if (sink != -INFINITY) {
        const float merged = fmaxf(base, sink);
        factor = ptx::ex2(base - merged);
        sum = sum * factor + ptx::ex2(sink - merged);
        base = merged;
      }
      factors[b][half] = empty ? 0.0f : factor / sum;
      if (p.lse != nullptr && threadIdx.x % 4 == 0 && row < sequence.rows_q) {
        p.lse[at.split * p.lse_split_stride + lse_row + row] =
            row >= sequence.band.seqlen_q ? -INFINITY : core::lse_from_base2(base, sum);
      }
    }
  }
}

template <class Config>
__device__ __forceinline__ float finished(const typename Fragments<Config>::Accumulators& acc, int b, int n, int e,
                                          const float (&factors)[Config::kRowBlocks][2]) {
  const float factor = factors[b][e / 2];
  return factor == 0.0f ? 0.0f : acc[b][n][e] * factor;
}

template <class Config>
__device__ __forceinline__ void store_float_rows(const ForwardParams& p, const SequenceView& sequence,
                                                 const OutputRows& at,
                                                 const typename Fragments<Config>::Accumulators& acc,
                                                 const float (&factors)[Config::kRowBlocks][2]) {
  float* o = static_cast<float*>(p.o) + at.split * p.o_split_stride + sequence.q_batch * p.o_stride.batch +
             at.head * p.o_stride.head;
#pragma unroll
  for (int b = 0; b < Config::kRowBlocks; ++b) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = at.first + fragment_row(b, half);
      if (row >= sequence.rows_q) continue;
      float* o_row = o + (sequence.q_row + row) * p.o_stride.row;
#pragma unroll
      for (int n = 0; n < Config::kHeadDim / 8; ++n) {
        if (n * 8 >= p.head_dim_v) continue;
        *reinterpret_cast<float2*>(o_row + fragment_column(n, 0)) = make_float2(
            finished<Config>(acc, b, n, 2 * half, factors), finished<Config>(acc, b, n, 2 * half + 1, factors));
      }
    }
  }
}

// `shared`: the Q tile, which this warp alone reads in its own rows.
template <class Element, class Config>
__device__ __forceinline__ void store_element_rows(const ForwardParams& p, const SequenceView& sequence,
                                                   const OutputRows& at,
                                                   const typename Fragments<Config>::Accumulators& acc,
                                                   const float (&factors)[Config::kRowBlocks][2], char* shared) {
  using Layout = TileLayout<Config::kHeadDim>;
  const int lane = threadIdx.x % 32;
  char* tile = shared + threadIdx.x / 32 * Config::kWarpRows * Layout::kRowBytes;
  __syncwarp();
#pragma unroll
  for (int b = 0; b < Config::kRowBlocks; ++b) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int n = 0; n < Config::kHeadDim / 8; ++n) {
        *reinterpret_cast<uint32_t*>(tile + Layout::offset(fragment_row(b, half), n) + lane % 4 * 4) = Element::pack(
            finished<Config>(acc, b, n, 2 * half, factors), finished<Config>(acc, b, n, 2 * half + 1, factors));
      }
    }
  }
  __syncwarp();
  char* o = static_cast<char*>(p.o) + 2 * (sequence.q_batch * p.o_stride.batch + at.head * p.o_stride.head);
  constexpr int kLanes = Layout::kSwizzleChunks;
#pragma unroll 4
  for (int r = lane / kLanes; r < Config::kWarpRows; r += 32 / kLanes) {
    const int64_t row = at.first + r;
    if (row >= sequence.rows_q) break;
    char* o_row = o + 2 * (sequence.q_row + row) * p.o_stride.row;
#pragma unroll
    for (int chunk = lane % kLanes; chunk < Config::kHeadDim / 8; chunk += kLanes) {
      if (chunk * 8 >= p.head_dim_v) break;
      *reinterpret_cast<uint4*>(o_row + chunk * 16) = *reinterpret_cast<const uint4*>(tile + Layout::offset(r, chunk));
    }
  }
}

}  // namespace tessera::cuda::sm80
