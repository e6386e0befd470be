// Merge of partial states on the GPU, and its gradient. A warp takes a row of one head, its lanes the columns; states
// in the order given, sums over columns by a fixed tree, so results repeat bitwise.
//   o [states, rows, head_dim_v], lse [states, batch, heads, seqlen_q] -> o_out [rows, head_dim_v], lse_out
// Work: one multiply-add an element read; bound by memory.
// Invariant: an empty state contributes nothing, whatever its o holds; a row without states is +0 and -inf.
#pragma once

#include <cstdint>

#include "element_io.cuh"
#include "merge_states.hpp"
#include "tessera/tessera.h"

namespace tessera::cuda {

inline constexpr int kMergeWarps = 8;

// Rows are counted in [batch, seqlen_q, heads] order.
struct MergeRows {
  int64_t seqlen_q, heads, count;
  __device__ int64_t lse_index(int64_t row) const {
    const int64_t head = row % heads, query = row / heads % seqlen_q, batch = row / heads / seqlen_q;
    return (batch * heads + head) * seqlen_q + query;
  }
};

// Calls merge(row, index, lse, merged) for the rows of the warp: `index` of the row's lse, `lse` of its first state, at
// which the others' follow rows.count apart.
template <class Number, class Merge>
__device__ __forceinline__ void for_each_row(const tessera_merge_args& args, const MergeRows& rows,
                                             const Merge& merge) {
  const int64_t stride = int64_t{gridDim.x} * kMergeWarps, apart = rows.count;
  for (int64_t row = int64_t{blockIdx.x} * kMergeWarps + threadIdx.x / 32; row < rows.count; row += stride) {
    const int64_t index = rows.lse_index(row);
    const Number* lse = static_cast<const Number*>(args.lse) + index;
    merge(row, index, lse, core::merge_states<Number>(args.states, [=](int64_t s) { return lse[s * apart]; }));
  }
}

template <class Number>
__global__ void __launch_bounds__(kMergeWarps * 32)
    merge_kernel(const __grid_constant__ tessera_merge_args args, const __grid_constant__ MergeRows rows) {
  const int lane = threadIdx.x % 32, dim = args.head_dim_v;
  const auto merge = [&](int64_t row, int64_t index, const Number* lse, const core::MergedStates<Number>& merged) {
    if (args.lse_out != nullptr && lane == 0) static_cast<Number*>(args.lse_out)[index] = merged.lse();
    for (int c = lane; c < dim; c += 32) {
      Number sum = 0;
      for (int64_t s = 0; s < args.states; ++s) {
        const Number weight = merged.weight(lse[s * rows.count]);
        if (weight == Number(0)) continue;
        sum += weight * load_number<Number>(args.o, args.dtype, (s * rows.count + row) * dim + c);
      }
      store_number(args.o_out, args.out_dtype, row * dim + c, merged.sum == Number(0) ? Number(0) : sum / merged.sum);
    }
  };
  for_each_row<Number>(args, rows, merge);
}

template <class Number>
__device__ __forceinline__ Number warp_sum(Number value) {
#pragma unroll
  for (int width = 16; width > 0; width /= 2) value += __shfl_xor_sync(0xffffffffu, value, width);
  return value;
}

// w_s = exp(lse_s - L): d_o_s = w_s dO, d_lse_s = w_s (dO . (o_s - O) + dL).
template <class Number>
__global__ void __launch_bounds__(kMergeWarps * 32)
    merge_backward_kernel(const __grid_constant__ tessera_merge_args args, const __grid_constant__ MergeRows rows) {
  const int lane = threadIdx.x % 32, dim = args.head_dim_v;
  const auto merge = [&](int64_t row, int64_t index, const Number* lse, const core::MergedStates<Number>& merged) {
    const Number d_merged = args.d_lse_out != nullptr ? static_cast<const Number*>(args.d_lse_out)[index] : Number(0);
    for (int64_t s = 0; s < args.states; ++s) {
      const Number share = merged.weight(lse[s * rows.count]);
      const Number weight = share == Number(0) ? Number(0) : share / merged.sum;
      Number dot = 0;
      for (int c = lane; c < dim; c += 32) {
        const int64_t at = (s * rows.count + row) * dim + c;
        if (weight == Number(0)) {
          store_number(args.d_o, args.dtype, at, Number(0));
          continue;
        }
        const Number d = load_number<Number>(args.d_o_out, args.out_dtype, row * dim + c);
        dot += d * (load_number<Number>(args.o, args.dtype, at) -
                    load_number<Number>(args.o_out, args.out_dtype, row * dim + c));
        store_number(args.d_o, args.dtype, at, weight * d);
      }
      dot = warp_sum(dot);
      if (lane == 0) {
        static_cast<Number*>(args.d_lse)[s * rows.count + index] =
            weight == Number(0) ? Number(0) : weight * (dot + d_merged);
      }
    }
  };
  for_each_row<Number>(args, rows, merge);
}

}  // namespace tessera::cuda
