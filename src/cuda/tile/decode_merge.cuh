// The end of a decode block: the states of its warps become one, which is the result or, with several splits, a partial
// state; the block of a unit that comes last merges those. Both merges are the same, in the order of the states.
// A state of a row is its base (the maximum in base 2), its sum and its accumulators relative to the base.
// Invariant: rows that saw no key, and those past a used length, are +0 and -inf, whatever the accumulators hold.
#pragma once

#include <cmath>
#include <cstdint>

#include "../ptx/atomic.cuh"
#include "../ptx/math.cuh"
#include "decode_unit.cuh"
#include "output.cuh"

namespace tessera::cuda {

// Neighbouring lanes share a row. A lane has kRowParts times four of its columns: those of a part lie side by side.
template <int kHeadDim>
inline constexpr int kRowLanes = kHeadDim < 128 ? kHeadDim / 4 : 32;
template <int kHeadDim>
inline constexpr int kRowParts = kHeadDim / 4 / kRowLanes<kHeadDim>;

// `count` states of one row.
struct RowStates {
  const float* acc;
  const float2* statistics;
  int acc_stride, statistics_stride;  // from state to state
  int count;
};

template <int kHeadDim>
struct MergedRow {
  float base, sum;
  float4 o[kRowParts<kHeadDim>];
};

template <int kHeadDim>
__device__ __forceinline__ int part_column(int part) {
  return (part * kRowLanes<kHeadDim> + static_cast<int>(threadIdx.x) % kRowLanes<kHeadDim>)*4;
}

__device__ __forceinline__ void add_product(float4& sum, float factor, const float4& x) {
  sum.x += factor * x.x, sum.y += factor * x.y, sum.z += factor * x.z, sum.w += factor * x.w;
}

// The lanes of a row in turn hold the weights of kRowLanes states at a time. An empty state (sum 0) weighs nothing,
// whatever its accumulators are.
template <int kHeadDim>
__device__ __forceinline__ MergedRow<kHeadDim> merge_row(const RowStates& states) {
  constexpr int kLanes = kRowLanes<kHeadDim>, kParts = kRowParts<kHeadDim>, kGroup = 16 / kParts;
  const int lane = threadIdx.x % kLanes;
  const float* at = states.acc;
  MergedRow<kHeadDim> row{-INFINITY, 0.0f, {}};
#pragma unroll 1
  for (int first = 0; first < states.count; first += kLanes) {
    const int here = states.count - first < kLanes ? states.count - first : kLanes;
    float2 one = make_float2(-INFINITY, 0.0f);
    if (lane < here) one = states.statistics[int64_t{first + lane} * states.statistics_stride];
    float weight = 0.0f;
#pragma unroll 1
    for (int group = 0; group < here; group += kGroup) {
      // Loads first, all at once, before anything waits for the statistics. What is past the last state is not added.
      float4 values[kGroup][kParts];
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          values[i][part] = *reinterpret_cast<const float4*>(at + part_column<kHeadDim>(part));
        }
        if (first + group + i + 1 < states.count) at += states.acc_stride;
      }
      if (group == 0) {
        float highest = one.y != 0.0f ? one.x : -INFINITY;
#pragma unroll
        for (int distance = 1; distance < kLanes; distance *= 2) {
          highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, distance));
        }
        highest = fmaxf(highest, row.base);
        // Equal bases weigh 1 though they be infinite.
        const float shrink = row.base == highest ? 1.0f : ptx::ex2(row.base - highest);
        if (one.y != 0.0f) weight = one.x == highest ? 1.0f : ptx::ex2(one.x - highest);
        row.base = highest;
        row.sum = row.sum * shrink + weight * one.y;
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          float4& o = row.o[part];
          o.x *= shrink, o.y *= shrink, o.z *= shrink, o.w *= shrink;
        }
      }
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        if (group + i >= here) break;  // the same in every lane
        const float w = __shfl_sync(0xffffffffu, weight, group + i, kLanes);
        if (w == 0.0f) continue;
