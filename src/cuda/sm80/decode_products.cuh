// The two products of a warp's 16 keys with blocks of 8 rows: scores^T = K q^T, o^T += V^T P^T. Keys and value columns
// are the 16 rows of an instruction and queries its 8 columns, so that few queries fill it. Fragment shapes are in
// ptx/mma.cuh; queries stay in registers.
// Caches of bytes: ldmatrix gives a lane four bytes where it gives two 16-bit numbers, so the columns of a product lie
// in another order, for keys and queries alike; of values the order of the accumulators' columns differs
// (value_column).
#pragma once

#include <cstdint>

#include "../tile/cache.cuh"
#include "../tile/decode_unit.cuh"
#include "../tile/layout.cuh"
#include "decode_config.hpp"
#include "decode_softmax.cuh"

namespace tessera::cuda::sm80 {

// Query and head of row `index` of the warp's row tile; `valid`: it is one of the sequence's queries. Made where it is
// needed: the registers of the loop are few.
struct DecodeRow {
  int64_t query;
  uint32_t head;
  bool valid;
};
template <class Config>
__device__ __forceinline__ DecodeRow decode_row(const DecodeParams& p, const DecodeView& view, int index) {
  const uint32_t tile = threadIdx.x / 32 & (p.row_tiles - 1), row = view.first_row + tile * Config::kTileRows + index;
  const uint32_t query = p.group.divide(row);
  return {query, view.head_kv * p.group.value + (row - query * p.group.value), query < view.sequence.band.seqlen_q};
}

// The lane's row of element `e` of the scores of block b.
__device__ __forceinline__ int lane_row(int b, int e) { return 8 * b + 2 * (threadIdx.x % 4) + (e & 1); }

// Of block b, row g: 16 columns a step.
template <class Config>
struct QueryFragments {
  uint32_t b[Config::kHeadDim / 16][Config::kRowBlocks][2];
};

// bf16 queries over caches of bytes become f16, each row times a power of two that brings its largest element to
// [2^14, 2^15): exact but for elements below 2^-31 of that. `inverse` takes the power back, of the lane's rows of
// scores.
template <class Config>
__device__ __forceinline__ void queries_to_f16(QueryFragments<Config>& q, float (&inverse)[Config::kRowBlocks][2]) {
#pragma unroll
  for (int b = 0; b < Config::kRowBlocks; ++b) {
    float largest = 0.0f;
#pragma unroll
    for (int step = 0; step < Config::kHeadDim / 16; ++step) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const uint32_t pair = q.b[step][b][part] & 0x7fff7fffu;
        largest = fmaxf(largest, fmaxf(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)));
      }
    }
    // 141 - e, a float's bias added. Infinities stay; a row below 2^-112 gets the largest power.
    const uint32_t bits = __float_as_uint(quad_max(largest)) >> 23, exponent = bits > 15 ? bits : 15;
    const float factor = __uint_as_float((268 - exponent) << 23), back = __uint_as_float((exponent - 14) << 23);
#pragma unroll
    for (int step = 0; step < Config::kHeadDim / 16; ++step) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        uint32_t& pair = q.b[step][b][part];
        pair = ptx::pack_f16(factor * __uint_as_float(pair << 16), factor * __uint_as_float(pair & 0xffff0000u));
      }
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) inverse[b][j] = __shfl_sync(0xffffffffu, back, 4 * lane_row(0, j));
  }
}

// Rows that are not valid, and columns past the head dim, become zero.
template <class Cache, class Config>
__device__ __forceinline__ void load_queries(QueryFragments<Config>& q, const DecodeParams& p, const DecodeView& view) {
  const SequenceView& sequence = view.sequence;
  // Of 16 columns a lane has 2 t, 2 t + 1 and the same of the eight behind; of bytes 4 t to 4 t + 3.
  constexpr int kLaneColumns = Cache::kBytes == 1 ? 4 : 2, kPartColumns = Cache::kBytes == 1 ? 2 : 8;
  const int lane_column = threadIdx.x % 4 * kLaneColumns;
#pragma unroll
  for (int b = 0; b < Config::kRowBlocks; ++b) {
    const DecodeRow at = decode_row<Config>(p, view, 8 * b + threadIdx.x % 32 / 4);
    const uint16_t* row = static_cast<const uint16_t*>(p.f.q) + sequence.q_batch * p.f.q_stride.batch +
                          (sequence.q_row + at.query) * p.f.q_stride.row + at.head * p.f.q_stride.head + lane_column;
    const int columns = at.valid ? p.f.head_dim_qk - lane_column : 0;
#pragma unroll
    for (int step = 0; step < Config::kHeadDim / 16; ++step) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const int column = step * 16 + part * kPartColumns;
        q.b[step][b][part] = column < columns ? *reinterpret_cast<const uint32_t*>(row + column) : 0u;
      }
    }
  }
}

