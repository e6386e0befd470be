// What the launches of a quantisation hand their kernels by value. Host and device.
#pragma once

#include <cstdint>

#include "divisor.hpp"
#include "forward_params.hpp"

namespace tessera::cuda {

inline constexpr int kQuantizeThreads = 256;
inline constexpr int kQuantizeRows = 128;  // of one head, a block's
inline constexpr int kHeldChannels = 16;   // of a row, which a thread of quantize_held.cuh keeps in registers
inline constexpr int kMostHeldDim = 256;
inline constexpr int kQuantizeMeanChannels = 64;  // of one head, a block's of the means
inline constexpr int kQuantizeMeanThreads = 1024;
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
  uint32_t negated[16];                 // a bit a channel: the rotation turns its sign
  Divisor by_heads, by_batch, by_held;  // by_held: head_dim / 16
  float limit, rotation_unit, cell_value;
  int32_t batch, heads, dim, tiles;  // tiles of 128 rows in the longest sequence
  int32_t x_dtype, y_dtype, scale_rows, rotation;
  bool ordered, x_aligned, y_aligned;
  bool held;      // quantize_held.cuh takes it
  bool reversed;  // blocks are numbered from the last
};

}  // namespace tessera::cuda
