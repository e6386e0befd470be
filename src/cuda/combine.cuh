// Merge of the states of a split forward: o = sum_s w_s o_s with w_s = exp(lse_s - lse), splits in order,
// then the sink. One warp a row of one head; a block takes kCombineRows rows. Reads num_splits * (head_dim_v + 1)
// floats a row and writes the row once: bound by memory.
// Invariant: rows that saw no key in any split, and those past a used length, are +0 and -inf (or the sink); rows that
// no sequence owns are not touched.
#pragma once

#include "merge_states.hpp"
#include "tile/element.cuh"
#include "tile/scheduler.cuh"

namespace tessera::cuda {

inline constexpr int kCombineRows = 8;

template <class Element>
__global__ void __launch_bounds__(kCombineRows * 32)
    combine_kernel(const __grid_constant__ ForwardParams partial, const __grid_constant__ ForwardParams final_params) {
  const ForwardParams& p = final_params;
  const int blocks = (p.seqlen_q + kCombineRows - 1) / kCombineRows;
  const int64_t head_batch = blockIdx.x / blocks, batch = head_batch / p.heads_q, head = head_batch % p.heads_q;
  const int64_t row = int64_t{blockIdx.x % blocks} * kCombineRows + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const SequenceView sequence = locate_sequence(p, batch, 0);
  if (row >= sequence.rows_q) return;

  const int64_t lse_index = (p.cu_seqlens_q != nullptr ? head * p.total_q + sequence.q_row
                                                       : (sequence.q_batch * p.heads_q + head) * p.seqlen_q) +
                            row;
  const float sink = p.sinks != nullptr && row < sequence.band.seqlen_q ? p.sinks[head] : -INFINITY;
  // The sink is one more state, with nothing to add to o.
  const float* lse_partial = partial.lse + lse_index;
  const core::MergedStates<float> merged = core::merge_states<float>(partial.num_splits + 1, [&](int64_t s) {
    return s < partial.num_splits ? lse_partial[s * partial.lse_split_stride] : sink;
  });
  if (p.lse != nullptr && lane == 0) p.lse[lse_index] = merged.lse();

  const float* o_partial = static_cast<const float*>(partial.o) + sequence.q_batch * partial.o_stride.batch +
                           (sequence.q_row + row) * partial.o_stride.row + head * partial.o_stride.head;
  const int64_t o_offset =
      sequence.q_batch * p.o_stride.batch + (sequence.q_row + row) * p.o_stride.row + head * p.o_stride.head;
  for (int c = 2 * lane; c < p.head_dim_v; c += 64) {
    float2 sum = make_float2(0.0f, 0.0f);
    for (int s = 0; s < partial.num_splits; ++s) {
      const float weight = merged.weight(lse_partial[s * partial.lse_split_stride]);
      if (weight == 0.0f) continue;
      const float2 o = *reinterpret_cast<const float2*>(o_partial + s * partial.o_split_stride + c);
      sum.x += weight * o.x;
      sum.y += weight * o.y;
    }
    if (merged.sum > 0.0f) {
      sum.x /= merged.sum;
      sum.y /= merged.sum;
    }
    if (p.o_is_float) {
      *reinterpret_cast<float2*>(static_cast<float*>(p.o) + o_offset + c) = sum;
    } else {
      *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(p.o) + o_offset + c) = Element::pack(sum.x, sum.y);
    }
  }
}

}  // namespace tessera::cuda