// scores^T = k q^T, of bytes without the scale and the unit. Sums of even and of odd steps where one block alone would
// be a chain of products that wait for one another.
template <class Element, class Cache, class Config>
__device__ __forceinline__ void multiply_keys_queries(float (&scores)[Config::kRowBlocks][4],
                                                      const QueryFragments<Config>& q, uint32_t key) {
  constexpr int kBlocks = Config::kRowBlocks, kSums = kBlocks == 1 ? 2 : 1;
  using Layout = TileLayout<Config::kHeadDim * Cache::kBytes / 2>;
  float sums[kSums][kBlocks][4] = {};
  const auto multiply = [&](const uint32_t(&a)[4], int step) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) Element::mma(sums[step % kSums][b], a, q.b[step][b][0], q.b[step][b][1]);
  };
#pragma unroll
  for (int pair = 0; pair < Config::kHeadDim * Cache::kBytes / 32; ++pair) {
    uint32_t k[4];
    ptx::ldmatrix_x4(k, Layout::chunk_pair(key, pair));
    if constexpr (Cache::kBytes == 2) {
      multiply(k, pair);
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t a[4];
        Cache::template pairs<0, 1>(k[2 * i], a[0], a[2]);
        Cache::template pairs<0, 1>(k[2 * i + 1], a[1], a[3]);
        multiply(a, 2 * pair + i);
      }
    }
  }
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int e = 0; e < 4; ++e) scores[b][e] = kSums == 1 ? sums[0][b][e] : sums[0][b][e] + sums[kSums - 1][b][e];
  }
}

// The value column of elements e, e + 1 of accumulators m.
template <class Cache>
__device__ __forceinline__ int value_column(int m, int e) {
  const int g = threadIdx.x % 32 / 4;
  return m * 16 + (Cache::kBytes == 2 ? g + e / 2 * 8 : 2 * g + e / 2);
}

// acc^T += v^T probs^T, of bytes without the scale and the unit.
template <class Element, class Cache, class Config>
__device__ __forceinline__ void multiply_values_probs(float (&acc)[Config::kHeadDim / 16][Config::kRowBlocks][4],
                                                      const float (&probs)[Config::kRowBlocks][4], uint32_t value) {
  constexpr int kBlocks = Config::kRowBlocks;
  using Layout = TileLayout<Config::kHeadDim * Cache::kBytes / 2>;
  uint32_t p[kBlocks][2];
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    p[b][0] = ptx::transpose(Element::pack(probs[b][0], probs[b][1]));
    p[b][1] = ptx::transpose(Element::pack(probs[b][2], probs[b][3]));
  }
  const auto multiply = [&](int m, const uint32_t(&a)[4]) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) Element::mma(acc[m][b], a, p[b][0], p[b][1]);
  };
#pragma unroll
  for (int pair = 0; pair < Config::kHeadDim * Cache::kBytes / 32; ++pair) {
    uint32_t v[4];
    ptx::ldmatrix_x4_trans(v, Layout::chunk_pair(value, pair));
    if constexpr (Cache::kBytes == 2) {
      multiply(pair, v);
    } else {
      // Of each pair of columns the even one, then the odd one.
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t a[4];
        Cache::template pairs<0, 2>(v[i], a[0], a[1]);
        Cache::template pairs<0, 2>(v[i + 2], a[2], a[3]);
        multiply(2 * pair + i, a);
      }
    }
  }
}

// A warp's state to its part of shared memory, accumulators times `factor`.
template <class Cache, class Config>
__device__ __forceinline__ void keep_state(char* shared,
                                           const float (&acc)[Config::kHeadDim / 16][Config::kRowBlocks][4],
                                           float factor, const DecodeSoftmax<Config::kRowBlocks>& softmax) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int b = 0; b < Config::kRowBlocks; ++b) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int row = warp * Config::kTileRows + lane_row(b, j);
      float* to = reinterpret_cast<float*>(shared) + row * Config::kStateStride;
#pragma unroll
      for (int m = 0; m < Config::kHeadDim / 16; ++m) {
        const float low = factor * acc[m][b][j], high = factor * acc[m][b][j + 2];
        if constexpr (Cache::kBytes == 2) {
          to[value_column<Cache>(m, 0)] = low;
          to[value_column<Cache>(m, 2)] = high;
        } else {
          *reinterpret_cast<float2*>(to + value_column<Cache>(m, 0)) = make_float2(low, high);
        }
      }
      const float sum = column_sum(softmax.sum[b][j]);
      if (lane < 4) {
        reinterpret_cast<float2*>(shared + Config::kStateBytes)[row] = make_float2(softmax.base[b][j], sum);
      }
    }
  }
}

}  // namespace tessera::cuda::sm80
