// What the roles of a block share beside the tiles: the pipelines' barriers and the view of the work at hand.
// Invariant: a full barrier's phase completes when the tile's bytes or the view are there; an empty one's when every
// warp that reads them has released them.
#pragma once

#include <cuda/ptx>

#include <cstdint>
#include <type_traits>

#include "../tile/scheduler.cuh"
#include "config.hpp"
#include "params.hpp"

namespace tessera::cuda::sm90 {

struct TileView : BlockView {
  int64_t first_row;    // of the tile, in rows of the sequence
  int32_t head, split;  // head: the first of the pack
  int32_t pack_index;   // of query heads, in their order
  int32_t batch;        // of the problem, also where q or k and v are packed
  // Of e4m3: scores times score_scale and the row's own scale, where it has one (q_scaled_by_row), are in base 2, o is
  // times v_scale. The r-th query from first_row on keeps keys [keys_begin + r, keys_end + r) that are below key_count;
  // query_count of the tile's rows are queries.
  float score_scale, v_scale;
  int32_t keys_begin, keys_end, key_count, query_count;
  char* o;            // of the tile's first row and head
  float* lse;         // the same; null: not wanted
  bool valid;         // false: no more work
  bool copies;        // whole K and V tiles come by TMA; else rows are gathered
  bool gathers_tail;  // the last tile's rows are gathered, with zeros behind the last key
};

// What the consumers of 16-bit elements have of a view beside that.
struct RowView : TileView {
  // In 32 bits, since every warp asks for them: rows of the tile that are queries, keys of the sequence, and of the
  // tile's first row the first key that it keeps (or would, were there keys before the first) and how many keys lie
  // behind its last one; a row further down the one is one more and the other one less.
  int32_t rows, keys, kept_begin, behind;
};

// A stage of a ring and the parity of its barriers' phase.
template <int kStages>
struct Ring {
  uint32_t stage = 0, phase = 0;
  __device__ __forceinline__ void advance() {
    if (kStages == 1) {
      phase ^= 1;
    } else if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

__device__ __forceinline__ void wait(uint64_t& barrier, uint32_t parity) {
  while (!::cuda::ptx::mbarrier_try_wait_parity(&barrier, parity)) {
  }
}

// One lane arrives for its warp, which has used what the barrier guards by wgmma alone, or is together.
__device__ __forceinline__ void release(uint64_t* barrier) {
  if (threadIdx.x % 32 == 0) ::cuda::ptx::mbarrier_arrive(barrier);
}
// Of what the lanes themselves have read or written: all arrive. Measured in backward, it costs nothing, and
// compute-sanitizer's racecheck counts the arriving lane's accesses alone.
__device__ __forceinline__ void release_lanes(uint64_t* barrier) { ::cuda::ptx::mbarrier_arrive(barrier); }

// A warp is done with the stage that its ring is at.
template <int kStages>
__device__ __forceinline__ void leave(uint64_t (&empty)[kStages], Ring<kStages>& ring) {
  release(&empty[ring.stage]);
  ring.advance();
}

// The same where the warp reads nothing of that stage.
template <int kStages>
__device__ __forceinline__ void skip(uint64_t (&full)[kStages], uint64_t (&empty)[kStages], Ring<kStages>& ring) {
  wait(full[ring.stage], ring.phase);
  __syncwarp();  // no lane still waits for a tile that the first one releases
  leave(empty, ring);
}

// The same in every lane, and known to be by the compiler: wgmma's descriptors then stay in uniform registers.
__device__ __forceinline__ int uniform(int value) { return __shfl_sync(0xffffffffu, value, 0); }

// The row of the scales and of v's mean that belongs to the keys of a view of e4m3: the sequence where they are packed.
__device__ __forceinline__ int64_t key_batch(const ForwardParams& p, const TileView& view) {
  return p.cu_seqlens_k != nullptr ? view.batch : view.sequence.kv_batch;
}
__device__ __forceinline__ float key_scale(const ForwardParams& p, const TileView& view, const CacheScale& scale) {
  if (scale.data == nullptr) return 1.0f;
  return scale.data[key_batch(p, view) * scale.stride[0] + view.head_kv * scale.stride[2]];
}

template <class Config>
struct Control {
  static constexpr int kViews = 4;  // the consumers', the producer's, and two found ahead of it
  // Lanes that arrive for a tile of V, and of each warp for its room: where warps read by plain loads what others may
  // have gathered, every lane speaks for itself, as race checkers want it; the tensor cores' reads need one lane only.
  static constexpr int kValueLanes = Config::kTransposers == 0 ? 1 : 32;
  uint64_t q_full[Config::kQueryStages], q_empty[Config::kQueryStages];
  uint64_t view_full[kViews], view_empty[kViews],
      view_wanted[2];  // by turns, since the producer may ask twice in a row
  uint64_t k_full[Config::kStages], k_empty[Config::kStages];
  uint64_t v_full[Config::kValueStages], v_empty[Config::kValueStages];
  using View = std::conditional_t<Config::kBytes == 2, RowView, TileView>;
  View views[kViews];
  // What the producer reads of a view is there, which is all of it but what RowView adds. Behind all else, and unused
  // for e4m3: four barriers more in front of its others had the products of d 256 serialised (C7511).
  static constexpr bool kFindsFirst = Config::kBytes == 2;
  uint64_t view_found[kFindsFirst ? kViews : 1];

  __device__ void init() {
    constexpr int kWarps = 4 * Config::kGroups;
    for (uint64_t& barrier : q_full) ::cuda::ptx::mbarrier_init(&barrier, 1);
    for (uint64_t& barrier : q_empty) ::cuda::ptx::mbarrier_init(&barrier, kWarps);
    if constexpr (kFindsFirst) {
      for (uint64_t& barrier : view_found) ::cuda::ptx::mbarrier_init(&barrier, 1);
    }
    for (uint64_t& barrier : view_full) ::cuda::ptx::mbarrier_init(&barrier, 1);
    for (uint64_t& barrier : view_empty)
      ::cuda::ptx::mbarrier_init(&barrier, kWarps + Config::kProduces + Config::kTransposers);
    for (uint64_t& barrier : view_wanted) ::cuda::ptx::mbarrier_init(&barrier, 1);
    for (uint64_t& barrier : k_full) ::cuda::ptx::mbarrier_init(&barrier, 1);
    for (uint64_t& barrier : v_full) ::cuda::ptx::mbarrier_init(&barrier, kValueLanes);
    for (uint64_t& barrier : k_empty) ::cuda::ptx::mbarrier_init(&barrier, kWarps);
    for (uint64_t& barrier : v_empty)
      ::cuda::ptx::mbarrier_init(&barrier, kValueLanes * (Config::kTransposers == 0 ? kWarps : Config::kTransposers));
    ::cuda::ptx::fence_mbarrier_init(::cuda::ptx::sem_release, ::cuda::ptx::scope_cluster);
  }
};

}  // namespace tessera::cuda::sm90
