// Masking by the band with fewer instructions than `mask_row` of tile/score.cuh, at the price of registers: a word a
// row, of which predicates come seven at a time. The mma.sync kernel of d 64 has no register left for it.
#pragma once

#include <cmath>
#include <cstdint>

#include "../tile/score.cuh"

namespace tessera::cuda::sm90 {

// Calls advance.operator()<kMasked>(tile) for the tiles [tile, end), of which [unmasked_begin, unmasked_end) need no
// mask. Returns the first that it was not called for.
template <class Advance>
__device__ __forceinline__ int for_each_tile(int tile, int unmasked_begin, int unmasked_end, int end,
                                             const Advance& advance) {
#pragma unroll 1
  for (; tile < unmasked_begin; ++tile) advance.template operator()<true>(tile);
#pragma unroll 1
  for (; tile < unmasked_end; ++tile) advance.template operator()<false>(tile);
#pragma unroll 1
  for (; tile < end; ++tile) advance.template operator()<true>(tile);
  return tile;
}

// One bit for each column of a row that this lane holds, in order: set where it lies before `column`.
__device__ __forceinline__ uint32_t columns_before(int column) {
  const int ahead = column - fragment_column(0, 0), part = ahead & 7;
  const int count = (ahead >> 3) * 2 + (part < 2 ? part : 2);
  return count <= 0 ? 0 : count < 32 ? ~(~0u << count) : ~0u;
}

// Replaces the scores of one row outside columns [begin, end) by -inf.
template <int kColumns>
__device__ __forceinline__ void keep_columns(float (&scores)[kColumns][4], int half, int begin, int end) {
  static_assert(kColumns <= 16);
  const uint32_t kept = columns_before(end) & ~columns_before(begin);
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float& score = scores[n][2 * half + e];
      score = (kept & 1u << (2 * n + e)) != 0 ? score : -INFINITY;
    }
  }
}

}  // namespace tessera::cuda::sm90
