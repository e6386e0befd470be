// The end of a decode block: the states of its warps become one, which is the result or, with several splits, a partial
// state; the block of a unit that comes last merges those. Both merges are the same, in the order of the states.
// A state of a row is its base (the maximum in base 2), its sum and its accumulators relative to the base.
// Invariant: rows that saw no key, and those past a used length, are +0 and -inf, whatever the accumulators hold.
#pragma once

#include <cmath>
#include <cstdint>

#include "../ptx/math.cuh"
#include "decode_unit.cuh"
#include "output.cuh"

namespace tessera::cuda {

// Neighbouring lanes share a row, each with eight of its columns.
template <int kHeadDim>
inline constexpr int kRowLanes = kHeadDim / 8;

// `count` states of one row.
struct RowStates {
  const float* acc;
  const float2* statistics;
  int64_t acc_stride, statistics_stride;  // from state to state
  int count;
};

struct MergedRow {
  float base, sum;
  float o[8];
};

// The lanes of a row in turn hold the weights of kRowLanes states at a time. An empty state (sum 0) weighs nothing,
// whatever its accumulators are.
template <int kHeadDim>
__device__ __forceinline__ MergedRow merge_row(const RowStates& states) {
  constexpr int kLanes = kRowLanes<kHeadDim>, kGroup = 8;
  const int lane = threadIdx.x % kLanes;
  float highest = -INFINITY;
  for (int s = lane; s < states.count; s += kLanes) {
    const float2 one = states.statistics[s * states.statistics_stride];
    if (one.y != 0.0f) highest = fmaxf(highest, one.x);
  }
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2) {
    highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, distance));
  }
  MergedRow row{highest, 0.0f, {}};
  const float* acc = states.acc + lane * 8;
  for (int first = 0; first < states.count; first += kLanes) {
    float weight = 0.0f;
    if (first + lane < states.count) {
      const float2 one = states.statistics[(first + lane) * states.statistics_stride];
      // Equal bases weigh 1 though they be infinite.
      if (one.y != 0.0f) weight = one.x == highest ? 1.0f : ptx::ex2(one.x - highest);
      row.sum += weight * one.y;
    }
    const int here = states.count - first < kLanes ? states.count - first : kLanes;
    for (int group = 0; group < here; group += kGroup) {
      // Loads first, all at once; what is past the last state or weighs nothing is not added.
      float4 low[kGroup], high[kGroup];
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        const int s = first + group + i < states.count ? first + group + i : states.count - 1;
        const auto* at = reinterpret_cast<const float4*>(acc + s * states.acc_stride);
        low[i] = at[0], high[i] = at[1];
      }
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        const float w = __shfl_sync(0xffffffffu, weight, group + i, kLanes);
        if (w != 0.0f) {
          row.o[0] += w * low[i].x, row.o[1] += w * low[i].y, row.o[2] += w * low[i].z, row.o[3] += w * low[i].w;
          row.o[4] += w * high[i].x, row.o[5] += w * high[i].y, row.o[6] += w * high[i].z, row.o[7] += w * high[i].w;
        }
      }
    }
  }
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2) {
    row.sum += __shfl_xor_sync(0xffffffffu, row.sum, distance);
  }
  return row;
}

// A merged row to o and lse.
template <class Element, int kHeadDim>
__device__ __forceinline__ void store_row(const DecodeParams& p, const DecodeView& view, uint32_t row,
                                          const MergedRow& merged) {
  const uint32_t group = p.group.value, query = p.group.divide(row);
  const int lane = threadIdx.x % kRowLanes<kHeadDim>, column = lane * 8;
  const OutputRow at{query, 0, static_cast<int>(view.head_kv * group + (row - query * group))};
  const float factor = finish_row(p.f, view.sequence, at, merged.base, merged.sum, 1.0f, lane == 0);
  if (column >= p.f.head_dim_v) return;
  float o[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) o[i] = finished(merged.o[i], factor);
  const int64_t offset = view.sequence.q_batch * p.f.o_stride.batch + (view.sequence.q_row + query) * p.f.o_stride.row +
                         at.head * p.f.o_stride.head + column;
  if (p.f.o_is_float) {
    auto* to = reinterpret_cast<float4*>(static_cast<float*>(p.f.o) + offset);
    to[0] = make_float4(o[0], o[1], o[2], o[3]);
    to[1] = make_float4(o[4], o[5], o[6], o[7]);
  } else {
    *reinterpret_cast<uint4*>(static_cast<uint16_t*>(p.f.o) + offset) = make_uint4(
        Element::pack(o[0], o[1]), Element::pack(o[2], o[3]), Element::pack(o[4], o[5]), Element::pack(o[6], o[7]));
  }
}

