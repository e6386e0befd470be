// What the launch of an append hands its kernel by value. Host and device.
#pragma once

#include <cstdint>

#include "divisor.hpp"
#include "forward_params.hpp"

namespace tessera::cuda {

inline constexpr int kAppendThreads = 256;
inline constexpr int kAppendUnit = 8;  // elements, or pairs, of a thread

// New rows of k or of v on their way into the cache, or rows of q on theirs to q_rotated.
struct AppendRows {
  const void* from;
  void* to;
  const float* scale;  // of a quantised cache; null: 1
  Strides from_stride, to_stride;
  int64_t scale_stride[3];
  int64_t rows;  // of all sequences together
  int32_t from_dtype, to_dtype, dim;
  int32_t pairs;             // that are turned, from element 0 on
  int32_t turned_units;      // of a head's row
  Divisor units, row_units;  // of a head's row, and of all heads' together
  Divisor scale_rows;        // 0: one block of scales is for all rows
  int32_t rows_per_block;
  uint32_t first_block;
  bool turned_aligned, plain_aligned;  // whole units are 16-byte accesses
};

struct AppendParams {
  AppendRows rows[3];  // k, v, q
  const int32_t *seqused_k, *page_table, *batch_idx, *cu_seqlens_new, *cu_seqlens_q, *seqused_q;
  const void *cos, *sin;
  int64_t page_table_stride, capacity;  // capacity: rows that a sequence may have, below 2^31
  int64_t rotary_seqlen;
  int32_t batch, batch_kv, num_pages;
  Divisor seqlen_new, seqlen_q, page_size;  // page_size 0: not paged
  int32_t rotary_dtype, rotary_interleaved;
  bool banded, tables_aligned;
};

}  // namespace tessera::cuda
