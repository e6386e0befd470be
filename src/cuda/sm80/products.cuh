// The two products of a tile on mma.sync. Fragment shapes are in ptx/mma.cuh; a warp's scores are [row block][8
// keys][4], its accumulators [row block][8 value columns][4].
#pragma once

#include <cstdint>

#include "../tile/element.cuh"
#include "../tile/layout.cuh"
#include "config.hpp"

namespace tessera::cuda::sm80 {

template <class Config>
struct Fragments {
  using Scores = float[Config::kRowBlocks][Config::kTileN / 8][4];
  using Accumulators = float[Config::kRowBlocks][Config::kHeadDim / 8][4];
};

// Addresses of one lane: queries as the A operand, keys and values as B operands (values transposed on load).
template <class Config>
struct LaneAddresses {
  using Layout = TileLayout<Config::kHeadDim>;
  uint32_t query, key, value;  // key and value relative to their tile

  __device__ __forceinline__ explicit LaneAddresses(uint32_t shared) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    query = shared + Layout::lane_offset(warp * Config::kWarpRows + lane % 16, lane / 16);
    key = Layout::lane_offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    value = Layout::lane_offset(lane % 16, lane / 16);
  }
};

// scores = q k^T over the head dim, 16 columns a step.
template <class Element, class Config>
__device__ __forceinline__ void multiply_query_key(typename Fragments<Config>::Scores& scores, uint32_t query,
                                                   uint32_t key) {
  using Layout = TileLayout<Config::kHeadDim>;
#pragma unroll
  for (int b = 0; b < Config::kRowBlocks; ++b) {
#pragma unroll
    for (int n = 0; n < Config::kTileN / 8; ++n) {
      scores[b][n][0] = scores[b][n][1] = scores[b][n][2] = scores[b][n][3] = 0.0f;
    }
  }
#pragma unroll
  for (int step = 0; step < Config::kHeadDim / 16; ++step) {
    uint32_t a[Config::kRowBlocks][4];
#pragma unroll
    for (int b = 0; b < Config::kRowBlocks; ++b) {
      ptx::ldmatrix_x4(a[b], Layout::chunk_pair(query, step) + b * 16 * Layout::kRowBytes);
    }
    const uint32_t key_step = Layout::chunk_pair(key, step);
#pragma unroll
    for (int pair = 0; pair < Config::kTileN / 16; ++pair) {
      uint32_t k[4];
      ptx::ldmatrix_x4(k, key_step + pair * 16 * Layout::kRowBytes);
#pragma unroll
      for (int b = 0; b < Config::kRowBlocks; ++b) {
        Element::mma(scores[b][2 * pair], a[b], k[0], k[1]);
        Element::mma(scores[b][2 * pair + 1], a[b], k[2], k[3]);
      }
    }
  }
}

// acc += probs v, 16 keys a step. The probabilities of two neighbouring key blocks are the A operand of a step as they
// lie.
template <class Element, class Config>
__device__ __forceinline__ void multiply_probs_value(typename Fragments<Config>::Accumulators& acc,
                                                     const typename Fragments<Config>::Scores& probs, uint32_t value) {
  using Layout = TileLayout<Config::kHeadDim>;
#pragma unroll
  for (int step = 0; step < Config::kTileN / 16; ++step) {
    uint32_t a[Config::kRowBlocks][4];
#pragma unroll
    for (int b = 0; b < Config::kRowBlocks; ++b) {
      a[b][0] = Element::pack(probs[b][2 * step][0], probs[b][2 * step][1]);
      a[b][1] = Element::pack(probs[b][2 * step][2], probs[b][2 * step][3]);
      a[b][2] = Element::pack(probs[b][2 * step + 1][0], probs[b][2 * step + 1][1]);
      a[b][3] = Element::pack(probs[b][2 * step + 1][2], probs[b][2 * step + 1][3]);
    }
#pragma unroll
    for (int pair = 0; pair < Config::kHeadDim / 16; ++pair) {
      uint32_t v[4];
      ptx::ldmatrix_x4_trans(v, Layout::chunk_pair(value, pair) + step * 16 * Layout::kRowBytes);
#pragma unroll
      for (int b = 0; b < Config::kRowBlocks; ++b) {
        Element::mma(acc[b][2 * pair], a[b], v[0], v[1]);
        Element::mma(acc[b][2 * pair + 1], a[b], v[2], v[3]);
      }
    }
  }
}

}  // namespace tessera::cuda::sm80
