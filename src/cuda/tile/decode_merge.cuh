// The end of a decode block: the states of its warps become one, which is the result or, with several splits, a partial
// state; the block of a unit that comes last merges those. Both take the states in an order that does not change.
// A state of a row is its base (the maximum in base 2), its sum and its accumulators relative to the base.
// Invariant: rows that saw no key, and those past a used length, are +0 and -inf, whatever the accumulators hold.
#pragma once

#include <cmath>
#include <cstdint>

#include "../ptx/atomic.cuh"
#include "../ptx/math.cuh"
#include "../ptx/opaque.cuh"
#include "decode_unit.cuh"
#include "output.cuh"

namespace tessera::cuda {

// Neighbouring lanes share a row. A lane has kRowParts times four of its columns: those of a part lie side by side.
template <int kHeadDim>
inline constexpr int kRowLanes = kHeadDim < 128 ? kHeadDim / 4 : 32;
template <int kHeadDim>
inline constexpr int kRowParts = kHeadDim / 4 / kRowLanes<kHeadDim>;

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

// What a state counts beside the highest base. Equal bases count 1 though they be infinite; an empty state (sum 0)
// counts nothing, whatever its accumulators are.
__device__ __forceinline__ float state_weight(float2 state, float highest) {
  return state.y == 0.0f ? 0.0f : (state.x == highest ? 1.0f : ptx::ex2(state.x - highest));
}

// One row of the block's warps: `count` states `rows` apart. Every lane looks at all statistics, so that none waits for
// another.
template <class Config>
__device__ __forceinline__ MergedRow<Config::kHeadDim> merge_warps(const char* shared, int row, int rows, int count) {
  constexpr int kDim = Config::kHeadDim, kStates = Config::kWarps;
  const float* acc = reinterpret_cast<const float*>(shared) + row * Config::kStateStride;
  const float2* statistics = reinterpret_cast<const float2*>(shared + Config::kStateBytes) + row;
  float2 one[kStates];
  float4 values[kStates][kRowParts<kDim>];
  MergedRow<kDim> merged{-INFINITY, 0.0f, {}};
#pragma unroll
  for (int i = 0; i < kStates; ++i) {
    const int state = i < count ? i * rows : 0;
    one[i] = statistics[state];
    if (i >= count) one[i].y = 0.0f;
#pragma unroll
    for (int part = 0; part < kRowParts<kDim>; ++part) {
      const float* at = acc + state * Config::kStateStride + part_column<kDim>(part);
      values[i][part] = *reinterpret_cast<const float4*>(at);
    }
  }
#pragma unroll
  for (int i = 0; i < kStates; ++i) {
    if (one[i].y != 0.0f) merged.base = fmaxf(merged.base, one[i].x);
  }
#pragma unroll
  for (int i = 0; i < kStates; ++i) {
    const float weight = state_weight(one[i], merged.base);
    merged.sum += weight * one[i].y;
#pragma unroll
    for (int part = 0; part < kRowParts<kDim>; ++part) {
      if (weight != 0.0f) add_product(merged.o[part], weight, values[i][part]);
    }
  }
  return merged;
}

// One row of `count` splits, each a row of `rows` in memory. The lanes of a row hold the weights of kRowLanes states at
// a time.
template <int kHeadDim>
__device__ __forceinline__ MergedRow<kHeadDim> merge_splits(const float* acc, const float2* statistics, int rows,
                                                            int count) {
  constexpr int kLanes = kRowLanes<kHeadDim>, kParts = kRowParts<kHeadDim>, kGroup = 16 / kParts;
  const int lane = threadIdx.x % kLanes;
  MergedRow<kHeadDim> row{-INFINITY, 0.0f, {}};
#pragma unroll 1
  for (int first = 0; first < count; first += kLanes) {
    const int here = count - first < kLanes ? count - first : kLanes;
    float2 one = make_float2(-INFINITY, 0.0f);
    if (lane < here) one = statistics[int64_t{first + lane} * rows];
    float weight = 0.0f;
#pragma unroll 1
    for (int group = 0; group < here; group += kGroup) {
      // Loads first, all at once, before anything waits for the statistics. What is past the last state weighs nothing.
      float4 values[kGroup][kParts];
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          const int state = first + group + i < count ? first + group + i : count - 1;
          const float* at = acc + state * rows * kHeadDim;  // at most 2^15 splits of 64 rows
          values[i][part] = *reinterpret_cast<const float4*>(at + part_column<kHeadDim>(part));
        }
      }
      if (group == 0) {
        one.y = __int_as_float(ptx::opaque(__float_as_int(one.y)));  // or it is waited for in front of the loop
        float highest = one.y != 0.0f ? one.x : -INFINITY;
#pragma unroll
        for (int distance = 1; distance < kLanes; distance *= 2) {
          highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, distance));
        }
        highest = fmaxf(highest, row.base);
        const float shrink = row.base == highest ? 1.0f : ptx::ex2(row.base - highest);
        weight = state_weight(one, highest);
        float sum = weight * one.y;
#pragma unroll
        for (int distance = 1; distance < kLanes; distance *= 2) {
          sum += __shfl_xor_sync(0xffffffffu, sum, distance);
        }
        row.base = highest;
        row.sum = row.sum * shrink + sum;
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          float4& o = row.o[part];
          o.x *= shrink, o.y *= shrink, o.z *= shrink, o.w *= shrink;
        }
      }
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        const float w = __shfl_sync(0xffffffffu, weight, group + i, kLanes);
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          if (w != 0.0f) add_product(row.o[part], w, values[i][part]);
        }
      }
    }
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
  seen = ptx::opaque(seen);  // or it is waited for before the warps have merged
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
#pragma unroll 1
  for (bool whole = p.splits == 1, ours = true;; whole = true, ours = false) {
    // The lanes of a warp stay together, also past the last row: shuffles need them all.
    for (int first = 0; first < rows; first += kStep) {
      const int mine = first + static_cast<int>(threadIdx.x) / kRowLanes<kDim>, row = mine < rows ? mine : rows - 1;
      const MergedRow<kDim> merged =
          ours ? merge_warps<Config>(shared, row, block_rows, Config::kWarps >> (p.row_tiles >> 1))  // 1, 2 or 4 tiles
               : merge_splits<kDim>(p.states + (unit_states + row) * kDim, p.statistics + unit_states + row,
                                    p.state_rows, p.splits);
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
  }
}

}  // namespace tessera::cuda
