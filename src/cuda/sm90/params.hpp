// What a launch of the sm90 forward hands its kernel by value. Host and device.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "../decode_params.hpp"
#include "../divisor.hpp"
#include "../forward_params.hpp"
#include "semantics.hpp"

namespace tessera::cuda::sm90 {

// Hands out the pieces of work of one launch in order; in the workspace, whose contents nobody has set.
// `run` names the launch that the counts belong to, plus 1 while they are being set, and is 0 after it.
struct Tickets {
  uint64_t run;
  uint32_t next, finished;
};

// What e4m3 has beside its elements: value = element * scale, and what was taken from v before it was rounded.
struct Fp8Params {
  CacheScale q_scale, k_scale, v_scale;
  const float* v_mean;  // [heads_kv, head_dim_v]; null: none
  int64_t v_mean_stride;
  bool o_is_bf16;        // else f16, where o is not float
  bool v_ordered;        // v is V^T, of v_order 1
  bool q_scaled_by_row;  // the rows of a tile may differ in their scale
};

struct Params {
  // q: (column, head of the pack, row, pack, batch); k, v: (column, row or slot, head, batch or page).
  CUtensorMap q_map, k_map, v_map;
  ForwardParams forward;  // its schedule counts packs of query heads
  int32_t pack;         // query heads of one key/value head that share a tile: row r is query r / pack of head r % pack
  int32_t packs;        // heads_q / pack
  int32_t tile_rows;    // of queries in a tile: kTileM / pack
  int32_t kv_box_rows;  // rows of one copy of K or V; 0: the rows are gathered
  bool kv_bounded;      // the tensor maps end where the keys of every sequence end
  Tickets* tickets;     // null: a block has one piece of work
  uint64_t run;         // of tickets: even, unlike any other launch's
  uint32_t ahead;       // 1: a block looks for the piece of work after the next while it is at one; 0: for the next
  Divisor by_pack, by_packs;
  Fp8Params fp8;     // of e4m3 alone
  bool whole;        // dense q, k and v, whole, in one split, plain scores
  core::Band band;   // of every sequence, if so
  Divisor by_group;  // query heads of one key/value head
};

}  // namespace tessera::cuda::sm90
