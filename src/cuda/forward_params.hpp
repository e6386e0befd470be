// What a forward launch hands its kernel by value: pointers of the run and numbers of the plan. Host and device.
#pragma once

#include <cstdint>

#include "divisor.hpp"

namespace tessera::cuda {

// Elements between neighbours; batch is pages where K and V are paged.
struct Strides {
  int64_t batch, row, head;
};

// The grid as one line of blocks: head-batches in groups whose K and V fit the L2 cache, within a group the query
// blocks from last to first (heaviest first under a causal band), within those the head-batches. The remainder group
// comes first, so the last blocks of the grid are light ones of a full group.
struct Schedule {
  uint32_t query_blocks;  // of the longest sequence
  uint32_t head_batches;  // batch * heads_q
  uint32_t group;         // head-batches a group
  uint32_t remainder;     // head_batches % group
  Divisor by_group_blocks, by_group, by_remainder;

  Schedule() = default;
  Schedule(uint32_t blocks, uint32_t heads, uint32_t together)
      : query_blocks(blocks),
        head_batches(heads),
        group(together),
        remainder(heads % together),
        by_group_blocks(together * blocks),
        by_group(together),
        by_remainder(remainder) {}
};

struct ForwardParams {
  const void *q, *k, *v;
  void* o;
  float* lse;  // null: not wanted
  const int32_t *cu_seqlens_q, *cu_seqlens_k, *seqused_q, *seqused_k, *page_table, *leftpad, *batch_idx;
  const int32_t* cu_seqlens_new;  // a run that appends: seqused_k are the lengths before, and keys come behind them;
  int64_t seqlen_new;             // null: seqlen_new each, 0 where nothing is appended
  const float *alibi_slopes, *sinks;
  const void* bias;
  Strides q_stride, k_stride, v_stride, o_stride;
  int64_t bias_stride[4];
  int64_t page_table_stride, alibi_stride, total_q, total_k, left, right;
  int32_t seqlen_q, seqlen_k, batch_kv, heads_q, group, head_dim_qk, head_dim_v;
  int32_t num_pages, max_pages, page_size;  // page_size 0: not paged
  int32_t bias_dtype;                       // 0: none
  int32_t num_splits;                       // above 1: o and lse are partial states, float32, [split, ...] contiguous
  int64_t o_split_stride, lse_split_stride;
  float scale, scale_log2, softcap;
  bool top_left, o_is_float;
  Schedule schedule;
};

}  // namespace tessera::cuda
