// What the roles of a backward block share beside the tiles: the pipelines' barriers and the views of its key tiles.
// Invariant: a full barrier's phase completes when the bytes or the view are there; an empty one's when all that read
// them have released them.
#pragma once

#include "../tile/backward_scheduler.cuh"
#include "backward_config.hpp"
#include "backward_launch.hpp"
#include "control.cuh"

namespace tessera::cuda::sm90 {

template <class Config>
struct BackwardControl {
  static constexpr int kStages = Config::kStages;
  static constexpr int kViews = Config::kPersistent ? 2 : 1;  // the next one is found while the first is at work
  uint64_t keys_full[kViews], values_full;                    // once a key tile that some query sees
  uint64_t q_full[kStages], q_empty[kStages];                 // Q and lse
  uint64_t d_o_full[kStages], d_o_empty[kStages];             // dO and -delta
  uint64_t grads_full[2], grads_empty[2];                     // dS, by the consumers for each other
  uint64_t probs_full, probs_empty;                   // P, by one warpgroup for the other where they share the tensors
  uint64_t turn_open[2], turn_done[2], turn_seen[2];  // for dq of a step, in a fixed order of additions
  uint64_t copies_done[kViews];                       // all copies of the key tile are under way
  uint64_t sums_done;                                 // in wide blocks: the last additions to dq's sums are made
  KeyTileView views[kViews];
  // Of persistent blocks alone. The producer's cursor lies here, since its thread has few registers.
  PackedCursor cursor;
  uint64_t values_empty, view_full[kViews], view_empty[kViews];

  // turn_threads: those of backward_turns.cuh that are at work; zero_threads: those of backward_zeros.cuh.
  __device__ void init(int turn_threads, int zero_threads) {
    constexpr int kWarps = 4 * Config::kGroups;
    for (uint64_t& barrier : keys_full) ::cuda::ptx::mbarrier_init(&barrier, 1);
    ::cuda::ptx::mbarrier_init(&values_full, zero_threads > 0 ? 2 : 1);
    for (uint64_t& barrier : q_full) ::cuda::ptx::mbarrier_init(&barrier, 1);
    for (uint64_t& barrier : d_o_full) ::cuda::ptx::mbarrier_init(&barrier, 1);
    // Of the warpgroups that read lse or -delta every lane, of one that reads the tile alone every warp.
    constexpr int kReaders = Config::kWide ? 128 + 4 : 128 * Config::kGroups;
    for (uint64_t& barrier : q_empty) ::cuda::ptx::mbarrier_init(&barrier, kReaders);
    for (uint64_t& barrier : d_o_empty) ::cuda::ptx::mbarrier_init(&barrier, kReaders);
    for (uint64_t& barrier : grads_full) ::cuda::ptx::mbarrier_init(&barrier, 4 * Config::kKeyBlocks);
    for (uint64_t& barrier : grads_empty) ::cuda::ptx::mbarrier_init(&barrier, kWarps);
    for (uint64_t& barrier : turn_open) ::cuda::ptx::mbarrier_init(&barrier, 1);
    for (uint64_t& barrier : turn_done) ::cuda::ptx::mbarrier_init(&barrier, kWarps);
    for (uint64_t& barrier : turn_seen) ::cuda::ptx::mbarrier_init(&barrier, 1);
    for (uint64_t& barrier : copies_done) ::cuda::ptx::mbarrier_init(&barrier, 1);
    ::cuda::ptx::mbarrier_init(&sums_done, kWarps);
    ::cuda::ptx::mbarrier_init(&probs_full, 128);
    ::cuda::ptx::mbarrier_init(&probs_empty, 128);
    if constexpr (Config::kPersistent) {
      ::cuda::ptx::mbarrier_init(&values_empty, kWarps);
      for (uint64_t& barrier : view_full) ::cuda::ptx::mbarrier_init(&barrier, 1);
      const int readers = 32 * kWarps + turn_threads + zero_threads;
      for (uint64_t& barrier : view_empty) ::cuda::ptx::mbarrier_init(&barrier, readers);
    }
    ::cuda::ptx::fence_mbarrier_init(::cuda::ptx::sem_release, ::cuda::ptx::scope_cluster);
  }
};

// Calls visit(place of the view) for the block's key tiles one after another; every thread that calls this reads the
// views, and is counted in view_empty.
template <class Config, class Visit>
__device__ __forceinline__ void for_each_key_tile(BackwardControl<Config>& control, Visit&& visit) {
  if constexpr (!Config::kPersistent) {
    visit(0u);
  } else {
    Ring<BackwardControl<Config>::kViews> place;
#pragma unroll 1
    while (true) {
      wait(control.view_full[place.stage], place.phase);
      if (control.views[place.stage].key_tile < 0) return;
      visit(place.stage);
      ::cuda::ptx::mbarrier_arrive(&control.view_empty[place.stage]);
      place.advance();
    }
  }
}

// For a spare warp, at the block's key tile `number`: whether its end is at most two steps away, so that what the warp
// begins now could keep the block from the next tile.
template <class Config>
__device__ __forceinline__ bool ends_soon(BackwardControl<Config>& control, uint32_t place, uint32_t number) {
  uint64_t& copies = control.copies_done[place];
  const int soon =
      threadIdx.x % 32 == 0 && ::cuda::ptx::mbarrier_test_wait_parity(&copies, number / control.kViews % 2);
  return __shfl_sync(0xffffffffu, soon, 0) != 0;
}

// What the consumers ask of the view in every step, in registers: while wgmma reads shared memory a load from it takes
// some 150 cycles.
struct BackwardBounds {
  int first_tile, stop_tile, plain_begin, plain_end, whole_end, last_head;

  __device__ __forceinline__ explicit BackwardBounds(const KeyTileView& view)
      : first_tile(uniform(view.first_tile)),
        stop_tile(uniform(view.stop_tile)),
        plain_begin(uniform(view.plain_begin)),
        plain_end(uniform(view.plain_end)),
        whole_end(uniform(view.whole_end)),
        last_head(uniform(view.last_head)) {}
};

// One step of a block: a query tile of a query head. Steps go up through the query tiles of one head of the group after
// another; in descending heads down through the query tiles and at each through the heads, so that blocks keep step
// whose key tiles are seen by more and by fewer queries: head by head all would take as long as the heaviest.
struct BackwardStep {
  int head, tile;

  __device__ __forceinline__ explicit BackwardStep(const KeyTileView& view)
      : head(view.first_head), tile(view.first_tile) {}
  // False behind the last one. `View`: KeyTileView or BackwardBounds; `heads` of the group.
  template <class View>
  __device__ __forceinline__ bool advance(const View& view, int heads) {
    if (view.stop_tile < view.first_tile) {
      if (++head < view.last_head) return true;
      head -= heads;
      return --tile != view.stop_tile;
    }
    if (++tile < view.stop_tile) return true;
    tile = view.first_tile;
    return ++head < view.last_head;
  }
};

}  // namespace tessera::cuda::sm90
