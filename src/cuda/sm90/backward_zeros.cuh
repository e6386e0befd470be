// dq's sums are zeroed by the main kernel itself, for heads that come later: a warp that has nothing else to do writes
// zeros while others compute, where preprocess would take the time of their bytes. To preprocess are left the first
// heads, `heads_ahead` of all sequences' key/value heads.
// A head's sums fall into as many slices as it has key tiles. Each block claims up to two slices of the head that
// comes heads_ahead after its own, none shortly before its tile's end, so that the next tile does not wait. If its own
// head is not all zero yet it claims slices of that too until none is left: a block waits only for warps that are at
// work and wait for nothing, so blocks may start in any order.
// The consumers learn of it by V's barrier, for which they wait before they add anything.
#pragma once

#include "../ptx/atomic.cuh"
#include "../tile/dq_sums.cuh"
#include "backward_control.cuh"

namespace tessera::cuda::sm90 {

template <class Config>
struct BackwardZeros {
  // Under a causal band the tiles with few steps are half of all, and leave their slices to the others.
  static constexpr int kMostSlices = 2;

  const BackwardParams& p;
  BackwardControl<Config>& control;

  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x % 32); }
  __device__ __forceinline__ uint32_t slices() const { return p.f.schedule.query_blocks; }

  // Slices are claimed one after another; those past the last are none.
  __device__ __forceinline__ uint32_t claim(uint32_t head_batch) const {
    const uint32_t slice = lane() == 0 ? ptx::fetch_increment(&p.progress[head_batch].slices_claimed) : 0;
    return __shfl_sync(0xffffffffu, slice, 0);
  }
  // Of the row tiles of all query heads of the group every slices()-th.
  __device__ __forceinline__ void zero(uint32_t head_batch, uint32_t slice) const {
    const uint32_t batch = head_batch / p.heads_kv, first_head = head_batch % p.heads_kv * p.f.group;
    const uint32_t tiles = static_cast<uint32_t>(p.f.group) * p.row_tiles;
#pragma unroll 1
    for (uint32_t tile = slice; tile < tiles; tile += slices()) {
      const int64_t row = (int64_t{batch} * p.row_tiles + tile % p.row_tiles) * kRowTile;
      auto* sums = reinterpret_cast<float4*>(
          p.dq_sum + dq_transposed_fragment(p.scratch_rows, first_head + tile / p.row_tiles, row, 0, Config::kDim));
#pragma unroll 4
      for (int i = lane(); i < kRowTile * Config::kDim / 4; i += 32) sums[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    __syncwarp();
    if (lane() == 0) ptx::reduce_add_release(&p.progress[head_batch].slices_zeroed, 1);
  }
  __device__ __forceinline__ bool is_zero(uint32_t head_batch) const {
    const int32_t count = lane() == 0 ? ptx::load_acquire(&p.progress[head_batch].slices_zeroed) : 0;
    return __shfl_sync(0xffffffffu, count, 0) == static_cast<int32_t>(slices());
  }

  // All key tiles of the block, by one warp.
  __device__ __forceinline__ void run() const {
    const uint32_t heads = static_cast<uint32_t>(p.batch) * p.heads_kv;
    uint32_t number = 0, parity = 0;
    for_each_key_tile(control, [&](uint32_t place) {
      const KeyTileView& view = control.views[place];
      const uint32_t head_batch = view.batch * p.heads_kv + view.kv_head, later = head_batch + p.heads_ahead;
      if (view.first_tile != view.stop_tile) {
        if (head_batch >= static_cast<uint32_t>(p.heads_ahead)) {
          bool left = true;
          while (!is_zero(head_batch)) {
            const uint32_t slice = left ? claim(head_batch) : slices();
            left = slice < slices();
            if (left) zero(head_batch, slice);
          }
        }
        if (lane() == 0) ::cuda::ptx::mbarrier_arrive(&control.values_full);
        // This warp must not arrive for the next tile's V before this one's is there.
        if constexpr (Config::kPersistent) wait(control.values_full, parity);
        parity ^= 1;
      }
      for (int count = 0; count < kMostSlices && later < heads; ++count) {
        if (ends_soon(control, place, number)) break;
        const uint32_t slice = claim(later);
        if (slice >= slices()) break;
        zero(later, slice);
      }
      ++number;
    });
  }
};

}  // namespace tessera::cuda::sm90
