// End of a query tile of e4m3: a lane holds four neighbouring columns of every 16 (fp8_config.hpp), so its row
// leaves in 8 bytes of 16-bit numbers or 16 of float32 at a time, 32 or 64 bytes of a row an instruction.
#pragma once

#include "../ptx/math.cuh"
#include "../tile/output.cuh"
#include "control.cuh"
#include "fp8_softmax.cuh"

namespace tessera::cuda::sm90 {

// One row of a lane: accumulators times `unit` plus `weight` of the mean; `empty`: +0.
struct Fp8Row {
  float unit, weight;
  int64_t offset;  // of column 0, in elements of o
  bool empty, exists;
};

// `mean`: of v's columns, where kMean says that it was taken out of them. What kind of row it is is asked once a tile:
// the tensor cores wait for every instruction here.
template <int kDtype, bool kMean, int kColumns>
__device__ __forceinline__ void store_fp8_row(const ForwardParams& p, const float (&acc)[kColumns][4], int half,
                                              const Fp8Row& row, const float* mean) {
  if (!row.exists) return;
  // Row r of V^T's upper half is column 2 r, of the lower half 2 r + 1.
  constexpr int kHalf = kColumns / 2;
  const int first = static_cast<int>(threadIdx.x % 4) * 4;
  char* const o = static_cast<char*>(p.o) + (row.offset + first) * (kDtype == TESSERA_F32 ? 4 : 2);
#pragma unroll
  for (int n = 0; n < kHalf; ++n) {
    if (16 * n + first >= p.head_dim_v) continue;
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[i] = fmaf(acc[n + i % 2 * kHalf][2 * half + i / 2], row.unit, 0.0f);  // never -0, where v_scale is 0
      if (kMean) x[i] = fmaf(mean[16 * n + first + i], row.weight, x[i]);
      if (row.empty) x[i] = 0.0f;
    }
    if constexpr (kDtype == TESSERA_F32) {
      *reinterpret_cast<float4*>(o + 64 * n) = make_float4(x[0], x[1], x[2], x[3]);
    } else if constexpr (kDtype == TESSERA_BF16) {
      *reinterpret_cast<uint2*>(o + 32 * n) = make_uint2(ptx::pack_bf16(x[0], x[1]), ptx::pack_bf16(x[2], x[3]));
    } else {
      *reinterpret_cast<uint2*>(o + 32 * n) = make_uint2(ptx::pack_f16(x[0], x[1]), ptx::pack_f16(x[2], x[3]));
    }
  }
}

template <int kDtype, int kColumns>
__device__ __forceinline__ void store_fp8_rows(const Params& params, const TileView& view,
                                               const float (&acc)[kColumns][4], const Fp8Row (&rows)[2]) {
  const ForwardParams& p = params.forward;
  if (params.fp8.v_mean == nullptr) {
#pragma unroll
    for (int half = 0; half < 2; ++half) store_fp8_row<kDtype, false>(p, acc, half, rows[half], nullptr);
  } else {
    const float* mean =
        params.fp8.v_mean + key_batch(p, view) * params.fp8.v_mean_stride + int64_t{view.head_kv} * p.head_dim_v;
#pragma unroll
    for (int half = 0; half < 2; ++half) store_fp8_row<kDtype, true>(p, acc, half, rows[half], mean);
  }
}

// `first`: the warp's first row of the tile.
template <int kColumns>
__device__ __forceinline__ void fp8_epilogue(const Params& params, const TileView& view, int first,
                                             const float (&acc)[kColumns][4], const Fp8Rows& rows,
                                             const float (&scale)[2]) {
  const ForwardParams& p = params.forward;
  const SequenceView& s = view.sequence;
  Fp8Row out[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = first + fragment_row(0, half), row = params.pack == 1 ? r : r / params.pack;
    const OutputRow at{view.first_row + row, view.split, view.head + r - row * params.pack};
    const float sum = rows.row_sum[half] * kProbUnit;
    const float factor = finish_row(p, s, at, rows.row_max[half], sum, scale[half]);
    out[half] = {factor * kProbUnit * view.v_scale, factor * sum,
                 at.split * p.o_split_stride + s.q_batch * p.o_stride.batch + (s.q_row + at.row) * p.o_stride.row +
                     at.head * p.o_stride.head,
                 factor == 0.0f, at.row < s.rows_q};
  }
  if (p.o_is_float) {
    store_fp8_rows<TESSERA_F32>(params, view, acc, out);
  } else if (params.fp8.o_is_bf16) {
    store_fp8_rows<TESSERA_BF16>(params, view, acc, out);
  } else {
    store_fp8_rows<TESSERA_F16>(params, view, acc, out);
  }
}

}  // namespace tessera::cuda::sm90
