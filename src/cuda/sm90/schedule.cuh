// Which work this block does, and where it lies. One thread, ahead of all others.
// Source: persistent tile schedulers as in FlashAttention-3.
#pragma once

#include <cuda/atomic>

#include "control.cuh"

namespace tessera::cuda::sm90 {

// One piece of work: a query tile of the heads of one pack, over one split of the keys.
struct Piece {
  uint32_t batch, pack, query_block;
  int split;
  bool valid;  // false: the index is past the last
};

// Piece `index` of packed queries, counted over the tiles that are there, sequence by sequence, each from its last tile
// to its first over all heads. Called by a whole warp, with indices that grow; a lane counts one sequence.
template <class Config>
__device__ __forceinline__ Piece find_packed(const Params& p, uint32_t index, PackedCursor& cursor) {
  const uint32_t batches = p.forward.schedule.head_batches / p.packs, rows = static_cast<uint32_t>(p.tile_rows);
  const uint32_t lane = threadIdx.x % 32;
  for (; cursor.batch < batches; cursor.batch += 32) {
    const uint32_t batch = cursor.batch + lane;
    uint32_t tiles = 0;
    if (batch < batches) tiles = (static_cast<uint32_t>(packed_rows(p.forward, batch).size()) + rows - 1) / rows;
    const uint32_t own = tiles * p.packs;
    uint32_t sum = own;
#pragma unroll
    for (uint32_t distance = 1; distance < 32; distance *= 2) {
      const uint32_t below = __shfl_up_sync(0xffffffffu, sum, distance);
      if (lane >= distance) sum += below;
    }
    const uint32_t beyond = __ballot_sync(0xffffffffu, cursor.before + sum > index);
    if (beyond != 0) {
      const int at = __ffs(static_cast<int>(beyond)) - 1;
      const uint32_t rest = index - cursor.before - __shfl_sync(0xffffffffu, sum - own, at);
      const uint32_t from_last = rest / p.packs;
      return {cursor.batch + at, rest - from_last * p.packs, __shfl_sync(0xffffffffu, tiles, at) - 1 - from_last, 0,
              true};
    }
    cursor.before += __shfl_sync(0xffffffffu, sum, 31);
  }
  return {};
}

template <class Config>
__device__ __forceinline__ Piece find_piece(const Params& p, uint32_t index, PackedCursor& cursor) {
  const ForwardParams& f = p.forward;
  const bool splits = !Config::kDense && f.num_splits > 1;
  const int split = splits ? index % f.num_splits : 0;
  if (splits) index /= f.num_splits;
  Piece piece{};
  if (!Config::kDense && f.cu_seqlens_q != nullptr) {
    piece = find_packed<Config>(p, index, cursor);
  } else if (index < f.schedule.head_batches * f.schedule.query_blocks) {
    const WorkItem item = locate_block(f.schedule, index);
    const uint32_t batch = p.by_packs.divide(item.head_batch);
    piece = {batch, item.head_batch - batch * p.packs, item.query_block, 0, true};
  }
  piece.split = split;
  return piece;
}

// The view of whole dense rows and plain scores: nothing is looked up, and what all pieces share the host has found. A
// launch begins with it, and finding it by view_block took 4300 cycles, with memory's time for instructions more.
template <class Config>
__device__ __forceinline__ void view_whole(const Params& p, uint32_t batch, uint32_t head, TileView& view) {
  view.sequence = {0, p.forward.seqlen_q, batch, batch, 0, 0, nullptr, p.band};
  view.tiles = p.band.visible_tiles(view.first_row, view.first_row + p.tile_rows, Config::kTileN);
  view.head_kv = static_cast<int32_t>(p.by_group.divide(head));
  view.copies = true;
  view.gathers_tail = false;
}

// What a consumer of 16-bit elements has of a view beside where its keys lie.
template <class Config>
__device__ __forceinline__ void view_rows(const Params& p, RowView& view) {
  const SequenceView& s = view.sequence;
  constexpr int64_t kFar = (int64_t{1} << 31) - 1;
  const int64_t diagonal = s.band.diagonal(view.first_row);
  view.rows = static_cast<int32_t>(clamp_to(s.band.seqlen_q - view.first_row, 0, p.tile_rows));
  view.keys = static_cast<int32_t>(s.band.seqlen_k);
  view.kept_begin = static_cast<int32_t>(clamp_to(diagonal - s.band.left, -kFar, kFar - Config::kTileM));
  view.behind = static_cast<int32_t>(clamp_to(s.band.seqlen_k - 1 - diagonal - s.band.right, 0, kFar));
}

// Where the tile's rows leave to.
__device__ __forceinline__ void view_output(const Params& p, TileView& view) {
  const ForwardParams& f = p.forward;
  const SequenceView& s = view.sequence;
  const int64_t o = s.q_batch * f.o_stride.batch + (s.q_row + view.first_row) * f.o_stride.row +
                    view.head * f.o_stride.head + view.split * f.o_split_stride;
  view.o = static_cast<char*>(f.o) + (f.o_is_float ? 4 : 2) * o;
  const int64_t lse =
      f.cu_seqlens_q != nullptr ? view.head * f.total_q + s.q_row : (s.q_batch * f.heads_q + view.head) * f.seqlen_q;
  view.lse = f.lse == nullptr ? nullptr : f.lse + (view.split * f.lse_split_stride + lse + view.first_row);
}

template <class Config>
__device__ __forceinline__ void write_view(const Params& p, const Piece& piece, typename Control<Config>::View& view) {
  view.valid = piece.valid;
  if (!piece.valid) return;
  const uint32_t head = piece.pack * p.pack;
  view.first_row = int64_t{piece.query_block} * p.tile_rows;
  view.pack_index = static_cast<int32_t>(piece.pack);
  view.head = static_cast<int32_t>(head);
  view.split = piece.split;
  view.batch = static_cast<int32_t>(piece.batch);
  if (Config::kDense || p.whole) {
    view_whole<Config>(p, piece.batch, head, view);
  } else {
    view_block<false, Config::kBytes>(p.forward, piece.batch, head, piece.split, view.first_row, p.tile_rows,
                                      Config::kTileN, view);
    view.copies = p.kv_box_rows != 0 && (p.forward.page_size == 0 || view.sequence.kv_row % p.kv_box_rows == 0);
    view.gathers_tail = !p.kv_bounded && view.tiles.end * Config::kTileN > view.sequence.band.seqlen_k;
  }
}

// What e4m3's consumers need of a view beside: read from it, since the scheduler's registers are few.
__device__ __forceinline__ void write_fp8_view(const Params& p, TileView& view) {
  const CacheScale& q_scale = p.fp8.q_scale;
  view.score_scale = p.forward.scale_log2 * key_scale(p.forward, view, p.fp8.k_scale);
  if (q_scale.data != nullptr && !p.fp8.q_scaled_by_row) {
    view.score_scale *= q_scale.data[int64_t{view.batch} * q_scale.stride[0] + view.head * q_scale.stride[2]];
  }
  view.v_scale = key_scale(p.forward, view, p.fp8.v_scale);
  view_output(p, view);
  const core::Band& band = view.sequence.band;
  // So far from 0 and from the largest key that what is added to them stays in 32 bits.
  constexpr int64_t kFar = 1 << 10;
  view.keys_begin = static_cast<int32_t>(clamp_to(band.diagonal(view.first_row) - band.left, -kFar, INT32_MAX - kFar));
  view.keys_end =
      static_cast<int32_t>(clamp_to(band.diagonal(view.first_row) + band.right + 1, -kFar, INT32_MAX - kFar));
  view.key_count = static_cast<int32_t>(band.seqlen_k);
  view.query_count = static_cast<int32_t>(clamp_to(band.seqlen_q - view.first_row, 0, p.tile_rows));
}

// Tickets of this launch: the first block that comes sets the counts, whatever was there before; the last that leaves
// clears them, so that a replay of the same launch starts anew. No block waits for one that has not begun.
__device__ __forceinline__ void open_tickets(const Params& p) {
  ::cuda::atomic_ref<uint64_t, ::cuda::thread_scope_device> run(p.tickets->run);
  uint64_t seen = run.load(::cuda::memory_order_acquire);
  while (seen != p.run) {
    if (seen == p.run + 1) {
      seen = run.load(::cuda::memory_order_acquire);
    } else if (run.compare_exchange_strong(seen, p.run + 1, ::cuda::memory_order_acquire)) {
      p.tickets->next = p.tickets->finished = 0;
      run.store(p.run, ::cuda::memory_order_release);
      return;
    }
  }
}
__device__ __forceinline__ void close_tickets(const Params& p) {
  if (atomicAdd(&p.tickets->finished, 1) == gridDim.x - 1) p.tickets->run = 0;
}

// Run by one warp, though one lane does the work: a wait of a lone lane would spin, and take a scheduler's issue slots
// from the consumers (7 % of the time), where a whole warp is suspended. kOpens: it finds the first piece while others
// make the barriers ready, and opens the block with them then.
template <class Config, bool kOpens = false>
__device__ __forceinline__ void schedule_tiles(const Params& p, Control<Config>& control) {
  Ring<Control<Config>::kViews> views;
  const bool tickets = p.tickets != nullptr, leads = threadIdx.x % 32 == 0;
  uint32_t index = blockIdx.x;
  PackedCursor cursor;
  bool done = false;
  for (uint32_t step = 0; true; ++step) {
    const Piece piece = done ? Piece{} : find_piece<Config>(p, index, cursor);
    if (!kOpens || step != 0) wait(control.view_empty[views.stage], views.phase ^ 1);
    auto& view = control.views[views.stage];
    if (leads) write_view<Config>(p, piece, view);
    __syncwarp();  // all lanes have waited for room before others see the view and make room again
    if constexpr (Config::kBytes == 1) {
      if (leads && piece.valid) write_fp8_view(p, view);
    }
    if (kOpens && step == 0) __syncthreads();
    // The rest is found while the first tiles are on their way; of e4m3 it is needed for them.
    if constexpr (Control<Config>::kFindsFirst) {
      if (leads) ::cuda::ptx::mbarrier_arrive(&control.view_found[views.stage]);
      if (leads && piece.valid) {
        view_rows<Config>(p, view);
        view_output(p, view);
      }
    }
    if (leads) ::cuda::ptx::mbarrier_arrive(&control.view_full[views.stage]);
    __syncwarp();
    // The first piece is the block's own, so nobody waits for a ticket then. A block that finds none opens them too:
    // counted before they are set, it would be missing at the end.
    if (leads && tickets && step == 0) open_tickets(p);
    if (!piece.valid) break;
    views.advance();
    // As late as the producer allows: what a block has taken no other can do.
    if (step >= p.ahead) wait(control.view_wanted[(step - p.ahead) % 2], (step - p.ahead) / 2 % 2);
    done = !tickets;
    if (leads && tickets) index = gridDim.x + atomicAdd(&p.tickets->next, 1);
    index = __shfl_sync(0xffffffffu, index, 0);
  }
  if (leads && tickets) close_tickets(p);
}

}  // namespace tessera::cuda::sm90