// Counts the units' arrivals. The counter may hold anything: a block that finds no count of this launch sets 0 before
// it arrives, and the last one leaves no such count behind, so that a replay of the launch starts anew.
__device__ __forceinline__ void open_arrivals(const DecodeParams& p, uint32_t unit) {
  if (p.splits == 1 || threadIdx.x != 0) return;
  unsigned long long* counter = p.arrivals + unit;
  const unsigned long long seen = *static_cast<volatile unsigned long long*>(counter);
  // Where another block was faster, its count stands.
  if (seen - p.run >= static_cast<unsigned long long>(p.splits)) atomicCAS(counter, seen, p.run);
}
__device__ __forceinline__ bool arrives_last(const DecodeParams& p, uint32_t unit) {
  unsigned long long* counter = p.arrivals + unit;
  __threadfence();
  const bool last = atomicAdd(counter, 1ull) == p.run + static_cast<unsigned long long>(p.splits) - 1;
  if (last) *counter = 0;
  __threadfence();
  return last;
}

// A partial state of a row.
template <int kHeadDim>
__device__ __forceinline__ void store_state(const DecodeParams& p, int64_t at, const MergedRow& merged) {
  const int lane = threadIdx.x % kRowLanes<kHeadDim>;
  auto* to = reinterpret_cast<float4*>(p.states + at * kHeadDim + lane * 8);
  to[0] = make_float4(merged.o[0], merged.o[1], merged.o[2], merged.o[3]);
  to[1] = make_float4(merged.o[4], merged.o[5], merged.o[6], merged.o[7]);
  if (lane == 0) p.statistics[at] = make_float2(merged.base, merged.sum);
}

// Called by all threads, a barrier behind keep_state().
template <class Element, class Config>
__device__ __forceinline__ void finish_unit(const DecodeParams& p, const DecodeView& view, const char* shared) {
  constexpr int kDim = Config::kHeadDim, kStep = Config::kThreads / kRowLanes<kDim>;
  __shared__ bool last;
  const int block_rows = 16 * p.row_tiles;
  const auto left = static_cast<int>(view.rows - view.first_row), rows = left < block_rows ? left : block_rows;
  const int64_t unit_states = int64_t{view.unit} * p.splits * p.state_rows;
  // The states of the block's warps, then those of the splits.
  RowStates states{reinterpret_cast<const float*>(shared),
                   reinterpret_cast<const float2*>(shared + Config::kStateBytes), block_rows * Config::kStateStride,
                   block_rows, Config::kWarps / p.row_tiles};
  int row_stride = Config::kStateStride;
#pragma unroll 1
  for (bool whole = p.splits == 1;; whole = true) {
    // The lanes of a warp stay together, also past the last row: shuffles need them all.
    for (int first = 0; first < rows; first += kStep) {
      const int mine = first + static_cast<int>(threadIdx.x) / kRowLanes<kDim>, row = mine < rows ? mine : rows - 1;
      RowStates row_states = states;
      row_states.acc += row * row_stride;
      row_states.statistics += row;
      const MergedRow merged = merge_row<kDim>(row_states);
      if (mine >= rows) continue;
      if (whole) {
        store_row<Element, kDim>(p, view, view.first_row + row, merged);
      } else {
        store_state<kDim>(p, unit_states + int64_t{view.split} * p.state_rows + row, merged);
      }
    }
    if (whole) return;
    __syncthreads();
    if (threadIdx.x == 0) last = arrives_last(p, view.unit);
    __syncthreads();
    if (!last) return;
    row_stride = kDim;
    states = {p.states + unit_states * kDim, p.statistics + unit_states, int64_t{p.state_rows} * kDim, p.state_rows,
              p.splits};
  }
}

}  // namespace tessera::cuda
