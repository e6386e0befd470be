// The two products of 16 rows with a warp's 16 keys. Fragment shapes are in ptx/mma.cuh; queries stay in registers.
// Caches of bytes: ldmatrix gives a lane four bytes where it gives two 16-bit numbers, so the columns of a product lie
// in another order, for keys and queries alike; of values the order of the accumulators' columns differs
// (value_column).
#pragma once

#include <cstdint>

#include "../tile/cache.cuh"
#include "../tile/decode_unit.cuh"
#include "../tile/layout.cuh"
#include "../tile/score.cuh"
#include "../tile/softmax.cuh"
#include "decode_config.hpp"

namespace tessera::cuda::sm80 {

// Query and head of the two rows of a lane in its warp's row tile, row l / 4 and the eighth behind it. Made where they
// are needed: the registers of the loop are few.
struct DecodeRows {
  LaneRows<1> query;
  uint32_t head[2];
  bool valid[2];  // the row is one of the sequence's queries

  __device__ __forceinline__ DecodeRows(const DecodeParams& p, const DecodeView& view) {
    const uint32_t first = view.first_row + threadIdx.x / 32 % p.row_tiles * 16;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t row = first + fragment_row(0, half), query_row = p.group.divide(row);
      query.row[0][half] = query_row;
      head[half] = view.head_kv * p.group.value + (row - query_row * p.group.value);
      valid[half] = query_row < view.sequence.band.seqlen_q;
    }
  }
};

template <int kHeadDim>
struct QueryFragments {
  uint32_t a[kHeadDim / 16][4];
};

// bf16 queries over caches of bytes become f16, each row times a power of two that brings its largest element to
// [2^14, 2^15): exact but for elements below 2^-31 of that. `inverse` takes the power back.
template <int kHeadDim>
__device__ __forceinline__ void queries_to_f16(QueryFragments<kHeadDim>& q, float (&inverse)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float largest = 0.0f;
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const uint32_t pair = q.a[step][half + 2 * part] & 0x7fff7fffu;
        largest = fmaxf(largest, fmaxf(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)));
      }
    }
    // 141 - e, a float's bias added. Infinities stay; a row below 2^-112 gets the largest power.
    const uint32_t bits = __float_as_uint(quad_max(largest)) >> 23, exponent = bits > 15 ? bits : 15;
    const float factor = __uint_as_float((268 - exponent) << 23);
    inverse[half] = __uint_as_float((exponent - 14) << 23);
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        uint32_t& pair = q.a[step][half + 2 * part];
        pair = ptx::pack_f16(factor * __uint_as_float(pair << 16), factor * __uint_as_float(pair & 0xffff0000u));
      }
    }
  }
}

// Rows that are not valid, and columns past the head dim, become zero.
template <class Cache, int kHeadDim>
__device__ __forceinline__ void load_queries(QueryFragments<kHeadDim>& q, const DecodeParams& p, const DecodeView& view,
                                             const DecodeRows& rows) {
  const SequenceView& sequence = view.sequence;
  // Of 16 columns a lane has 2 t, 2 t + 1 and the same of the eight behind; of bytes 4 t to 4 t + 3.
  constexpr int kLaneColumns = Cache::kBytes == 1 ? 4 : 2, kPartColumns = Cache::kBytes == 1 ? 2 : 8;
  const int lane_column = threadIdx.x % 4 * kLaneColumns;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint16_t* row = static_cast<const uint16_t*>(p.f.q) + sequence.q_batch * p.f.q_stride.batch +
                          (sequence.q_row + rows.query.row[0][half]) * p.f.q_stride.row +
                          rows.head[half] * p.f.q_stride.head + lane_column;
    const int columns = rows.valid[half] ? p.f.head_dim_qk - lane_column : 0;
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const int column = step * 16 + part * kPartColumns;
        q.a[step][half + 2 * part] = column < columns ? *reinterpret_cast<const uint32_t*>(row + column) : 0u;
      }
    }
  }
}

