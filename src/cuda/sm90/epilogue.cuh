// End of a query tile, in two halves: what its rows need beside the accumulators is found while the tensor cores are at
// their last product, and the rows leave when it is done. 16-bit rows pass through 2 KB of shared memory of the
// warp's own (16 rows of a span), so that they leave in 16-byte stores, 64 bytes of a row an instruction; the tiles of
// Q, K and V are free for the next piece of work. float32 rows leave from the registers.
#pragma once

#include <cstdint>

#include "../ptx/copy_async.cuh"
#include "../ptx/stmatrix.cuh"
#include "../tile/element.cuh"
#include "../tile/output.cuh"
#include "control.cuh"

namespace tessera::cuda::sm90 {

// The two rows of a lane (fragment_row) on their way out.
struct FinishedRows {
  float factor[2];  // accumulators times it are o; 0: o is +0, whatever they hold
  char* o[2];       // at the first of this lane's columns: 8 of every 32, or of float32 2 of every 8
  int columns[2];   // of the row to be stored; 0: the row is none of the sequence
};

// Completes the rows of a warp, of which `first` is the first of the tile, and writes lse. Even lanes work at their
// first row and odd ones at their second, so that one instruction serves both.
__device__ __forceinline__ FinishedRows finish_rows(const Params& params, const RowView& view, int first, float scale,
                                                    const RowStatistics<1>& statistics) {
  const ForwardParams& p = params.forward;
  const SequenceView& s = view.sequence;
  const int quad = static_cast<int>(threadIdx.x % 4);
  FinishedRows out;
  OutputRow at[2];
  int rows[2], heads[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = first + fragment_row(0, half);
    const int row = rows[half] = static_cast<int>(params.by_pack.divide(r)), head = heads[half] = r - row * params.pack;
    at[half] = {view.first_row + row, view.split, view.head + head};
    const int64_t offset = row * p.o_stride.row + head * p.o_stride.head;
    out.o[half] = view.o + (p.o_is_float ? 4 * offset + 8 * quad : 2 * offset + 16 * quad);
    out.columns[half] = at[half].row < s.rows_q ? p.head_dim_v : 0;
  }
  const bool second = threadIdx.x % 2 != 0;
  const auto mine = [second](auto a, auto b) { return second ? b : a; };
  const float sum0 = statistics.row_sum[0][0], sum1 = statistics.row_sum[0][1];
  float sum = mine(sum0, sum1) + __shfl_xor_sync(0xffffffffu, mine(sum1, sum0), 1);
  sum += __shfl_xor_sync(0xffffffffu, sum, 2);
  const OutputRow row{mine(at[0].row, at[1].row), view.split, mine(at[0].head, at[1].head)};
  const RowEnd end = end_row(p, s, row, mine(statistics.row_max[0][0], statistics.row_max[0][1]), sum, scale);
  const float other = __shfl_xor_sync(0xffffffffu, end.factor, 1);
  out.factor[0] = mine(end.factor, other);
  out.factor[1] = mine(other, end.factor);
  // By lane 0 of the first row and lane 1 of the second.
  if (view.lse != nullptr && quad < 2 && row.row < s.rows_q) {
    const int64_t lse_head = p.cu_seqlens_q != nullptr ? p.total_q : p.seqlen_q;
    view.lse[mine(heads[0], heads[1]) * lse_head + mine(rows[0], rows[1])] =
        row.row >= s.band.seqlen_q ? -INFINITY : core::lse_from_base2(end.base, end.sum);
  }
  return out;
}

// Where a 16-byte chunk lies in a warp's 16 rows of a span of o: chunk c lies at (place of chunk 0) ^ 16 c. stmatrix
// writes one chunk of eight rows and a load reads four of two at a time: either way all 32 banks.
template <int kSpan>
__device__ __forceinline__ int output_offset(int row, int chunk) {
  const int swizzle = row / 2 % 4 + (kSpan == 128 ? row % 2 * 4 : 0);
  return row * kSpan + (chunk ^ swizzle) * 16;
}

// 16-bit rows, by way of `tile`, 16 x kSpan bytes of the warp's own, a span at a time. Four lanes store a row.
template <class Element, int kSpan, int kColumns>
__device__ __forceinline__ void store_half_rows(const FinishedRows& rows, const float (&acc)[kColumns][4], char* tile) {
  constexpr int kChunks = kSpan / 16;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const uint32_t to = ptx::shared_address(tile) + output_offset<kSpan>(lane % 16, lane / 16);
  const int from = output_offset<kSpan>(lane / 4, lane % 4);
  const int columns[2] = {rows.columns[0] - lane % 4 * 8, rows.columns[1] - lane % 4 * 8};
#pragma unroll
  for (int span = 0; span < kColumns; span += kChunks) {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; chunk += 2) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&pairs)[4] = acc[span + chunk + i / 2];
        const float factor = rows.factor[i % 2];
        words[i] = Element::pack(pairs[2 * (i % 2)] * factor, pairs[2 * (i % 2) + 1] * factor);
      }
      ptx::stmatrix_x4(to ^ chunk * 16, words);
    }
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int chunk = 0; chunk < kChunks; chunk += 4) {
        const char* words = tile + (from ^ chunk * 16) + half * 8 * kSpan;
        if ((span + chunk) * 8 < columns[half]) {
          *reinterpret_cast<uint4*>(rows.o[half] + (span + chunk) * 16) = *reinterpret_cast<const uint4*>(words);
        }
      }
    }
    __syncwarp();  // read before the next span comes
  }
}

template <int kColumns>
__device__ __forceinline__ void store_float_rows(const FinishedRows& rows, const float (&acc)[kColumns][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      if (n * 8 < rows.columns[half]) {
        *reinterpret_cast<float2*>(rows.o[half] + 32 * n) =
            make_float2(acc[n][2 * half] * rows.factor[half], acc[n][2 * half + 1] * rows.factor[half]);
      }
    }
  }
}

// The rows' way out. What is rare, and what kind of rows they are, is asked once a tile: nothing else runs meanwhile.
template <class Element, int kSpan, int kColumns>
__device__ __forceinline__ void store_finished_rows(const ForwardParams& p, const FinishedRows& rows,
                                                    float (&acc)[kColumns][4], char* tile) {
  if (__any_sync(0xffffffffu, rows.factor[0] == 0.0f || rows.factor[1] == 0.0f)) [[unlikely]] {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) acc[n][e] = rows.factor[e / 2] == 0.0f ? 0.0f : acc[n][e];
    }
  }
  if (!p.o_is_float) [[likely]] {
    store_half_rows<Element, kSpan>(rows, acc, tile);
  } else {
    store_float_rows(rows, acc);
  }
  __syncwarp();  // so that the compiler takes the next tile's numbers for the same in all lanes
}

}  // namespace tessera::cuda::sm90
