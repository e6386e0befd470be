// Which unit and split a block of the decode kernel has, and where its keys lie. Whatever lengths and tables hold, the
// ranges made here stay inside the arrays.
#pragma once

#include <cstdint>

#include "../decode_params.hpp"
#include "../ptx/atomic.cuh"
#include "scheduler.cuh"
#include "semantics.hpp"

namespace tessera::cuda {

// What all threads of a block share. Keys are counted from the split's first.
struct DecodeView {
  SequenceView sequence;
  core::TileRange tiles;
  const char *k, *v;         // row 0 of the head (dense: of the cache row; packed: of the array; paged: of page 0)
  int64_t scale_row;         // of key 0, counted as row blocks of scales are; both of caches of bytes
  int64_t scale_outer;       // batch or cache row of the scales
  uint32_t rows, first_row;  // rows of the key/value head in this sequence; the unit's first
  uint32_t batch, head_kv, unit;
  int32_t split;
  int32_t used;  // what seqused_k held, where it is guessed
};

// What locate_sequence() makes of a sequence of which nothing but seqused_k is looked up, which holds `stored`.
__device__ __forceinline__ void locate_used(const ForwardParams& p, uint32_t batch, int32_t stored,
                                            SequenceView& view) {
  locate_sequence<true>(p, batch, 0, view);
  int64_t capacity = p.seqlen_k;
  if (p.page_size != 0) {
    view.kv_batch = 0;
    view.pages = p.page_table + batch * p.page_table_stride;
    capacity = clamp_to(capacity, 0, int64_t{p.max_pages} * p.page_size);
  }
  const int64_t used = used_keys(stored, p.seqlen_new, capacity);
  view.band = core::make_band(p.seqlen_q, used, p.left, p.right, p.top_left);
}

// Neighbours in the grid are the row blocks of a head, which share its keys in L2, then the heads, whose rows lie
// beside one another in memory, then the splits. Of all that is looked up, a launch before this one may still
// write seqused_k where that is guessed, and nothing else.
__device__ __forceinline__ void view_unit(const DecodeParams& p, uint32_t block, int block_rows, uint32_t tile_n,
                                          int cache_bytes, DecodeView& view) {
  const uint32_t rest = p.row_blocks.divide(block), row_block = block - rest * p.row_blocks.value;
  const uint32_t batch_split = p.heads_kv.divide(rest);
  view.head_kv = rest - batch_split * p.heads_kv.value;
  view.batch = p.split_count.divide(batch_split);
  view.split = static_cast<int32_t>(batch_split - view.batch * p.split_count.value);
  view.unit = (view.batch * p.heads_kv.value + view.head_kv) * p.row_blocks.value + row_block;

  SequenceView& sequence = view.sequence;
  if (p.whole) {
    locate_sequence<true>(p.f, view.batch, 0, sequence);
  } else if (p.guesses) {
    view.used = ptx::load_relaxed(p.f.seqused_k + view.batch);
    locate_used(p.f, view.batch, view.used, sequence);
  } else {
    locate_sequence<false>(p.f, view.batch, 0, sequence);
  }
  // core::split_keys() where they are not given. Splits end less than 2^21 keys behind the last one.
  const auto keys = static_cast<uint32_t>(sequence.band.seqlen_k);
  const uint32_t size = p.split_keys != 0 ? static_cast<uint32_t>(p.split_keys)
                                          : 64 * p.split_count.divide((keys + 63) / 64 + p.splits - 1);
  const uint32_t begin = static_cast<uint32_t>(view.split) * size, own_begin = begin < keys ? begin : keys;
  const uint32_t own_keys = size < keys - own_begin ? size : keys - own_begin;
  if (cache_bytes == 1) {
    // Packed scales count from the sequence's first row, all others from the cache row's.
    const bool packed = p.f.cu_seqlens_k != nullptr;
    const int64_t leftpad = p.f.leftpad != nullptr && packed ? clamp_to(p.f.leftpad[view.batch], 0, p.f.total_k) : 0;
    view.scale_outer = packed ? view.batch : sequence.kv_batch;
    view.scale_row = own_begin + (packed ? leftpad : sequence.kv_row);
  }
  sequence.first_key = own_begin;
  sequence.kv_row += own_begin;
  sequence.band.offset -= own_begin;
  sequence.band.seqlen_k = own_keys;

  const uint32_t group = p.group.value;
  view.rows = static_cast<uint32_t>(sequence.rows_q) * group;
  view.first_row = row_block * static_cast<uint32_t>(block_rows);
  if (p.whole) {
    const uint32_t full = own_keys / tile_n;
    view.tiles = {0, 0, full, full + (own_keys % tile_n != 0)};
  } else {
    const uint32_t end_row = view.first_row + static_cast<uint32_t>(block_rows);
    const uint32_t end = p.group.divide((end_row < view.rows ? end_row : view.rows) + group - 1);
    view.tiles = sequence.band.visible_tiles(p.group.divide(view.first_row), end, tile_n);
  }
  view.k = static_cast<const char*>(p.f.k) +
           cache_bytes * (sequence.kv_batch * p.f.k_stride.batch + view.head_kv * p.f.k_stride.head);
  view.v = static_cast<const char*>(p.f.v) +
           cache_bytes * (sequence.kv_batch * p.f.v_stride.batch + view.head_kv * p.f.v_stride.head);
}

}  // namespace tessera::cuda
