// Rows of accumulators to global memory. 16-bit rows pass through a tile in shared memory, so that they leave in
// 16-byte stores; float32 rows leave as they lie, 32 bytes a quad.
#pragma once

#include <cstdint>

#include "element.cuh"
#include "layout.cuh"
#include "score.cuh"

namespace tessera::cuda {

// Rows of one head of an output: row r is at rows + r * stride bytes, for r in [0, count); chunks of 8 columns.
struct RowTarget {
  char* rows;
  int64_t stride, count;
  int chunks;
  bool is_float;

  // The rows from `first` on.
  TESSERA_HD RowTarget from(int first) const {
    return {rows + first * stride, stride, count - first, chunks, is_float};
  }
};

TESSERA_HD RowTarget row_target(void* base, const Strides& strides, int64_t batch, int64_t first_row, int64_t head,
                                int64_t count, int head_dim, bool is_float) {
  const int bytes = is_float ? 4 : 2;
  return {static_cast<char*>(base) + bytes * (batch * strides.batch + first_row * strides.row + head * strides.head),
          bytes * strides.row, count, head_dim / 8, is_float};
}

// A warp's accumulators times `factor`: blocks of 16 rows from `row` on; of the pairs of 8-column blocks every
// kWarps-th from `column_warp` on. float32 rows are written; 16-bit rows go to `tile`, [rows][kDim], for copy_rows().
template <class Element, int kDim, int kWarps, int kBlocks, int kColumns>
__device__ __forceinline__ void store_rows(const RowTarget& target, char* tile,
                                           const float (&acc)[kBlocks][kColumns][4], int row, int column_warp,
                                           float factor) {
  const int lane = threadIdx.x % 32;
  // + 0: a sum of +0 stays +0 under a negative factor.
  const auto scaled = [factor](float sum) { return fmaf(sum, factor, 0.0f); };
  if (!target.is_float) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
          const int chunk = (column_warp + n / 2 * kWarps) * 2 + n % 2;
          *reinterpret_cast<uint32_t*>(tile + TileLayout<kDim>::offset(row + fragment_row(b, half), chunk) +
                                       lane % 4 * 4) =
              Element::pack(scaled(acc[b][n][2 * half]), scaled(acc[b][n][2 * half + 1]));
        }
      }
    }
    return;
  }
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int my_row = row + fragment_row(b, half);
      if (my_row >= target.count) continue;
      char* columns = target.rows + my_row * target.stride + lane % 4 * 8;
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        const int chunk = (column_warp + n / 2 * kWarps) * 2 + n % 2;
        if (chunk < target.chunks) {
          *reinterpret_cast<float2*>(columns + chunk * 32) =
              make_float2(scaled(acc[b][n][2 * half]), scaled(acc[b][n][2 * half + 1]));
        }
      }
    }
  }
}

// The same of transposed fragments, 16 columns x 8 rows: blocks of 8 rows from `row` on, of 16 columns from `column`
// on.
template <class Element, int kDim, int kBlocks, int kColumnBlocks>
__device__ __forceinline__ void store_transposed_rows(const RowTarget& target, char* tile,
                                                      const float (&acc)[kBlocks][kColumnBlocks][4], int row,
                                                      int column, float factor) {
  const auto for_each = [&](auto&& store) __attribute__((always_inline)) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int c = 0; c < kColumnBlocks; ++c) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          store(row + b * 8 + fragment_column(0, e), column + c * 16 + fragment_row(0, e / 2),
                fmaf(acc[b][c][e], factor, 0.0f));
        }
      }
    }
  };
  if (!target.is_float) {
    for_each([&](int my_row, int my_column, float value) {
      *reinterpret_cast<uint16_t*>(tile + TileLayout<kDim>::offset(my_row, my_column / 8) + my_column % 8 * 2) =
          static_cast<uint16_t>(Element::pack(value, value));
    });
  } else {
    for_each([&](int my_row, int my_column, float value) {
      if (my_row < target.count && my_column < target.chunks * 8)
        *reinterpret_cast<float*>(target.rows + my_row * target.stride + my_column * 4) = value;
    });
  }
}

// The 16-bit rows of a tile of kRows to global memory, by kThreads threads, of which this is number `thread`. A barrier
// stands before.
template <int kRows, int kDim, int kThreads>
__device__ __forceinline__ void copy_rows(const RowTarget& target, const char* tile, int thread) {
  if (target.is_float) return;
  using Copy = TileCopy<kRows, kDim, kThreads>;
#pragma unroll
  for (int pass = 0; pass < Copy::kPasses; ++pass) {
    const int row = thread / Copy::kLanes + pass * Copy::kRowsPerPass;
    if (row >= target.count) return;
#pragma unroll
    for (int i = 0; i < Copy::kChunks; ++i) {
      const int chunk = thread % Copy::kLanes + i * Copy::kLanes;
      if (chunk >= target.chunks) continue;
      *reinterpret_cast<uint4*>(target.rows + row * target.stride + chunk * 16) =
          *reinterpret_cast<const uint4*>(tile + TileLayout<kDim>::offset(row, chunk));
    }
  }
}

}  // namespace tessera::cuda