#pragma unroll
        for (int part = 0; part < kParts; ++part) add_product(row.o[part], w, values[i][part]);
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
                                          const MergedRow<kHeadDim>& merged) {
  const uint32_t group = p.group.value, query = p.group.divide(row);
  const OutputRow at{query, 0, static_cast<int>(view.head_kv * group + (row - query * group))};
  const bool leads = threadIdx.x % kRowLanes<kHeadDim> == 0;
  const float factor = finish_row(p.f, view.sequence, at, merged.base, merged.sum, 1.0f, leads);
  const int64_t offset = view.sequence.q_batch * p.f.o_stride.batch + (view.sequence.q_row + query) * p.f.o_stride.row +
                         at.head * p.f.o_stride.head;
#pragma unroll
  for (int part = 0; part < kRowParts<kHeadDim>; ++part) {
    const int column = part_column<kHeadDim>(part);
    if (column >= p.f.head_dim_v) continue;
    const float4 o = make_float4(finished(merged.o[part].x, factor), finished(merged.o[part].y, factor),
                                 finished(merged.o[part].z, factor), finished(merged.o[part].w, factor));
    if (p.f.o_is_float) {
      *reinterpret_cast<float4*>(static_cast<float*>(p.f.o) + offset + column) = o;
    } else {
      *reinterpret_cast<uint2*>(static_cast<uint16_t*>(p.f.o) + offset + column) =
          make_uint2(Element::pack(o.x, o.y), Element::pack(o.z, o.w));
    }
  }
}

// Counts the units' arrivals. The counter may hold anything: a block that saw no count of this launch sets 0 before it
// arrives, and the last one leaves no such count behind, so that a replay of the launch starts anew. `seen`: what the
// counter was at some time since the block began.
__device__ __forceinline__ bool arrives_last(const DecodeParams& p, uint32_t unit, unsigned long long seen) {
  unsigned long long* counter = p.arrivals + unit;
  // Where another block was faster, its count stands.
  if (seen - p.run >= static_cast<unsigned long long>(p.splits)) atomicCAS(counter, seen, p.run);
  const bool last = ptx::arrive(counter) == p.run + static_cast<unsigned long long>(p.splits) - 1;
  if (last) *counter = 0;
  return last;
}

// A partial state of a row.
template <int kHeadDim>
__device__ __forceinline__ void store_state(const DecodeParams& p, int64_t at, const MergedRow<kHeadDim>& merged) {
  float* to = p.states + at * kHeadDim;
#pragma unroll
  for (int part = 0; part < kRowParts<kHeadDim>; ++part) {
    *reinterpret_cast<float4*>(to + part_column<kHeadDim>(part)) = merged.o[part];
  }
  if (threadIdx.x % kRowLanes<kHeadDim> == 0) p.statistics[at] = make_float2(merged.base, merged.sum);
}

// Called by all threads, a barrier behind keep_state(). `seen`: of the unit's counter.
template <class Element, class Config>
__device__ __forceinline__ void finish_unit(const DecodeParams& p, const DecodeView& view, const char* shared,
                                            unsigned long long seen) {
  constexpr int kDim = Config::kHeadDim, kStep = Config::kThreads / kRowLanes<kDim>;
  __shared__ bool last;
  const int block_rows = Config::kTileRows * p.row_tiles;
  const auto left = static_cast<int>(view.rows - view.first_row), rows = left < block_rows ? left : block_rows;
  const int64_t unit_states = int64_t{view.unit} * p.splits * p.state_rows;
  // The states of the block's warps, then those of the splits.
  RowStates states{reinterpret_cast<const float*>(shared),
                   reinterpret_cast<const float2*>(shared + Config::kStateBytes), block_rows * Config::kStateStride,
                   block_rows, Config::kWarps >> (p.row_tiles >> 1)};  // row_tiles is 1, 2 or 4
  int row_stride = Config::kStateStride;
#pragma unroll 1
  for (bool whole = p.splits == 1;; whole = true) {
    // The lanes of a warp stay together, also past the last row: shuffles need them all.
    for (int first = 0; first < rows; first += kStep) {
      const int mine = first + static_cast<int>(threadIdx.x) / kRowLanes<kDim>, row = mine < rows ? mine : rows - 1;
      RowStates row_states = states;
      row_states.acc += row * row_stride;
      row_states.statistics += row;
      const MergedRow<kDim> merged = merge_row<kDim>(row_states);
      if (mine >= rows) continue;
      if (whole) {
        store_row<Element, kDim>(p, view, view.first_row + row, merged);
      } else {
        store_state<kDim>(p, unit_states + int64_t{view.split} * p.state_rows + row, merged);
      }
    }
    if (whole) return;
    __syncthreads();
    if (threadIdx.x == 0) last = arrives_last(p, view.unit, seen);
    __syncthreads();
    if (!last) return;
    row_stride = kDim;
    states = {p.states + unit_states * kDim, p.statistics + unit_states, p.state_rows * kDim, p.state_rows, p.splits};
  }
}

}  // namespace tessera::cuda
