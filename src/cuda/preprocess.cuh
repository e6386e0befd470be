// What stands before and after the main kernel of a backward pass, for every architecture:
//   preprocess    -delta = d_lse - rowsum(d_o * o), lse to base 2, parts of d_sinks; zeroes dq's sums, or those of the
//                 first heads
//   postprocess   dq = scale * the sums, in its type and strides, where the main kernel has not
//   d_sinks       their parts summed in a fixed order
// Reads o and d_o once and writes dq's sums and dq once: bound by memory.
// Invariant: scratch rows past a used length have lse +inf and delta 0, so that the main kernel adds nothing for them;
// dq rows past a used length are +0; rows that no sequence owns are not touched.
#pragma once

#include <cmath>
#include <cstdint>

#include "tile/backward_scheduler.cuh"
#include "tile/dq_sums.cuh"
#include "tile/row_store.cuh"

namespace tessera::cuda {

inline constexpr int kRowThreads = 128;  // of preprocess and postprocess blocks, which take kRowTile rows of one head

struct RowItem {
  int head, tile;
  uint32_t batch;
};
__device__ __forceinline__ RowItem row_item(const BackwardParams& p) {
  const uint32_t tile = blockIdx.x % p.row_tiles, head_batch = blockIdx.x / p.row_tiles;
  return {static_cast<int>(head_batch % p.f.heads_q), static_cast<int>(tile), head_batch / p.f.heads_q};
}

// Sum of d_o * o over the 8 columns at these elements.
template <class Element, bool kFloat>
__device__ __forceinline__ float multiply_chunk(const BackwardParams& p, int64_t o, int64_t d_o) {
  const uint4 grad = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(p.d_o) + d_o);
  const uint32_t grads[4] = {grad.x, grad.y, grad.z, grad.w};
  float values[8];
  if constexpr (kFloat) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float4 four = reinterpret_cast<const float4*>(static_cast<const float*>(p.f.o) + o)[i];
      values[4 * i] = four.x;
      values[4 * i + 1] = four.y;
      values[4 * i + 2] = four.z;
      values[4 * i + 3] = four.w;
    }
  } else {
    const uint4 eight = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(p.f.o) + o);
    const uint32_t pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[2 * i] = Element::unpack(static_cast<uint16_t>(pairs[i]));
      values[2 * i + 1] = Element::unpack(static_cast<uint16_t>(pairs[i] >> 16));
    }
  }
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum = fmaf(Element::unpack(static_cast<uint16_t>(grads[i])), values[2 * i], sum);
    sum = fmaf(Element::unpack(static_cast<uint16_t>(grads[i] >> 16)), values[2 * i + 1], sum);
  }
  return sum;
}

// This thread's part of rowsum(d_o * o), for each kRowsPerPass-th of kPasses rows from `row` on; rows past the last one
// that is used give that one's. The loop over columns is outside, so that the loads of all rows are under way at once.
template <class Element, bool kFloat, int kPasses, int kRowsPerPass, int kLanes>
__device__ __forceinline__ void sum_products(const BackwardParams& p, float (&sums)[kPasses], const SequenceView& at,
                                             int head, int64_t row) {
  const int64_t o = at.q_batch * p.f.o_stride.batch + head * p.f.o_stride.head;
  const int64_t d_o = at.q_batch * p.d_o_stride.batch + head * p.d_o_stride.head;
  if (at.band.seqlen_q == 0) return;
  for (int c = threadIdx.x % kLanes * 8; c < p.f.head_dim_v; c += kLanes * 8) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int64_t used = clamp_to(row + pass * kRowsPerPass, 0, at.band.seqlen_q - 1);
      sums[pass] += multiply_chunk<Element, kFloat>(p, o + (at.q_row + used) * p.f.o_stride.row + c,
                                                    d_o + (at.q_row + used) * p.d_o_stride.row + c);
    }
  }
}

