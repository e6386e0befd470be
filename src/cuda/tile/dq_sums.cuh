// The float32 sums of dq in the workspace: how their fragments lie, and how a warp adds to one or reads it.
#pragma once

#include <cstdint>

#include "../ptx/atomic.cuh"
#include "semantics.hpp"

namespace tessera::cuda {

// Offset in dq_sum of the 16 x 8 fragment at (scratch row, column) of one head. A lane's four floats lie together where
// one instruction adds them, else 32 floats apart, so that a warp's addition of one of them covers 128 bytes.
TESSERA_HD int64_t dq_fragment(int64_t scratch_rows, int64_t head, int64_t row, int column, int head_dim) {
  return ((head * scratch_rows + row) / 16 * (head_dim / 8) + column / 8) * 128;
}

// The same where dq^T is what lies in fragments, 16 columns x 8 rows: a lane's four floats lie together.
TESSERA_HD int64_t dq_transposed_fragment(int64_t scratch_rows, int64_t head, int64_t row, int column, int head_dim) {
  return ((head * scratch_rows + row) / 8 * (head_dim / 16) + column / 16) * 128;
}

// Rows of a head that a warp of the main kernel converts at a time, 8 KB of sums or 6.
template <int kDim>
inline constexpr int kConversionRows = 256 / kDim * 8;

__device__ __forceinline__ void load_four(float (&values)[4], const float* from) {
  const float4 four = *reinterpret_cast<const float4*>(from);
  values[0] = four.x;
  values[1] = four.y;
  values[2] = four.z;
  values[3] = four.w;
}

// A warp's fragment of dq is added to the one of the sums at `sums`, or read there; they lie as dq_fragment() says.
__device__ __forceinline__ void add_dq_fragment(float* sums, const float (&fragment)[4]) {
  const int lane = threadIdx.x % 32;
  if (ptx::has_reduce_add_v4()) {
    ptx::reduce_add_v4(sums + lane * 4, fragment);
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e) ptx::reduce_add(sums + lane + e * 32, fragment[e]);
  }
}
__device__ __forceinline__ void load_dq_fragment(float (&fragment)[4], const float* sums) {
  const int lane = threadIdx.x % 32;
  if (ptx::has_reduce_add_v4()) {
    load_four(fragment, sums + lane * 4);
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e) fragment[e] = sums[lane + e * 32];
  }
}

}  // namespace tessera::cuda
