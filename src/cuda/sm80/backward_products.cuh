// The five products of a step of the backward pass on mma.sync. A warp's scores are transposed, [key block][8
// queries][4]: their rows are keys, so that the probabilities of two neighbouring query blocks are, as they lie, the A
// operand of dv += P^T dO and dk += dS^T Q. All five read the same row-major tiles:
//   S^T = K Q^T       A K rows,         B Q rows
//   dP^T = V dO^T     A V rows,         B dO rows
//   dv += P^T dO      A registers or P^T, B dO transposed on load
//   dk += dS^T Q      A registers or dS^T, B Q transposed on load
//   dq = dS K         A dS^T transposed on load, B K transposed on load
#pragma once

#include <cstdint>

#include "backward_config.hpp"
#include "products.cuh"

namespace tessera::cuda::sm80 {

// Of a tile's pairs of 8-column blocks, column warp c of C takes pairs c, c + C, ...: with that order one XOR makes the
// addresses of a warp from those of warp 0.
__device__ __forceinline__ uint32_t column_warp_address(uint32_t lane_address, int column_warp) {
  return lane_address ^ (column_warp << 5);
}
template <int kWarps>
__device__ __forceinline__ int pair_column(int column_warp, int pair) {
  return (column_warp + pair * kWarps) * 16;
}

// acc += scores^T, in shared memory as [keys][kTileM], times the query rows of a tile, by the column warps that made
// them: one loop over all steps gives the same sums in another order of instructions, and this one is what was timed.
template <class Element, int kDim, int kTileM, int kWarps, int kBlocks, int kColumns>
__device__ __forceinline__ void multiply_shared(float (&acc)[kBlocks][kColumns][4], uint32_t scores, uint32_t rows) {
  using Scores = TileLayout<kTileM>;
  static_assert(kTileM <= 64);  // one XOR reaches all columns
  constexpr int kQueries = kTileM / kWarps;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) {
    const uint32_t columns = scores ^ (warp * (kQueries / 16) << 5);
    const uint32_t piece = rows + warp * kQueries * TileLayout<kDim>::kRowBytes;
#pragma unroll
    for (int step = 0; step < kQueries / 16; ++step) {
      uint32_t left[kBlocks][4];
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        ptx::ldmatrix_x4(left[b], Scores::chunk_pair(columns, step) + b * 16 * Scores::kRowBytes);
      }
      multiply_step<Element, kDim, kWarps>(acc, left, piece, step);
    }
  }
}

// acc = rows of scores, which lie transposed as [kTileN keys][kTileM], times the key rows of a tile. Blocks of 16 rows
// from number `first_block` on.
template <class Element, int kDim, int kTileM, int kTileN, int kWarps, int kBlocks, int kColumns>
__device__ __forceinline__ void multiply_transposed(float (&acc)[kBlocks][kColumns][4], uint32_t scores,
                                                    int first_block, uint32_t keys) {
  using Scores = TileLayout<kTileM>;
  clear(acc);
  uint32_t columns[kBlocks];
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) columns[b] = Scores::chunk_pair(scores, first_block + b);
#pragma unroll
  for (int step = 0; step < kTileN / 16; ++step) {
    uint32_t left[kBlocks][4];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      ptx::ldmatrix_x4_trans(left[b], columns[b] + step * 16 * Scores::kRowBytes);
    }
    multiply_step<Element, kDim, kWarps>(acc, left, keys, step);
  }
}

// Scores^T to shared memory as [keys][kTileM]: the warp's keys from row `key` on, queries from column `query` on.
template <class Element, int kTileM, int kBlocks, int kColumns>
__device__ __forceinline__ void store_scores(char* tile, const float (&scores)[kBlocks][kColumns][4], int key,
                                             int query) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = key + b * 16 + half * 8 + lane / 4;
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        *reinterpret_cast<uint32_t*>(tile + TileLayout<kTileM>::offset(row, query / 8 + n) + lane % 4 * 4) =
            Element::pack(scores[b][n][2 * half], scores[b][n][2 * half + 1]);
      }
    }
  }
}

// The addresses of one lane in a row-major tile: as the A operand, as B whose rows are columns of the product, and as B
// transposed on load. Scores^T loaded transposed as A take the addresses of b.
template <int kDim>
struct LaneOffsets {
  uint32_t a, b, b_transposed;
  __device__ __forceinline__ LaneOffsets() {
    using Layout = TileLayout<kDim>;
    const int lane = threadIdx.x % 32;
    a = b_transposed = Layout::lane_offset(lane % 16, lane / 16);
    b = Layout::lane_offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
  }
};

}  // namespace tessera::cuda::sm80
