// End of a query block: sinks, the one division, lse, and the output rows. 16-bit rows pass through the warp's own part
// of the Q tile, so that they leave in 16-byte stores; float32 rows leave as they lie, 32 bytes a quad.
// Invariant: rows that saw no key, and those past a used length, are +0 and -inf, whatever the accumulators hold.
#pragma once

#include <cmath>
#include <cstdint>

#include "../tile/output.cuh"
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
#pragma unroll
  for (int b = 0; b < Config::kRowBlocks; ++b) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const OutputRow row{at.first + fragment_row(b, half), at.split, at.head};
      factors[b][half] = finish_row(p, sequence, row, rows.row_max[b][half], quad_sum(rows.row_sum[b][half]), scale);
    }
  }
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
            finished(acc[b][n][2 * half], factors[b][half]), finished(acc[b][n][2 * half + 1], factors[b][half]));
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
            finished(acc[b][n][2 * half], factors[b][half]), finished(acc[b][n][2 * half + 1], factors[b][half]));
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
