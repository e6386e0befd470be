// The key tiles of a block of a backward kernel.
#pragma once

#include "../ptx/atomic.cuh"
#include "backward_scheduler.cuh"

namespace tessera::cuda {

// A key tile by its place among all heads of all sequences; key_tile < 0: there is none.
struct KeyTileItem {
  uint32_t head_batch;
  int key_tile;
};

// Tile `number` of the schedule. Under a causal band the first keys are the heaviest and come first. Turns go from the
// last key tile to the first: there a tile's first query tile is one whose first turn it has. In descending heads all
// go from the first key tile to the last, and from the last query tile, which all key tiles share, to the first.
__device__ __forceinline__ KeyTileItem locate_key_tile(const BackwardParams& p, uint32_t number) {
  const uint32_t tiles = p.f.schedule.query_blocks, ascending = tiles * p.f.schedule.head_batches;
  const bool descending = number >= ascending;
  const WorkItem item =
      locate_block(descending ? p.descending : p.f.schedule, descending ? number - ascending : number);
  const bool last_first = p.turns != nullptr && !descending;
  const uint32_t head_batch = descending ? p.f.schedule.head_batches + item.head_batch : item.head_batch;
  return {head_batch, static_cast<int>(last_first ? item.query_block : tiles - 1 - item.query_block)};
}

// The block's one tile, by its number in the grid or, with turns, by its ticket; one thread calls this.
__device__ __forceinline__ void find_key_tile(const BackwardParams& p, int tile_n, int tile_m, KeyTileView& view) {
  const uint32_t number = p.turns != nullptr ? ptx::fetch_increment(p.ticket) : blockIdx.x;
  const KeyTileItem item = locate_key_tile(p, number);
  view_key_tile(p, item.head_batch, item.key_tile, tile_n, tile_m, view);
}

// Key tile `number` of packed sequences, counted over the tiles that are there: sequence by sequence, each in groups of
// heads, from its first tile to its last or, with turns, the other way round. Numbers grow from call to call. One
// thread counts, since no warp of the block is free; forward's scheduler is a warp, and counts 32 sequences at a time.
__device__ __forceinline__ KeyTileItem count_key_tiles(const BackwardParams& p, uint32_t number, int tile_n,
                                                       PackedCursor& cursor) {
  const auto heads = static_cast<uint32_t>(p.heads_kv);
#pragma unroll 1
  for (; cursor.batch < static_cast<uint32_t>(p.batch); ++cursor.batch) {
    const auto tiles = static_cast<uint32_t>((owned_keys(p.f, cursor.batch) + tile_n - 1) / tile_n);
    const uint32_t rest = number - cursor.before;
    if (rest < tiles * heads) {
      const uint32_t group_tiles = p.f.schedule.group * tiles, first_head = rest / group_tiles * p.f.schedule.group;
      const uint32_t left = heads - first_head, block = rest % group_tiles;
      const uint32_t size = left < p.f.schedule.group ? left : p.f.schedule.group;
      const uint32_t at = block / size;
      return {cursor.batch * heads + first_head + block % size,
              static_cast<int>(p.turns != nullptr ? tiles - 1 - at : at)};
    }
    cursor.before += tiles * heads;
  }
  return {0, -1};
}

// The first or the next tile for a block that goes on until none is left, view.key_tile < 0; one thread calls this.
// With turns every number is a ticket, see backward_turns.cuh. Else a block begins with its own number. Without a
// ticket, where nothing zeroes it, blocks are at least as many as tiles.
__device__ __forceinline__ void take_key_tile(const BackwardParams& p, bool first, int tile_n, int tile_m,
                                              PackedCursor& cursor, KeyTileView& view) {
  const uint32_t tiles = p.f.schedule.query_blocks * (p.f.schedule.head_batches + p.descending.head_batches);
  uint32_t number = blockIdx.x;
  if (p.turns != nullptr) {
    number = ptx::fetch_increment(p.ticket);
  } else if (!first) {
    number = p.ticket != nullptr ? gridDim.x + ptx::fetch_increment(p.ticket) : tiles;
  }
  KeyTileItem item{0, -1};
  if (number < tiles)
    item = p.f.cu_seqlens_k != nullptr ? count_key_tiles(p, number, tile_n, cursor) : locate_key_tile(p, number);
  view.key_tile = -1;
  if (item.key_tile >= 0) view_key_tile(p, item.head_batch, item.key_tile, tile_n, tile_m, view);
}

}  // namespace tessera::cuda
