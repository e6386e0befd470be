// What the launches of a quantisation hand their kernels by value. Host and device.
#pragma once

#include <cstdint>

#include "forward_params.hpp"

namespace tessera::cuda {

inline constexpr int kQuantizeThreads = 256;
inline constexpr int kQuantizeRows = 128;         // of one head, a block's
inline constexpr int kQuantizeMeanChannels = 64;  // of one head, a block's of the means
// Bytes of a channel's 128 slots in shared memory: 33 words, so that neighbouring channels fall into different banks.
inline constexpr int kQuantizePitch = kQuantizeRows + 4;

struct QuantizeParams {
  const void* x;
  void* y;
  float *scale, *mean;  // null: none
  const int32_t* cu_seqlens;
  Strides x_stride, y_stride;  // order 1: y_stride.row lies between channels
  int64_t scale_stride[3], cells[3];
  int64_t seqlen, total;
  uint32_t negated[16];  // a bit a channel: the rotation turns its sign
  float limit, rotation_unit;
  int32_t batch, heads, dim, tiles;  // tiles of 128 rows in the longest sequence
  int32_t x_dtype, y_dtype, scale_rows, rotation;
  bool ordered, x_aligned, y_aligned;
};

}  // namespace tessera::cuda
