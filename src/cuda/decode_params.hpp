// What a decode launch hands its kernel by value, and which piece of work a block is. Host and device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "divisor.hpp"
#include "forward_params.hpp"
#include "semantics.hpp"

namespace tessera::cuda {

// Scales of a quantised cache: [batch or page, block of rows, head]; rows 0: one block for all rows.
struct CacheScale {
  const float* data;  // null: 1
  int64_t stride[3];
  Divisor rows;
};

// Rows of a key/value head are its queries times the heads of its group: row r is query r / group of head r % group.
// A unit is a row block of a (sequence, key/value head); a block of the grid takes one split of a unit's keys.
struct DecodeParams {
  ForwardParams f;  // num_splits 1: splits are cut here
  CacheScale k_scale, v_scale;
  int32_t row_tiles;   // tiles of rows a unit has: 1, 2 or 4, at most the warps of a block
  Divisor row_blocks;  // units a key/value head
  Divisor heads_kv, group, page_size;
  Divisor split_count;
  int32_t splits;
  int32_t state_rows;    // rows of a unit that a state has
  int32_t split_keys;    // keys a split; 0: a sequence's own length over `splits`
  bool general;          // softcap, bias, ALiBi or an unusual scale
  bool constant_scales;  // one of each head's keys and one of its values, or of a head in a sequence
  bool looks_up;         // lengths or places of sequences lie in memory
  bool guesses;          // seqused_k is all that is looked up: read ahead of its time, and once more in time
  bool whole;            // dense sequences as long as the problem says, without a band
  // Of several splits: states [unit][split][row][dim], their statistics [unit][split][row] (base, sum), and a counter a
  // unit, all in the workspace, whose contents nobody has set. `run` names the launch: its low 16 bits are 0.
  float* states;
  float2* statistics;
  unsigned long long* arrivals;
  unsigned long long run;
};

}  // namespace tessera::cuda