// dq_dim: the head-dim bucket of the main kernel, whose sums this zeroes.
template <class Element>
__global__ void __launch_bounds__(kRowThreads) preprocess_kernel(const __grid_constant__ BackwardParams p, int dq_dim) {
  constexpr int kLanes = 8, kRowsPerPass = kRowThreads / kLanes, kPasses = kRowTile / kRowsPerPass;
  __shared__ float sink_terms[kRowTile];
  const RowItem item = row_item(p);
  SequenceView at;
  locate_rows(p.f, item.batch, at);
  if (blockIdx.x == 0 && threadIdx.x == 0 && p.ticket != nullptr) *p.ticket = 0;

  const int64_t first = int64_t{item.tile} * kRowTile;
  const int64_t scratch = item.head * p.scratch_rows + scratch_row(p.f, item.batch, at);
  const int64_t lse_row = p.f.cu_seqlens_q != nullptr ? item.head * p.f.total_q + at.q_row
                                                      : (at.q_batch * p.f.heads_q + item.head) * p.f.seqlen_q;
  const bool owned = first < (at.rows_q + kScratchRows - 1) / kScratchRows * kScratchRows;
  const uint32_t head_batch = item.batch * p.heads_kv + item.head / p.f.group;
  if (p.progress != nullptr && item.tile == 0 && item.head % p.f.group == 0 && threadIdx.x == 0)
    p.progress[head_batch] = {};
  if (owned && (p.progress == nullptr || head_batch < static_cast<uint32_t>(p.heads_ahead))) {
    float4* sums = reinterpret_cast<float4*>(p.dq_sum + dq_fragment(p.scratch_rows, 0, scratch + first, 0, dq_dim));
    for (int i = threadIdx.x; i < kRowTile * dq_dim / 4; i += kRowThreads)
      sums[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
  if (owned && p.turns != nullptr && threadIdx.x < kRowTile / kTurnRows)
    p.turns[(scratch + first) / kTurnRows + threadIdx.x] = 0;

  const int64_t my_row = first + threadIdx.x / kLanes;
  float deltas[kPasses] = {};
  if (p.f.o_is_float) {
    sum_products<Element, true, kPasses, kRowsPerPass, kLanes>(p, deltas, at, item.head, my_row);
  } else {
    sum_products<Element, false, kPasses, kRowsPerPass, kLanes>(p, deltas, at, item.head, my_row);
  }
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const int r = pass * kRowsPerPass + threadIdx.x / kLanes;
    const int64_t row = first + r;
    float delta = row < at.band.seqlen_q ? deltas[pass] : 0.0f;
#pragma unroll
    for (int lane = 1; lane < kLanes; lane *= 2) delta += __shfl_xor_sync(0xffffffffu, delta, lane);
    if (threadIdx.x % kLanes != 0) continue;
    float lse = INFINITY, term = 0.0f;
    if (row < at.band.seqlen_q) {
      if (p.d_lse != nullptr) delta -= p.d_lse[lse_row + row];
      lse = p.f.lse[lse_row + row];
      // The exponent is at most 0, since the sink is part of lse; a rounded lse must not make it more.
      const float sink = p.d_sinks != nullptr ? p.f.sinks[item.head] : -INFINITY;
      if (sink != -INFINITY) term = -expf(fminf(sink - lse, 0.0f)) * delta;
      if (lse == -INFINITY) lse = INFINITY;
    }
    sink_terms[r] = term;
    if (owned) {
      p.lse[scratch + row] = lse * static_cast<float>(core::kLog2E);
      p.minus_delta[scratch + row] = -delta;
    }
  }
  if (p.d_sinks == nullptr) return;
  __syncthreads();
  if (threadIdx.x != 0) return;
  float sum = 0.0f;
  for (int r = 0; r < kRowTile; ++r) sum += sink_terms[r];
  p.sink_sums[(int64_t{item.head} * p.batch + item.batch) * p.row_tiles + item.tile] = sum;
}

// kTransposed: the sums lie as dq_transposed_fragment() says, else as dq_fragment() does.
template <class Element, int kDim, bool kTransposed>
__global__ void __launch_bounds__(kRowThreads) postprocess_kernel(const __grid_constant__ BackwardParams p) {
  __shared__ __align__(128) char tile[kRowTile * kDim * 2];
  const RowItem item = row_item(p);
  SequenceView at;
  locate_rows(p.f, item.batch, at);
  const int64_t first = int64_t{item.tile} * kRowTile;
  if (first >= at.rows_q) return;
  if (p.converts) {
    constexpr uint32_t kUnits = kRowTile / kConversionRows<kDim>;
    const uint32_t end = (item.head % p.f.group * p.row_tiles + item.tile + 1) * kUnits;
    if (end <= p.progress[item.batch * p.heads_kv + item.head / p.f.group].units_claimed) return;
  }
  const int row = threadIdx.x / 32 * 16, lane = threadIdx.x % 32;
  const int64_t scratch = scratch_row(p.f, item.batch, at) + first + row;
  const RowTarget target = row_target(p.dq, p.dq_stride, at.q_batch, at.q_row + first, item.head, at.rows_q - first,
                                      p.f.head_dim_qk, p.dq_is_float);
  if constexpr (kTransposed) {
    float dq[2][kDim / 16][4];
    const float* sums = p.dq_sum + dq_transposed_fragment(p.scratch_rows, item.head, scratch, 0, kDim) + lane * 4;
#pragma unroll
    for (int b = 0; b < 2; ++b) {
#pragma unroll
      for (int c = 0; c < kDim / 16; ++c) {
        load_four(dq[b][c], sums + (b * (kDim / 16) + c) * 128);
      }
    }
    store_transposed_rows<Element, kDim>(target, tile, dq, row, 0, p.f.scale);
  } else {
    float dq[1][kDim / 8][4];
    const float* sums = p.dq_sum + dq_fragment(p.scratch_rows, item.head, scratch, 0, kDim);
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) load_dq_fragment(dq[0][n], sums + n * 128);
    store_rows<Element, kDim, 1>(target, tile, dq, row, 0, p.f.scale);
  }
  __syncthreads();
  copy_rows<kRowTile, kDim, kRowThreads>(target, tile, threadIdx.x);
}

// One block of one warp a head.
__global__ void __launch_bounds__(32) sum_sinks_kernel(const __grid_constant__ BackwardParams p) {
  const int64_t count = int64_t{p.batch} * p.row_tiles;
  const float* parts = p.sink_sums + blockIdx.x * count;
  double sum = 0.0;
  for (int64_t i = threadIdx.x; i < count; i += 32) sum += parts[i];
#pragma unroll
  for (int lane = 1; lane < 32; lane *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lane);
  if (threadIdx.x == 0) p.d_sinks[blockIdx.x] = static_cast<float>(sum);
}

}  // namespace tessera::cuda
