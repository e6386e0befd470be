// Which work a block of the backward kernels does and where a sequence's scratch rows lie. Compiles on host and device.
#pragma once

#include "../backward_params.hpp"
#include "scheduler.cuh"

namespace tessera::cuda {

// Where a sequence lies, cut to the problem's maxima: grid and scratch are made for these, and a key tile that waits
// for its turn must not count on tiles that are never started. Packed lengths beyond them are wrong, but nobody checks
// them on the way to a run.
TESSERA_HD void locate_rows(const ForwardParams& p, uint32_t batch, SequenceView& view) {
  locate_sequence<false, true>(p, batch, 0, view);
  if (view.rows_q <= p.seqlen_q && view.band.seqlen_k <= p.seqlen_k) return;
  view.rows_q = clamp_to(view.rows_q, 0, p.seqlen_q);
  view.band = core::make_band(clamp_to(view.band.seqlen_q, 0, p.seqlen_q), clamp_to(view.band.seqlen_k, 0, p.seqlen_k),
                              p.left, p.right, p.top_left);
}

// Scratch row of a sequence's first query. Packed sequences begin at the next multiple of kScratchRows after what the
// ones before can need, so no prefix sum of rounded lengths is kept.
TESSERA_HD int64_t scratch_row(const ForwardParams& p, uint32_t batch, const SequenceView& sequence) {
  const int64_t rows = p.cu_seqlens_q != nullptr
                           ? sequence.q_row + int64_t{batch} * kScratchRows
                           : batch * ((int64_t{p.seqlen_q} + kScratchRows - 1) / kScratchRows * kScratchRows);
  return rows / kScratchRows * kScratchRows;
}
// Scratch rows of one head over all sequences.
TESSERA_HD int64_t count_scratch_rows(bool packed, int64_t batch, int64_t seqlen_q, int64_t total_q) {
  return packed ? (total_q + batch * kScratchRows) / kScratchRows * kScratchRows
                : batch * ((seqlen_q + kScratchRows - 1) / kScratchRows * kScratchRows);
}

// Rows of k and v that a sequence owns, used or not: all of them get a gradient.
TESSERA_HD int64_t owned_keys(const ForwardParams& p, uint32_t batch) {
  if (p.cu_seqlens_k == nullptr) return p.seqlen_k;
  const int64_t begin = clamp_to(p.cu_seqlens_k[batch], 0, p.total_k);
  return clamp_to(p.cu_seqlens_k[batch + 1] - begin, 0, clamp_to(p.seqlen_k, 0, p.total_k - begin));
}

// One key tile of one key/value head, and the query tiles that see it. Of these the tiles [plain_begin, plain_end) see
// every key with every row that exists; the rows of all before whole_end exist. They are those from first_tile up to
// stop_tile, or in descending heads down to it, without stop_tile itself.
struct KeyTileView {
  SequenceView sequence;
  int64_t scratch_row, owned_keys;
  uint32_t batch;
  int kv_head, first_head, last_head;  // query heads of the group: [first_head, last_head)
  int key_tile, first_tile, stop_tile, plain_begin, plain_end, whole_end;
};

TESSERA_HD void view_key_tile(const BackwardParams& p, uint32_t head_batch, int key_tile, int tile_n, int tile_m,
                              KeyTileView& view) {
  view.batch = head_batch / p.heads_kv;
  view.kv_head = static_cast<int>(head_batch % p.heads_kv);
  view.first_head = view.kv_head * p.f.group;
  view.last_head = view.first_head + p.f.group;
  view.key_tile = key_tile;
  locate_rows(p.f, view.batch, view.sequence);
  view.scratch_row = scratch_row(p.f, view.batch, view.sequence);
  view.owned_keys = owned_keys(p.f, view.batch);
  const int64_t first_key = int64_t{key_tile} * tile_n;
  const core::Range rows = view.sequence.band.seeing_rows(first_key, first_key + tile_n);
  const int begin = static_cast<int>(rows.begin / tile_m);
  const int end = rows.empty() ? begin : static_cast<int>((rows.end + tile_m - 1) / tile_m);
  const bool descending = head_batch >= p.f.schedule.head_batches;
  view.first_tile = descending ? end - 1 : begin;
  view.stop_tile = descending ? begin - 1 : end;
  const core::Band& band = view.sequence.band;
  const core::Range plain = band.fully_seeing_rows(first_key, first_key + tile_n);
  view.plain_begin = static_cast<int>((plain.begin + tile_m - 1) / tile_m);
  view.plain_end = static_cast<int>((plain.end == band.seqlen_q ? plain.end + tile_m - 1 : plain.end) / tile_m);
  view.whole_end = static_cast<int>(band.seqlen_q / tile_m);
}

}  // namespace tessera::cuda
