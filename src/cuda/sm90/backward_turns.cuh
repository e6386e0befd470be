// Turns in which the blocks of the backward kernel add to dq in a fixed order: of the key tiles that see a query tile
// those with higher numbers come first, in descending heads those with lower ones. They have lower tickets, and a block
// works its tiles in the order of their tickets. So the lowest ticket that is not done is at work, whatever blocks have
// taken ahead, and waits for none: no block waits for ever. turns[] counts the tiles that have added.
// Two threads beside the producer keep them, so that no consumer waits for device memory: one polls for the turn of a
// step and opens it, the other closes it once all consumer warps are done, and tells the next block.
#pragma once

#include "../ptx/atomic.cuh"
#include "backward_control.cuh"

namespace tessera::cuda::sm90 {

template <class Config>
struct BackwardTurns {
  const BackwardParams& p;
  BackwardControl<Config>& control;

  __device__ __forceinline__ int32_t* turn(const KeyTileView& view, const BackwardStep& step) const {
    const int64_t row = view.scratch_row + int64_t{step.tile} * Config::kTileM;
    return p.turns + (step.head * p.scratch_rows + row) / kTurnRows;
  }
  // Tiles that add to the step's queries before this one.
  __device__ __forceinline__ int64_t tiles_before(const KeyTileView& view, const BackwardStep& step) const {
    const int64_t query = int64_t{step.tile} * Config::kTileM;
    const core::Band& band = view.sequence.band;
    if (view.stop_tile < view.first_tile)
      return view.key_tile - band.visible_tiles(query, query + Config::kTileM, Config::kTileN).begin;
    return band.visible_tiles(query, query + Config::kTileM, Config::kTileN).end - 1 - view.key_tile;
  }

  // Calls visit(view, step) for all steps of the block.
  template <class Visit>
  __device__ __forceinline__ void for_each_step(Visit&& visit) const {
    for_each_key_tile(control, [&](uint32_t place) {
      const KeyTileView& view = control.views[place];
      if (Config::kPersistent && view.first_tile == view.stop_tile) return;
      BackwardStep step(view);
      do {
        visit(view, step);
      } while (step.advance(view, p.f.group));
    });
  }

  __device__ __forceinline__ void open() const {
    Ring<2> ring;
    for_each_step([&](const KeyTileView& view, const BackwardStep& step) {
      const int64_t before = tiles_before(view, step);
      // The turn two steps ago is over, so nobody still waits for the barrier's last phase, and close() has seen it: it
      // may take long to tell the next block, and must not miss a phase meanwhile.
      wait(control.turn_seen[ring.stage], ring.phase ^ 1);
      while (ptx::load_acquire(turn(view, step)) < before) {
      }
      ::cuda::ptx::mbarrier_arrive(&control.turn_open[ring.stage]);
      ring.advance();
    });
  }

  __device__ __forceinline__ void close() const {
    Ring<2> ring;
    for_each_step([&](const KeyTileView& view, const BackwardStep& step) {
      wait(control.turn_done[ring.stage], ring.phase);
      ::cuda::ptx::mbarrier_arrive(&control.turn_seen[ring.stage]);
      ptx::reduce_add_release(turn(view, step), 1);
      ring.advance();
    });
  }
};

}  // namespace tessera::cuda::sm90
