// End of a query tile: the rows of a warpgroup leave from the registers that accumulated them, so that the shared tiles
// are free for the next piece of work. A lane holds 2 of every 8 columns; four lanes trade 4 blocks of 8 among
// themselves, which makes 16-byte stores, 64 bytes of a row an instruction.
#pragma once

#include <cstdint>

#include "../tile/element.cuh"
#include "../tile/output.cuh"
#include "control.cuh"

namespace tessera::cuda::sm90 {

// words[i] of lane t of a quad to words[t] of lane i.
__device__ __forceinline__ void transpose_quad(uint32_t (&words)[4]) {
#pragma unroll
  for (int distance = 1; distance <= 2; distance *= 2) {
    const bool high = threadIdx.x & distance;
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      uint32_t& low_word = words[distance == 1 ? 2 * pair : pair];
      uint32_t& high_word = words[distance == 1 ? 2 * pair + 1 : pair + 2];
      const uint32_t received = __shfl_xor_sync(0xffffffffu, high ? low_word : high_word, distance);
      (high ? low_word : high_word) = received;
    }
  }
}

// Stores one row of a lane, elements 2 half and 2 half + 1 of its accumulators. `o`: column 0 of the row.
template <class Element, int kColumns>
__device__ __forceinline__ void store_row(const float (&acc)[kColumns][4], int half, float factor, char* o,
                                          int head_dim_v, bool exists) {
  static_assert(kColumns % 4 == 0);
#pragma unroll
  for (int n = 0; n < kColumns; n += 4) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i] = Element::pack(acc[n + i][2 * half] * factor, acc[n + i][2 * half + 1] * factor);
      if (factor == 0.0f) words[i] = 0;
    }
    transpose_quad(words);
    const int column = (n + static_cast<int>(threadIdx.x % 4)) * 8;
    if (exists && column < head_dim_v) {
      *reinterpret_cast<uint4*>(o + 2 * column) = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
}

template <int kColumns>
__device__ __forceinline__ void store_float_row(const float (&acc)[kColumns][4], int half, float factor, float* o,
                                                int head_dim_v, bool exists) {
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
    if (exists && n * 8 < head_dim_v) {
      *reinterpret_cast<float2*>(o + fragment_column(n, 0)) =
          make_float2(finished(acc[n][2 * half], factor), finished(acc[n][2 * half + 1], factor));
    }
  }
}

// `first`: the warp's first row of the tile.
template <class Element, int kColumns>
__device__ __forceinline__ void epilogue(const Params& params, const TileView& view, int first, float scale,
                                         const float (&acc)[kColumns][4], const RowStatistics<1>& rows) {
  const ForwardParams& p = params.forward;
  const SequenceView& s = view.sequence;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = first + fragment_row(0, half), row = params.pack == 1 ? r : r / params.pack;
    const OutputRow at{view.first_row + row, view.split, view.head + r - row * params.pack};
    const float factor = finish_row(p, s, at, rows.row_max[0][half], quad_sum(rows.row_sum[0][half]), scale);
    const bool exists = at.row < s.rows_q;
    const int64_t offset =
        s.q_batch * p.o_stride.batch + (s.q_row + at.row) * p.o_stride.row + at.head * p.o_stride.head;
    if (p.o_is_float) {
      float* o = static_cast<float*>(p.o) + at.split * p.o_split_stride + offset;
      store_float_row(acc, half, factor, o, p.head_dim_v, exists);
    } else {
      store_row<Element>(acc, half, factor, static_cast<char*>(p.o) + 2 * offset, p.head_dim_v, exists);
    }
  }
}

}  // namespace tessera::cuda::sm90
