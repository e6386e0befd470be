// The key tile of a block of a backward kernel.
#pragma once

#include "../ptx/atomic.cuh"
#include "backward_scheduler.cuh"

namespace tessera::cuda {

// By the block's number in the grid or, with turns, by its ticket; one thread calls this. Under a causal band the first
// keys are the heaviest and come first. Turns go from the last key tile to the first: there a tile's first query tile
// is one whose first turn it has.
__device__ __forceinline__ void find_key_tile(const BackwardParams& p, int tile_n, int tile_m, KeyTileView& view) {
  const bool ordered = p.turns != nullptr;
  const WorkItem item = locate_block(p.f.schedule, ordered ? ptx::fetch_increment(p.ticket) : blockIdx.x);
  const uint32_t key_tile = ordered ? item.query_block : p.f.schedule.query_blocks - 1 - item.query_block;
  view_key_tile(p, item.head_batch, static_cast<int>(key_tile), tile_n, tile_m, view);
}

}  // namespace tessera::cuda
