// What a backward launch hands its kernels by value. Host and device.
#pragma once

#include <cstdint>

#include "forward_params.hpp"

namespace tessera::cuda {

// Rows of one preprocess or postprocess block; the scratch rows of a sequence are a multiple of kScratchRows, so that
// every tile of the main kernel finds whole tiles of statistics and of dq.
inline constexpr int kRowTile = 64, kScratchRows = 128;
// Turns are counted for every this many rows: no kernel's query tile is smaller.
inline constexpr int kTurnRows = 32;

// How far dq of the query heads of one key/value head of a sequence is, where the main kernel zeroes and converts its
// sums: slices of them claimed and zeroed, key tiles that have added, units of rows claimed for conversion.
struct HeadProgress {
  uint32_t slices_claimed;
  int32_t slices_zeroed, tiles_done;
  uint32_t units_claimed;
};

struct BackwardParams {
  ForwardParams f;  // operands, lengths and scores as in forward; o and lse are inputs, schedule is over key tiles
  const void* d_o;
  const float* d_lse;  // null: 0
  void *dq, *dk, *dv, *d_bias;
  float* d_sinks;  // null: not wanted
  Strides d_o_stride, dq_stride, dk_stride, dv_stride;
  int64_t d_bias_stride[4];
  int32_t d_bias_dtype;  // 0: not wanted
  bool dq_is_float, dk_is_float, dv_is_float, converts;

  // The workspace. [heads_q][scratch_rows] each: lse to base 2 (+inf for rows that add nothing) and
  // -delta, what is added to dP: d_lse - rowsum(d_o * o).
  float *lse, *minus_delta;
  // dq before scale, [heads_q][scratch_rows][head dim bucket], within that as the main kernel's fragments lie, see
  // dq_fragment() and dq_transposed_fragment().
  float* dq_sum;
  // The parts of d_sinks, [heads_q][batch][row_tiles].
  float* sink_sums;
  int32_t* turns;    // [heads_q][scratch_rows / kTurnRows]: key tiles added to dq; null: in any order
  uint32_t* ticket;  // key tiles taken, with turns or persistent blocks
  // [batch][heads_kv]; null: preprocess zeroes and postprocess converts all of dq's sums. Else every head is seen by
  // queries; the main kernel zeroes those from heads_ahead on and, if it `converts`, writes dq of heads that are done.
  HeadProgress* progress;
  int64_t scratch_rows;
  // The key tiles of the last key/value heads, whose order is the other way round, see locate_key_tile(); f.schedule
  // has those of all before.
  Schedule descending;
  int32_t batch, heads_kv, heads_ahead;
  int32_t row_tiles;  // of kRowTile rows, of the longest sequence
};

}  // namespace tessera::cuda
