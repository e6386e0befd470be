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
inline constexpr int kHeldMeanChannels = 16;  // of one head, a block's where quantize_held_means.cuh takes them
// Shared memory of a thread of it: the larger share while a block stays within the 48 KB of any launch.
inline constexpr int kDeepMeanBytes = 128, kFlatMeanBytes = 64, kMostMeanBytes = 32768;
// Bytes of a channel's 128 slots in shared memory: 33 words, so that neighbouring channels fall into different banks.
inline constexpr int kQuantizePitch = kQuantizeRows + 4;

// Heads of sequences, whole cells, whose blocks are numbered head first, then sequence, then tile.
struct QuantizeGroup {
  int32_t batch, head;           // the first ones
  Divisor by_heads, by_batches;  // how many
};

struct QuantizeParams {
  const void* x;
  void* y;
  float *scale, *mean;  // null: none
  const int32_t* cu_seqlens;
  Strides x_stride, y_stride;  // order 1: y_stride.row lies between channels
  int64_t scale_stride[3], cells[3];
  int64_t seqlen, total;
  uint32_t negated[16];         // a bit a channel: the rotation turns its sign
  uint32_t negated_pairs[128];  // the sign bits of two 16-bit channels each
  QuantizeGroup find, store;    // whose largest magnitudes a launch looks for, and whose y it stores
  Divisor by_held;              // head_dim / 16
  float limit, rotation_unit, cell_value;
  int32_t batch, heads, dim, tiles;  // tiles of 128 rows in the longest sequence
  int32_t x_dtype, y_dtype, scale_rows, rotation;
  bool ordered, x_aligned, y_aligned;
  bool held;        // quantize_held.cuh takes it
  bool reversed;    // blocks are numbered from the last
  bool means_find;  // the held means' blocks find the largest magnitudes too
  // Of the launch: blocks that find, blocks that store. Where both are, they take turns.
  uint32_t find_blocks, store_blocks;
};

// How a call is cut into launches.
struct QuantizeCut {
  bool own_scales;         // no two blocks of 128 rows of a head share a scale
  bool overlaps;           // the device lets a launch begin before the one before it has ended
  int32_t batches, heads;  // of a group
  int32_t multiprocessors;
  int64_t shared_bytes;  // the most of a block
};

}  // namespace tessera::cuda
