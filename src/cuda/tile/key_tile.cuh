// The key tiles of a block of a backward kernel.
#pragma once

#include "../ptx/atomic.cuh"
#include "backward_scheduler.cuh"

namespace tessera::cuda {

// Tile `number` of the schedule. Under a causal band the first keys are the heaviest and come first. Turns go from the
// last key tile to the first: there a tile's first query tile is one whose first turn it has.
__device__ __forceinline__ void locate_key_tile(const BackwardParams& p, uint32_t number, int tile_n, int tile_m,
                                                KeyTileView& view) {
  const WorkItem item = locate_block(p.f.schedule, number);
  const uint32_t key_tile = p.turns != nullptr ? item.query_block : p.f.schedule.query_blocks - 1 - item.query_block;
  view_key_tile(p, item.head_batch, static_cast<int>(key_tile), tile_n, tile_m, view);
}

// The block's one tile, by its number in the grid or, with turns, by its ticket; one thread calls this.
__device__ __forceinline__ void find_key_tile(const BackwardParams& p, int tile_n, int tile_m, KeyTileView& view) {
  const uint32_t number = p.turns != nullptr ? ptx::fetch_increment(p.ticket) : blockIdx.x;
  locate_key_tile(p, number, tile_n, tile_m, view);
}

// The first or the next tile that owns keys, for a block that goes on until none is left, view.key_tile < 0; one thread
// calls this. With turns every number is a ticket, see backward_turns.cuh. Else a block begins with its own number.
// Without a ticket, where nothing zeroes it, blocks are as many as tiles.
__device__ __forceinline__ void take_key_tile(const BackwardParams& p, bool first, int tile_n, int tile_m,
                                              KeyTileView& view) {
  const uint32_t tiles = p.f.schedule.query_blocks * p.f.schedule.head_batches;
  while (true) {
    uint32_t number = blockIdx.x;
    if (p.turns != nullptr) {
      number = ptx::fetch_increment(p.ticket);
    } else if (!first) {
      number = p.ticket != nullptr ? gridDim.x + ptx::fetch_increment(p.ticket) : tiles;
    }
    first = false;
    view.key_tile = -1;
    if (number >= tiles) return;
    locate_key_tile(p, number, tile_n, tile_m, view);
    if (int64_t{view.key_tile} * tile_n < view.owned_keys) return;
  }
}

}  // namespace tessera::cuda
