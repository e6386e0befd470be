// Which work a block does: its place in the grid (Schedule) and where its sequence lies in memory. Whatever lengths,
// page tables and cumulative lengths hold, the ranges made here stay inside the arrays. Compiles on host and device.
#pragma once

#include "../forward_params.hpp"
#include "semantics.hpp"

namespace tessera::cuda {

struct WorkItem {
  uint32_t query_block, head_batch;
};

TESSERA_HD WorkItem locate_block(const Schedule& schedule, uint32_t block) {
  const uint32_t first = schedule.remainder * schedule.query_blocks;
  uint32_t begin = 0;
  Divisor by_size = schedule.by_remainder;
  if (block >= first) {
    const uint32_t index = schedule.by_group_blocks.divide(block - first);
    block -= first + index * schedule.by_group_blocks.value;
    begin = schedule.remainder + index * schedule.group;
    by_size = schedule.by_group;
  }
  const uint32_t from_last = by_size.divide(block);
  return {schedule.query_blocks - 1 - from_last, begin + block - from_last * by_size.value};
}

TESSERA_HD int64_t clamp_to(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : (value > high ? high : value);
}

// One sequence: its rows of q, o and lse, and the keys that this block's split sees. Keys are counted from first_key;
// `band` is in those coordinates.
struct SequenceView {
  int64_t q_row, rows_q;      // first row of q and o; rows that the sequence owns, those past band.seqlen_q are empty
  int64_t q_batch, kv_batch;  // batch index of dense q, o and of dense k, v
  int64_t kv_row;             // packed and dense: row of the first key; paged: its slot
  int64_t first_key;
  const int32_t* pages;  // null: not paged
  core::Band band;
};

// How far a block has counted the tiles of packed sequences: `before` of all heads lie before sequence `batch`.
struct PackedCursor {
  uint32_t batch = 0, before = 0;
};

// Rows of q and o that belong to a packed sequence.
TESSERA_HD core::Range packed_rows(const ForwardParams& p, uint32_t batch) {
  const int64_t begin = clamp_to(p.cu_seqlens_q[batch], 0, p.total_q);
  return {begin, clamp_to(p.cu_seqlens_q[batch + 1], begin, p.total_q)};
}

// Used length of a sequence that had `stored` keys before the run appended `added`.
TESSERA_HD int64_t used_keys(int64_t stored, int64_t added, int64_t capacity) {
  return clamp_to(clamp_to(stored, 0, capacity) + added, 0, capacity);
}
// The same as seqused_k and the rows of this run have it.
TESSERA_HD int64_t used_keys(const ForwardParams& p, uint32_t batch, int64_t capacity) {
  int64_t count = p.seqlen_new;
  if (p.cu_seqlens_new != nullptr)
    count = clamp_to(int64_t{p.cu_seqlens_new[batch + 1]} - p.cu_seqlens_new[batch], 0, p.seqlen_new);
  return used_keys(p.seqused_k[batch], count, capacity);
}

// Written field by field: where `view` lies in shared memory, no register has to hold it. kDense: q, k and v are dense
// and whole, one cache row a batch, so that nothing is looked up. kBackward: no pages,
// batch_idx, leftpad or splits, which backward refuses.
template <bool kDense, bool kBackward = false>
TESSERA_HD void locate_sequence(const ForwardParams& p, uint32_t batch, int split, SequenceView& view) {
  view.q_batch = batch;
  view.q_row = view.kv_batch = view.kv_row = view.first_key = 0;
  view.pages = nullptr;
  view.rows_q = p.seqlen_q;
  if (!kDense && p.cu_seqlens_q != nullptr) {
    const core::Range rows = packed_rows(p, batch);
    view.q_batch = 0;
    view.q_row = rows.begin;
    view.rows_q = rows.size();
  }
  const int64_t seqlen_q =
      !kDense && p.seqused_q != nullptr ? clamp_to(p.seqused_q[batch], 0, view.rows_q) : view.rows_q;

  int64_t capacity = p.seqlen_k;
  if (kDense) {
    view.kv_batch = batch;
  } else if (p.cu_seqlens_k != nullptr) {
    view.kv_row = clamp_to(p.cu_seqlens_k[batch], 0, p.total_k);
    capacity = clamp_to(p.cu_seqlens_k[batch + 1], view.kv_row, p.total_k) - view.kv_row;
  } else if (!kBackward && p.page_size != 0) {
    view.pages = p.page_table + batch * p.page_table_stride;
    capacity = clamp_to(p.seqlen_k, 0, int64_t{p.max_pages} * p.page_size);
  } else {
    view.kv_batch = !kBackward && p.batch_idx != nullptr ? clamp_to(p.batch_idx[batch], 0, p.batch_kv - 1) : batch;
  }
  const int64_t used = !kDense && p.seqused_k != nullptr ? used_keys(p, batch, capacity) : capacity;
  const int64_t leftpad = !kDense && !kBackward && p.leftpad != nullptr ? clamp_to(p.leftpad[batch], 0, used) : 0;
  const int64_t seqlen_k = used - leftpad;
  view.kv_row += leftpad;
  view.band = core::make_band(seqlen_q, seqlen_k, p.left, p.right, p.top_left);
  if (!kDense && !kBackward && p.num_splits > 1) {
    const core::Range keys = core::split_keys(seqlen_k, p.num_splits, split);
    view.first_key = keys.begin;
    view.kv_row += keys.begin;
    view.band.offset -= keys.begin;
    view.band.seqlen_k = keys.size();
  }
}
TESSERA_HD SequenceView locate_sequence(const ForwardParams& p, uint32_t batch, int split) {
  SequenceView view;
  locate_sequence<false>(p, batch, split, view);
  return view;
}

// What all threads of a block share; kept in shared memory, since registers are what bounds a tile.
struct BlockView {
  SequenceView sequence;
  core::TileRange tiles;
  int32_t head_kv;
  const char *k, *v;  // row 0 of the key/value head (dense: of the batch row; packed: of the array; paged: of page 0)
  int64_t bias_row0;  // element of (batch, head, row 0, first key) of the bias
  float slope;
};

// kBytes: of an element of k and v.
template <bool kDense, int kBytes = 2>
TESSERA_HD void view_block(const ForwardParams& p, uint32_t batch, uint32_t head, int split, int64_t first_row,
                           int tile_m, int tile_n, BlockView& view) {
  locate_sequence<kDense>(p, batch, split, view.sequence);
  view.tiles = view.sequence.band.visible_tiles(first_row, first_row + tile_m, tile_n);
  const int64_t head_kv = head / static_cast<uint32_t>(p.group);
  view.head_kv = static_cast<int32_t>(head_kv);
  view.k =
      static_cast<const char*>(p.k) + kBytes * (view.sequence.kv_batch * p.k_stride.batch + head_kv * p.k_stride.head);
  view.v =
      static_cast<const char*>(p.v) + kBytes * (view.sequence.kv_batch * p.v_stride.batch + head_kv * p.v_stride.head);
  view.bias_row0 = batch * p.bias_stride[0] + head * p.bias_stride[1] + view.sequence.first_key * p.bias_stride[3];
  view.slope = p.alibi_slopes != nullptr ? p.alibi_slopes[batch * p.alibi_stride + head] : 0.0f;
}

}  // namespace tessera::cuda
