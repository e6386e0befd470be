// Turns in which the blocks of the backward kernel add to dq in a fixed order: of the key tiles that see a query tile
// those with higher numbers come first. They have lower tickets, so a block waits only for blocks that started before
// it. turns[] counts the tiles that have added.
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

  __device__ __forceinline__ int32_t* turn(const BackwardStep& step) const {
    const int64_t row = control.view.scratch_row + int64_t{step.tile} * Config::kTileM;
    return p.turns + (step.head * p.scratch_rows + row) / kTurnRows;
  }
  // Tiles that add to the step's queries before this one.
  __device__ __forceinline__ int64_t tiles_before(const BackwardStep& step) const {
    const int64_t query = int64_t{step.tile} * Config::kTileM;
    const core::Band& band = control.view.sequence.band;
    return band.visible_tiles(query, query + Config::kTileM, Config::kTileN).end - 1 - control.view.key_tile;
  }

  __device__ __forceinline__ void open() const {
    BackwardStep step(control.view);
    Ring<2> ring;
    do {
      const int64_t before = tiles_before(step);
      // The turn two steps ago is over, so nobody still waits for the barrier's last phase, and close() has seen it: it
      // may take long to tell the next block, and must not miss a phase meanwhile.
      wait(control.turn_seen[ring.stage], ring.phase ^ 1);
      while (ptx::load_acquire(turn(step)) < before) {
      }
      ::cuda::ptx::mbarrier_arrive(&control.turn_open[ring.stage]);
      ring.advance();
    } while (step.advance(control.view));
  }

  __device__ __forceinline__ void close() const {
    BackwardStep step(control.view);
    Ring<2> ring;
    do {
      wait(control.turn_done[ring.stage], ring.phase);
      ::cuda::ptx::mbarrier_arrive(&control.turn_seen[ring.stage]);
      ptx::reduce_add_release(turn(step), 1);
      ring.advance();
    } while (step.advance(control.view));
  }
};

}  // namespace tessera::cuda::sm90
