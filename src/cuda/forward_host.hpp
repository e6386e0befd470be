// What the host sides of the CUDA kernels share, those of backward through backward_host.hpp: what all of them refuse,
// how many blocks and bytes a problem makes, and the parameters of a launch. A kernel's own planning is in its
// architecture's folder.
#pragma once

#include <cstddef>
#include <cstdint>

#include "decode_params.hpp"
#include "forward_params.hpp"
#include "kernel_entry.hpp"

namespace tessera::cuda {

inline constexpr int64_t kMaxInt = 0x7fffffff;

// Plain scores are q k^T times a positive scale that float32 holds without loss of range.
bool is_plain(const core::Problem& p);

// The other pass than `pass`, and dtypes, head dims and features of q, k, v and o that no CUDA kernel takes. `bytes`:
// int8 and e4m3 caches are taken.
core::Refusal refuse_operands(const core::Problem& p, int32_t pass, bool bytes = false);
// Counts that do not fit the kernels' 32-bit indices, at tile_m query rows a block.
core::Refusal refuse_sizes(const core::Problem& p, int32_t tile_m);
// Rows must start at multiples of 16 bytes: every stride that is used, and the addresses; in backward also those of the
// gradients.
core::Refusal refuse_layout(const core::Problem& p);

// The index of the first bucket that holds both head dims; the last one is 256, and no more pass refuse_operands.
// (An array, not a span: GCC 12 loses the address of a local one.)
template <size_t kCount>
size_t head_dim_bucket(const int32_t (&buckets)[kCount], const core::Problem& p) {
  size_t index = 0;
  while (buckets[index] < p.head_dim_qk || buckets[index] < p.head_dim_v) ++index;
  return index;
}
inline int64_t query_blocks(const core::Problem& p, int64_t tile_m) { return (p.seqlen_q + tile_m - 1) / tile_m; }
// Arrays of a workspace start at multiples of 256 bytes.
inline int64_t align_256(int64_t bytes) { return (bytes + 255) / 256 * 256; }
inline int64_t splits(const core::Problem& p) { return p.num_splits > 1 ? p.num_splits : 1; }
// Bytes of the partial states of n splits, each part a multiple of 256.
int64_t partial_o_bytes(const core::Problem& p, int64_t n);
int64_t partial_lse_bytes(const core::Problem& p, int64_t n);

// Batches and rows of the operands as they lie: packed rows are one batch, pages are batches.
struct Extents {
  int64_t batches_q, rows_q, batches_k, rows_k;
};
Extents extents(const core::Problem& p);
// Rows that v's row stride counts: channels under v_order 1.
int64_t value_rows(const core::Problem& p);
// The strides of an operand of `batches` x `rows` x `heads`; those of dims of size 1 are 0.
Strides strides(const core::Operand& operand, int64_t batches, int64_t rows, int64_t heads);

// Scales as kernels read them; `data` may be null.
inline CacheScale scale_of(const float* data, const core::ScaleOperand& scale) {
  return {data, {scale.stride[0], scale.stride[1], scale.stride[2]}, Divisor(static_cast<uint32_t>(scale.rows))};
}

// Heads of one batch after another, `heads` of them, as many together as leave K and V in half of L2 (the other half is
// for what streams by), in multiples of `unit`. Where all query blocks cost the same there is nothing to balance, and a
// wave of `wave_blocks` at a time keeps every K and V row that is read close in time to its other readers.
int32_t heads_together(const core::Problem& p, int64_t l2_bytes, int64_t heads, int64_t unit, int64_t blocks,
                       int64_t wave_blocks);

// The parameters of one launch without its schedule.
ForwardParams make_params(const core::Problem& p, const tessera_tensors& tensors);
// The same launch writing n partial states: float32, contiguous, without sinks.
ForwardParams make_partial(const core::Problem& p, const ForwardParams& params, int32_t n, std::byte* workspace);

}  // namespace tessera::cuda
