// The producer of a backward block: one thread that copies K and V of a key tile once and Q, dO and their statistics of
// one step after another, as far ahead of the consumers as the stages allow. In persistent blocks it then finds the
// next key tile: not before all of this one's copies are under way, since what a block has taken no other can do.
// Tiles lie as [columns / 64][rows][64], 16-byte chunks swizzled as TMA does. Rows past a used length are copied as
// they are where the array goes on; the consumers clear them.
#pragma once

#include <cuda/ptx>

#include "../tile/key_tile.cuh"
#include "backward_control.cuh"

namespace tessera::cuda::sm90 {

template <class Config>
struct BackwardProducer {
  const BackwardLaunchParams& p;
  BackwardControl<Config>& control;
  char* shared;

  // kRows rows of one head from `row` on.
  template <int kRows>
  __device__ __forceinline__ void copy(const CUtensorMap& map, char* to, int64_t row, int64_t head, int64_t batch,
                                       uint64_t* full) const {
#pragma unroll
    for (int c = 0; c < Config::kSpans; ++c) {
      const int32_t at[4] = {c * Config::kSpanColumns, static_cast<int32_t>(row), static_cast<int32_t>(head),
                             static_cast<int32_t>(batch)};
      ::cuda::ptx::cp_async_bulk_tensor(::cuda::ptx::space_cluster, ::cuda::ptx::space_global,
                                        to + c * kRows * Config::kSpan, &map, at, full);
    }
  }

  __device__ __forceinline__ static void expect(uint64_t* full, uint32_t bytes) {
    ::cuda::ptx::mbarrier_arrive_expect_tx(::cuda::ptx::sem_release, ::cuda::ptx::scope_cta, ::cuda::ptx::space_shared,
                                           full, bytes);
  }

  // A tile of Q or dO with kTileM floats of lse or -delta.
  __device__ __forceinline__ void copy_queries(const KeyTileView& view, const CUtensorMap& map, int tensor,
                                               const float* statistics, int stage, const BackwardStep& step,
                                               uint64_t* full) const {
    const SequenceView& at = view.sequence;
    const int64_t row = int64_t{step.tile} * Config::kTileM;
    expect(full, Config::kQueryBytes + Config::kTileM * 4);
    copy<Config::kTileM>(map, shared + Config::kQueryOffset + (2 * stage + tensor) * Config::kQueryBytes,
                         at.q_row + row, step.head, at.q_batch, full);
    ::cuda::ptx::cp_async_bulk(
        ::cuda::ptx::space_cluster, ::cuda::ptx::space_global,
        shared + Config::kStatisticsOffset + stage * Config::kStatisticsBytes + tensor * Config::kTileM * 4,
        statistics + step.head * p.backward.scratch_rows + view.scratch_row + row, Config::kTileM * 4, full);
  }

  // K or V.
  __device__ __forceinline__ void copy_keys(const KeyTileView& view, const CUtensorMap& map, char* to,
                                            uint64_t* full) const {
    const int64_t key = view.sequence.kv_row + int64_t{view.key_tile} * Config::kTileN;
    expect(full, Config::kKeyBytes);
    copy<Config::kTileN>(map, to, key, view.kv_head, view.sequence.kv_batch, full);
  }
  // Q, once its stage is empty.
  __device__ __forceinline__ void copy_scored(const KeyTileView& view, const BackwardStep& step,
                                              const Ring<Config::kStages>& ring) const {
    wait(control.q_empty[ring.stage], ring.phase ^ 1);
    copy_queries(view, p.q_map, 0, p.backward.lse, ring.stage, step, &control.q_full[ring.stage]);
  }
  // dO, the same.
  __device__ __forceinline__ void copy_d_o(const KeyTileView& view, const BackwardStep& step,
                                           const Ring<Config::kStages>& ring) const {
    wait(control.d_o_empty[ring.stage], ring.phase ^ 1);
    copy_queries(view, p.d_o_map, 1, p.backward.minus_delta, ring.stage, step, &control.d_o_full[ring.stage]);
  }

  // All of one key tile that some query sees, the block's only one.
  __device__ __forceinline__ void copy_only_tile(const KeyTileView& view) const {
    copy_keys(view, p.k_map, shared, &control.keys_full[0]);
    BackwardStep step(view);
    Ring<Config::kStages> ring;
    copy_scored(view, step, ring);  // the first products need no V
    copy_keys(view, p.v_map, shared + Config::kValueOffset, &control.values_full);
    while (true) {
      copy_d_o(view, step, ring);
      ring.advance();
      if (!step.advance(view, p.backward.f.group)) break;
      copy_scored(view, step, ring);
    }
    ::cuda::ptx::mbarrier_arrive(&control.copies_done[0]);
  }

  // All of one key tile of many; `number`: of the block's tiles that some query sees. There is room for K: the
  // consumers are done with the tile two before this one, see run(). Room for V comes last.
  __device__ __forceinline__ void copy_tile(const KeyTileView& view, Ring<Config::kStages>& ring,
                                            uint32_t number) const {
    const uint32_t parity = number % Config::kKeyBuffers;
    copy_keys(view, p.k_map, shared + parity * Config::kSecondKeyOffset, &control.keys_full[parity]);
    BackwardStep step(view);
#pragma unroll 1
    for (bool first = true;; first = false) {
      copy_scored(view, step, ring);
      copy_d_o(view, step, ring);
      if (first) {
        wait(control.values_empty, parity ^ 1);
        copy_keys(view, p.v_map, shared + Config::kValueOffset, &control.values_full);
      }
      ring.advance();
      if (!step.advance(view, p.backward.f.group)) return;
    }
  }

  // The first tile has been found.
  __device__ __forceinline__ void run() const {
    if constexpr (!Config::kPersistent) {
      copy_only_tile(control.views[0]);
    } else {
      Ring<BackwardControl<Config>::kViews> place;
      Ring<Config::kStages> ring;
      uint32_t number = 0;
#pragma unroll 1
      while (true) {
        const KeyTileView& view = control.views[place.stage];
        ::cuda::ptx::mbarrier_arrive(&control.view_full[place.stage]);
        if (view.key_tile < 0) return;
        if (view.first_tile != view.stop_tile) copy_tile(view, ring, number++);
        ::cuda::ptx::mbarrier_arrive(&control.copies_done[place.stage]);
        place.advance();
        wait(control.view_empty[place.stage], place.phase ^ 1);
        take_key_tile(p.backward, false, Config::kTileN, Config::kTileM, control.cursor, control.views[place.stage]);
      }
    }
  }
};

}  // namespace tessera::cuda::sm90
