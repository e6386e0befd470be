// From products to scores: masking by the band, and the general scores (softcap, additive bias or u8 mask, ALiBi, any
// scale). The plain kind leaves the products as they are and lets the softmax apply a positive scale.
// Invariant: a masked element is replaced, never multiplied or added to, so what it held reaches nothing.
#pragma once

#include <cmath>
#include <cstdint>

#include "../forward_params.hpp"
#include "element.cuh"
#include "scheduler.cuh"
#include "semantics.hpp"
#include "tessera/tessera.h"

namespace tessera::cuda {

// The row and column of element (b, n, e) that this lane holds, relative to the warp's rows and the key tile.
__device__ __forceinline__ int fragment_row(int b, int half) { return b * 16 + half * 8 + (threadIdx.x % 32) / 4; }
__device__ __forceinline__ int fragment_column(int n, int e) { return n * 8 + 2 * (threadIdx.x % 4) + (e & 1); }

// Replaces the scores of one row outside columns [begin, end) by -inf.
template <int kColumns>
__device__ __forceinline__ void mask_row(float (&scores)[kColumns][4], int half, int begin, int end) {
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
#pragma unroll
    for (int e = 2 * half; e < 2 * half + 2; ++e) {
      const int column = fragment_column(n, e);
      if (column < begin || column >= end) scores[n][e] = -INFINITY;
    }
  }
}

// The rows of a lane: of 16-row block b, elements 0, 1 belong to row [b][0], 2, 3 to [b][1].
template <int kBlocks>
struct LaneRows {
  int64_t row[kBlocks][2];
};

// Rows in order from a warp's first.
template <int kBlocks>
__device__ __forceinline__ LaneRows<kBlocks> rows_from(int64_t first) {
  LaneRows<kBlocks> rows;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    rows.row[b][0] = first + fragment_row(b, 0);
    rows.row[b][1] = first + fragment_row(b, 1);
  }
  return rows;
}

// Replaces every score outside the band by -inf. `key`: the tile's first key.
template <int kBlocks, int kColumns>
__device__ __forceinline__ void mask_scores(float (&scores)[kBlocks][kColumns][4], const core::Band& band,
                                            const LaneRows<kBlocks>& rows, int64_t key) {
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const core::Range keys = band.visible_keys(rows.row[b][half]);
      // Relative to the tile, where every column fits an int.
      mask_row(scores[b], half, static_cast<int>(clamp_to(keys.begin - key, 0, kColumns * 8)),
               static_cast<int>(clamp_to(keys.end - key, 0, kColumns * 8)));
    }
  }
}

template <class Element>
__device__ __forceinline__ float load_bias(const void* bias, int32_t dtype, int64_t index) {
  if (dtype == TESSERA_U8) return static_cast<const uint8_t*>(bias)[index] != 0 ? 0.0f : -INFINITY;
  if (dtype == TESSERA_F32) return static_cast<const float*>(bias)[index];
  return Element::unpack(static_cast<const uint16_t*>(bias)[index]);
}

// What all scores of one query row share.
struct ScoreRow {
  int64_t row, diagonal, bias_row;  // bias_row: the bias element of (row, key 0)
};

// `bias_row0`: the bias element of (row 0, key 0).
__device__ __forceinline__ ScoreRow score_row(const ForwardParams& p, const core::Band& band, int64_t bias_row0,
                                              int64_t row) {
  return {row, band.diagonal(row), bias_row0 + row * p.bias_stride[2]};
}

// A product to a natural score, with everything but the band; *capped is the score before bias and ALiBi. Bias is read
// only where the band keeps the key.
template <class Element>
__device__ __forceinline__ float general_score(const ForwardParams& p, const core::Band& band, float slope,
                                               const ScoreRow& at, int64_t column, float product, float* capped) {
  float x = product * p.scale;
  if (p.softcap > 0.0f) x = core::apply_softcap(x, p.softcap);
  *capped = x;
  if (p.bias_dtype != 0 && at.row < band.seqlen_q && band.keeps(at.row, column)) {
    x += load_bias<Element>(p.bias, p.bias_dtype, at.bias_row + column * p.bias_stride[3]);
  }
  if (p.alibi_slopes != nullptr) x += core::alibi_bias(slope, at.diagonal, column);
  return x;
}

// Products to scores in base 2, with everything but the band.
template <class Element, int kBlocks, int kColumns>
__device__ __forceinline__ void general_scores(float (&scores)[kBlocks][kColumns][4], const ForwardParams& p,
                                               const BlockView& view, const LaneRows<kBlocks>& rows, int64_t key) {
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const ScoreRow row = score_row(p, view.sequence.band, view.bias_row0, rows.row[b][half]);
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          float capped;
          const float x = general_score<Element>(p, view.sequence.band, view.slope, row, key + fragment_column(n, e),
                                                 scores[b][n][e], &capped);
          scores[b][n][e] = x * static_cast<float>(core::kLog2E);
        }
      }
    }
  }
}

}  // namespace tessera::cuda
