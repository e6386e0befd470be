// Products of tiles on mma.sync, for both passes. Fragment shapes are in ptx/mma.cuh; a warp's scores are [row block][8
// keys][4], its accumulators [row block][8 value columns][4].
#pragma once

#include <cstdint>

#include "../tile/element.cuh"
#include "../tile/layout.cuh"
#include "config.hpp"

namespace tessera::cuda::sm80 {

template <class Config>
struct Fragments {
  using Scores = float[Config::kRowBlocks][Config::kWarpKeys / 8][4];
  using Accumulators = float[Config::kRowBlocks][Config::kHeadDim / 8 / Config::kKeyWarps][4];
};

// Addresses of one lane: queries as the A operand, keys and values as B operands (values transposed on load).
template <class Config>
struct LaneAddresses {
  using Layout = TileLayout<Config::kHeadDim>;
  uint32_t query, key, value;  // key and value relative to their tile

  // Of a warp whose rows and keys begin there in their tiles.
  __device__ __forceinline__ LaneAddresses(uint32_t shared, uint32_t first_row, uint32_t first_key) {
    const int lane = threadIdx.x % 32;
    query = shared + Layout::lane_offset(first_row + lane % 16, lane / 16);
    key = Layout::lane_offset(first_key + lane % 8 + lane / 16 * 8, lane / 8 % 2);
    value = Layout::lane_offset(first_key + lane % 16, lane / 16);
  }
};

template <int kBlocks, int kColumns>
__device__ __forceinline__ void clear(float (&acc)[kBlocks][kColumns][4]) {
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) acc[b][n][0] = acc[b][n][1] = acc[b][n][2] = acc[b][n][3] = 0.0f;
  }
}

// scores = rows of tile `a` times rows of tile `b`, over the head dim: [16 * kBlocks][8 * kColumns].
template <class Element, int kDim, int kBlocks, int kColumns>
__device__ __forceinline__ void multiply_rows(float (&scores)[kBlocks][kColumns][4], uint32_t a, uint32_t b) {
  using Layout = TileLayout<kDim>;
  clear(scores);
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    uint32_t left[kBlocks][4];
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      ptx::ldmatrix_x4(left[block], Layout::chunk_pair(a, step) + block * 16 * Layout::kRowBytes);
    }
    const uint32_t b_step = Layout::chunk_pair(b, step);
#pragma unroll
    for (int pair = 0; pair < kColumns / 2; ++pair) {
      uint32_t right[4];
      ptx::ldmatrix_x4(right, b_step + pair * 16 * Layout::kRowBytes);
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        Element::mma(scores[block][2 * pair], left[block], right[0], right[1]);
        Element::mma(scores[block][2 * pair + 1], left[block], right[2], right[3]);
      }
    }
  }
}

// acc += left times rows 16 * step on of a tile, every kWarps-th pair of its 8-column blocks.
template <class Element, int kDim, int kWarps, int kBlocks, int kColumns>
__device__ __forceinline__ void multiply_step(float (&acc)[kBlocks][kColumns][4], const uint32_t (&left)[kBlocks][4],
                                              uint32_t rows, int step) {
#pragma unroll
  for (int pair = 0; pair < kColumns / 2; ++pair) {
    uint32_t right[4];
    ptx::ldmatrix_x4_trans(right,
                           TileLayout<kDim>::chunk_pair(rows, pair * kWarps) + step * 16 * TileLayout<kDim>::kRowBytes);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      Element::mma(acc[block][2 * pair], left[block], right[0], right[1]);
      Element::mma(acc[block][2 * pair + 1], left[block], right[2], right[3]);
    }
  }
}

// acc += scores times the rows of a tile. The scores of two neighbouring column blocks are, as they lie, the A operand
// of 16 rows.
template <class Element, int kDim, int kBlocks, int kScoreColumns, int kColumns>
__device__ __forceinline__ void multiply_registers(float (&acc)[kBlocks][kColumns][4],
                                                   const float (&scores)[kBlocks][kScoreColumns][4], uint32_t rows) {
#pragma unroll
  for (int step = 0; step < kScoreColumns / 2; ++step) {
    uint32_t left[kBlocks][4];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      left[b][0] = Element::pack(scores[b][2 * step][0], scores[b][2 * step][1]);
      left[b][1] = Element::pack(scores[b][2 * step][2], scores[b][2 * step][3]);
      left[b][2] = Element::pack(scores[b][2 * step + 1][0], scores[b][2 * step + 1][1]);
      left[b][3] = Element::pack(scores[b][2 * step + 1][2], scores[b][2 * step + 1][3]);
    }
    multiply_step<Element, kDim, 1>(acc, left, rows, step);
  }
}

}  // namespace tessera::cuda::sm80
