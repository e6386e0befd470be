// End of a query tile of e4m3: a lane holds four neighbouring columns of every 16 (fp8_config.hpp), so its row
// leaves in 8 bytes of 16-bit numbers or 16 of float32 at a time, 32 or 64 bytes of a row an instruction.
#pragma once

#include "../ptx/math.cuh"
#include "../tile/output.cuh"
#include "fp8_softmax.cuh"

namespace tessera::cuda::sm90 {

// The row of the scales and of v's mean that belongs to the keys of a view: the sequence where they are packed.
__device__ __forceinline__ int64_t key_batch(const ForwardParams& p, const TileView& view) {
  return p.cu_seqlens_k != nullptr ? view.batch : view.sequence.kv_batch;
}

// One row of a lane: accumulators times `unit` plus `weight` of the mean; `empty`: +0.
struct Fp8Row {
  float unit, weight;
  bool empty, exists;
  const float* mean;  // null: none
};

template <int kColumns>
__device__ __forceinline__ void store_fp8_row(const Params& params, const float (&acc)[kColumns][4], int half,
                                              const Fp8Row& row, int64_t offset) {
  const ForwardParams& p = params.forward;
  // Row r of V^T's upper half is column 2 r, of the lower half 2 r + 1.
  constexpr int kHalf = kColumns / 2;
#pragma unroll
  for (int n = 0; n < kHalf; ++n) {
    const int column = 16 * n + static_cast<int>(threadIdx.x % 4) * 4;
    if (!row.exists || column >= p.head_dim_v) continue;
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[i] = fmaf(acc[n + i % 2 * kHalf][2 * half + i / 2], row.unit, 0.0f);  // never -0, where v_scale is 0
      if (row.mean != nullptr) x[i] = fmaf(row.mean[column + i], row.weight, x[i]);
      if (row.empty) x[i] = 0.0f;
    }
    if (p.o_is_float) {
      *reinterpret_cast<float4*>(static_cast<float*>(p.o) + offset + column) = make_float4(x[0], x[1], x[2], x[3]);
    } else {
      const bool bf16 = params.fp8.o_is_bf16;
      *reinterpret_cast<uint2*>(static_cast<char*>(p.o) + 2 * (offset + column)) =
          bf16 ? make_uint2(ptx::pack_bf16(x[0], x[1]), ptx::pack_bf16(x[2], x[3]))
               : make_uint2(ptx::pack_f16(x[0], x[1]), ptx::pack_f16(x[2], x[3]));
    }
  }
}

// `first`: the warp's first row of the tile.
template <int kColumns>
__device__ __forceinline__ void fp8_epilogue(const Params& params, const TileView& view, int first,
                                             const float (&acc)[kColumns][4], const Fp8Rows& rows,
                                             const float (&scale)[2], float v_scale) {
  const ForwardParams& p = params.forward;
  const Fp8Params& f = params.fp8;
  const SequenceView& s = view.sequence;
  const int64_t outer = key_batch(p, view), head_kv = view.head_kv;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = first + fragment_row(0, half), row = params.pack == 1 ? r : r / params.pack;
    const OutputRow at{view.first_row + row, view.split, view.head + r - row * params.pack};
    const float sum = rows.row_sum[half] * kProbUnit;
    const float factor = finish_row(p, s, at, rows.row_max[half], sum, scale[half]);
    const Fp8Row out{factor * kProbUnit * v_scale, factor * sum, factor == 0.0f, at.row < s.rows_q,
                     f.v_mean == nullptr ? nullptr : f.v_mean + outer * f.v_mean_stride + head_kv * p.head_dim_v};
    store_fp8_row(params, acc, half, out,
                  at.split * p.o_split_stride + s.q_batch * p.o_stride.batch + (s.q_row + at.row) * p.o_stride.row +
                      at.head * p.o_stride.head);
  }
}

}  // namespace tessera::cuda::sm90
