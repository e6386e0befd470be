// End of a query tile of e4m3: a lane holds four neighbouring columns of every 16 (fp8_config.hpp), so its row
// leaves in 8 bytes of 16-bit numbers or 16 of float32 at a time, 32 or 64 bytes of a row an instruction.
#pragma once

#include "../ptx/math.cuh"
#include "../tile/output.cuh"
#include "control.cuh"
#include "fp8_softmax.cuh"

namespace tessera::cuda::sm90 {

// Where the two rows of a lane leave to, and of the row whose end this lane works at its place in the tile: even lanes
// work at their first row and odd ones at their second, so that one instruction serves both.
struct Fp8Places {
  char* o[2];      // at the first of this lane's columns: 4 of every 16
  int columns[2];  // of the row to be stored, from there on; 0 or less: none
  int row, head;
};

__device__ __forceinline__ bool ends_second() { return threadIdx.x % 2 != 0; }

// Of a warp whose first row of the tile is `first`.
__device__ __forceinline__ Fp8Places place_fp8_rows(const Params& params, const TileView& view, int first) {
  const ForwardParams& p = params.forward;
  const int quad = static_cast<int>(threadIdx.x % 4);
  Fp8Places out;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = first + fragment_row(0, half);
    const int row = static_cast<int>(params.by_pack.divide(r)), head = r - row * params.pack;
    const int64_t offset = row * p.o_stride.row + head * p.o_stride.head + 4 * quad;
    out.o[half] = view.o + (p.o_is_float ? 4 : 2) * offset;
    out.columns[half] = (view.first_row + row < view.sequence.rows_q ? p.head_dim_v : 0) - 4 * quad;
    if (half == 0 || ends_second()) {
      out.row = row;
      out.head = head;
    }
  }
  return out;
}

// The two rows of a lane on their way out: accumulators times `unit` plus `weight` of the mean.
struct Fp8Ends {
  float unit[2], weight[2];
  bool empty[2];  // o is +0, whatever the accumulators hold
};

// Completes the rows of a warp and writes lse. prob_unit: 2^-kShift of the shape.
__device__ __forceinline__ Fp8Ends end_fp8_rows(const Params& params, const TileView& view, const Fp8Places& places,
                                                const Fp8Rows& rows, const float (&scale)[2], float prob_unit) {
  const ForwardParams& p = params.forward;
  const SequenceView& s = view.sequence;
  Fp8Ends out;
  const bool second = ends_second();
  const auto mine = [second](auto a, auto b) { return second ? b : a; };
  const float sum = mine(rows.row_sum[0], rows.row_sum[1]) * prob_unit;
  const OutputRow row{view.first_row + places.row, view.split, view.head + places.head};
  const RowEnd end = end_row(p, s, row, mine(rows.row_max[0], rows.row_max[1]), sum, mine(scale[0], scale[1]));
  const float other = __shfl_xor_sync(0xffffffffu, end.factor, 1);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float factor = (half != 0) == second ? end.factor : other;
    out.unit[half] = factor * prob_unit * view.v_scale;
    out.weight[half] = factor * (rows.row_sum[half] * prob_unit);
    out.empty[half] = factor == 0.0f;
  }
  // By lane 0 of the first row and lane 1 of the second.
  if (view.lse != nullptr && threadIdx.x % 4 < 2 && row.row < s.rows_q) {
    const int64_t lse_head = p.cu_seqlens_q != nullptr ? p.total_q : p.seqlen_q;
    view.lse[places.head * lse_head + places.row] =
        row.row >= s.band.seqlen_q ? -INFINITY : core::lse_from_base2(end.base, end.sum);
  }
  return out;
}

// `mean`: of v's columns, where kMean says that it was taken out of them. What kind of rows they are is asked once a
// tile: the tensor cores wait for every instruction here.
template <int kDtype, bool kMean, int kColumns>
__device__ __forceinline__ void store_fp8_rows(const Fp8Places& places, const Fp8Ends& rows,
                                               const float (&acc)[kColumns][4], const float* mean) {
  // Row r of V^T's upper half is column 2 r, of the lower half 2 r + 1.
  constexpr int kHalf = kColumns / 2;
  if (kMean) mean += threadIdx.x % 4 * 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int n = 0; n < kHalf; ++n) {
      const bool inside = 16 * n < places.columns[half];
      float x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[i] = fmaf(acc[n + i % 2 * kHalf][2 * half + i / 2], rows.unit[half], 0.0f);  // never -0, where v_scale is 0
        if (kMean && inside) x[i] = fmaf(mean[16 * n + i], rows.weight[half], x[i]);
      }
      if constexpr (kDtype == TESSERA_F32) {
        if (inside) *reinterpret_cast<float4*>(places.o[half] + 64 * n) = make_float4(x[0], x[1], x[2], x[3]);
      } else {
        const uint2 words = kDtype == TESSERA_BF16 ? make_uint2(ptx::pack_bf16(x[0], x[1]), ptx::pack_bf16(x[2], x[3]))
                                                   : make_uint2(ptx::pack_f16(x[0], x[1]), ptx::pack_f16(x[2], x[3]));
        if (inside) *reinterpret_cast<uint2*>(places.o[half] + 32 * n) = words;
      }
    }
  }
}

template <int kDtype, int kColumns>
__device__ __forceinline__ void store_fp8_rows(const float* mean, const Fp8Places& places, const Fp8Ends& rows,
                                               const float (&acc)[kColumns][4]) {
  if (mean == nullptr) [[likely]] {
    store_fp8_rows<kDtype, false>(places, rows, acc, nullptr);
  } else {
    store_fp8_rows<kDtype, true>(places, rows, acc, mean);
  }
}

// Rows that are +0 are made so in `acc`.
template <int kColumns>
__device__ __forceinline__ void fp8_epilogue(const Params& params, const TileView& view, const Fp8Places& places,
                                             float (&acc)[kColumns][4], const Fp8Rows& rows, const float (&scale)[2],
                                             float prob_unit) {
  const ForwardParams& p = params.forward;
  Fp8Ends ends = end_fp8_rows(params, view, places, rows, scale, prob_unit);
  const float* mean = params.fp8.v_mean;
  if (mean != nullptr) mean += key_batch(p, view) * params.fp8.v_mean_stride + int64_t{view.head_kv} * p.head_dim_v;
  if (__any_sync(0xffffffffu, ends.empty[0] || ends.empty[1])) [[unlikely]] {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (ends.empty[half]) {
        ends.unit[half] = ends.weight[half] = 0.0f;
#pragma unroll
        for (int n = 0; n < kColumns; ++n) acc[n][2 * half] = acc[n][2 * half + 1] = 0.0f;
      }
    }
  }
  if (p.o_is_float) [[unlikely]] {
    store_fp8_rows<TESSERA_F32>(mean, places, ends, acc);
  } else if (params.fp8.o_is_bf16) {
    store_fp8_rows<TESSERA_BF16>(mean, places, ends, acc);
  } else {
    store_fp8_rows<TESSERA_F16>(mean, places, ends, acc);
  }
}

}  // namespace tessera::cuda::sm90