// scores = q k^T, of bytes without the scale and the unit.
template <class Element, class Cache, int kHeadDim>
__device__ __forceinline__ void multiply_query_keys(float (&scores)[1][2][4], const QueryFragments<kHeadDim>& q,
                                                    uint32_t key) {
  using Layout = TileLayout<kHeadDim * Cache::kBytes / 2>;
#pragma unroll
  for (int e = 0; e < 4; ++e) scores[0][0][e] = scores[0][1][e] = 0.0f;
#pragma unroll
  for (int pair = 0; pair < kHeadDim * Cache::kBytes / 32; ++pair) {
    uint32_t k[4];
    ptx::ldmatrix_x4(k, Layout::chunk_pair(key, pair));
    if constexpr (Cache::kBytes == 2) {
      Element::mma(scores[0][0], q.a[pair], k[0], k[1]);
      Element::mma(scores[0][1], q.a[pair], k[2], k[3]);
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const auto& a = q.a[2 * pair + i];
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          uint32_t low, high;
          Cache::template pairs<0, 1>(k[2 * n + i], low, high);
          Element::mma(scores[0][n], a, low, high);
        }
      }
    }
  }
}

// The value column of elements e, e + 2 of accumulators n.
template <class Cache>
__device__ __forceinline__ int value_column(int n, int e) {
  if constexpr (Cache::kBytes == 2) return fragment_column(n, e);
  return n / 2 * 16 + threadIdx.x % 4 * 4 + 2 * (e & 1) + n % 2;
}

// acc += probs v, of bytes without the scale and the unit.
template <class Element, class Cache, int kHeadDim>
__device__ __forceinline__ void multiply_probs_values(float (&acc)[1][kHeadDim / 8][4], const float (&probs)[1][2][4],
                                                      uint32_t value) {
  using Layout = TileLayout<kHeadDim * Cache::kBytes / 2>;
  const uint32_t a[4] = {Element::pack(probs[0][0][0], probs[0][0][1]), Element::pack(probs[0][0][2], probs[0][0][3]),
                         Element::pack(probs[0][1][0], probs[0][1][1]), Element::pack(probs[0][1][2], probs[0][1][3])};
#pragma unroll
  for (int pair = 0; pair < kHeadDim * Cache::kBytes / 32; ++pair) {
    uint32_t v[4];
    ptx::ldmatrix_x4_trans(v, Layout::chunk_pair(value, pair));
    if constexpr (Cache::kBytes == 2) {
      Element::mma(acc[0][2 * pair], a, v[0], v[1]);
      Element::mma(acc[0][2 * pair + 1], a, v[2], v[3]);
    } else {
      // Of each pair of columns the even one, then the odd one.
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int n = 4 * pair + 2 * i;
        uint32_t even[2], odd[2];
        Cache::template pairs<0, 2>(v[2 * i], even[0], odd[0]);
        Cache::template pairs<0, 2>(v[2 * i + 1], even[1], odd[1]);
        Element::mma(acc[0][n], a, even[0], even[1]);
        Element::mma(acc[0][n + 1], a, odd[0], odd[1]);
      }
    }
  }
}

// A warp's state to its part of shared memory, accumulators times `factor`. `base`: of the lane's two rows; `sum`: the
// whole rows'.
template <class Cache, class Config>
__device__ __forceinline__ void keep_state(char* shared, const float (&acc)[1][Config::kHeadDim / 8][4], float factor,
                                           const float (&base)[2], const float (&sum)[2]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp * 16 + fragment_row(0, half);
    float* to = reinterpret_cast<float*>(shared) + row * Config::kStateStride;
#pragma unroll
    for (int n = 0; n < Config::kHeadDim / 8; ++n) {
      const float low = factor * acc[0][n][2 * half], high = factor * acc[0][n][2 * half + 1];
      if constexpr (Cache::kBytes == 2) {
        *reinterpret_cast<float2*>(to + value_column<Cache>(n, 0)) = make_float2(low, high);
      } else {
        to[value_column<Cache>(n, 0)] = low;
        to[value_column<Cache>(n, 1)] = high;
      }
    }
    if (lane % 4 == 0) {
      reinterpret_cast<float2*>(shared + Config::kStateBytes)[row] = make_float2(base[half], sum[half]);
    }
  }
}

}  // namespace tessera::cuda::sm80
