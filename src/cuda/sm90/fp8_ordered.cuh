// The warps that bring V^T where the caller gives it (v_order 1, docs/semantics.md): a channel's keys side by side, in
// the order of p's fragments inside every 16, so that a tile is one box of a tensor map a span. They stand in for the
// transposers, barrier for barrier: one warp brings the even columns, the other the odd ones.
// Invariant: bytes of no key of the sequence never reach a tile. Where the map does not end with the keys, groups of 16
// are gathered and what lies behind the last key is cleared.
#pragma once

#include "fp8_control.cuh"
#include "producer.cuh"
#include "quantize_math.hpp"

namespace tessera::cuda::sm90 {

template <class Config>
struct OrderedValues {
  static_assert(Config::kTransposers == 2);
  static constexpr int kRows = Config::kDimV / 2;  // of V^T, a warp
  static constexpr int kKeySpan = kFp8KeySpan, kKeyGroup = static_cast<int>(core::kKeyGroup);

  const Params& p;
  Fp8Control<Config>& control;
  char* shared;
  int warp;  // 0: even columns, 1: odd ones
  Ring<Config::kStages> transposed;
  Ring<Control<Config>::kViews> views;

  // Slot of the view's first key, from the first of its channel or, paged, in the list of its pages.
  __device__ __forceinline__ int first_slot(const TileView& view) const {
    const auto& s = view.sequence;
    if (p.forward.cu_seqlens_k == nullptr) return static_cast<int>(s.kv_row);
    return static_cast<int>(core::packed_first_slot(s.kv_row - s.first_key, view.batch) + s.first_key);
  }
  // A page that exists, whatever the table says, and the slot in it.
  struct Place {
    int32_t page, slot;
  };
  __device__ __forceinline__ Place place(const TileView& view, int slot) const {
    if (p.forward.page_size == 0) return {static_cast<int32_t>(view.sequence.kv_batch), slot};
    const int entry = slot / p.forward.page_size;
    return {static_cast<int32_t>(clamp_to(view.sequence.pages[entry], 0, p.forward.num_pages - 1)),
            slot - entry * p.forward.page_size};
  }

  __device__ __forceinline__ void copy_tile(const TileView& view, int slot, char* to, uint64_t* full) const {
    if (threadIdx.x % 32 != 0) return;
    cuda_ptx::mbarrier_arrive_expect_tx(cuda_ptx::sem_release, cuda_ptx::scope_cta, cuda_ptx::space_shared, full,
                                        kRows * Config::kTileN);
#pragma unroll 1
    for (int span = 0; span < Config::kTileN / kKeySpan; ++span) {
      const Place at = place(view, slot + span * kKeySpan);
      const int32_t box[5] = {at.slot, 0, warp, view.head_kv, at.page};
      cuda_ptx::cp_async_bulk_tensor(cuda_ptx::space_cluster, cuda_ptx::space_global,
                                     to + (span * Config::kValueRows + warp * kRows) * kKeySpan, &p.v_map, box, full);
    }
  }

  // By 16-byte copies, a warp's all under way at once. `left`: keys of the view from the tile's first on.
  __device__ __forceinline__ void gather_tile(const TileView& view, int slot, int left, char* to) const {
    constexpr int kGroups = Config::kTileN / kKeyGroup;
    const Strides& stride = p.forward.v_stride;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x % 32); i < kRows * kGroups; i += 32) {
      const int row = i / kGroups, group = i - row * kGroups, keys = left - group * kKeyGroup;
      const int channel = 2 * row + warp;
      const bool inside = keys > 0 && channel < p.forward.head_dim_v;
      const char* source = view.v;
      if (inside) {
        const Place at = place(view, slot + group * kKeyGroup);
        if (p.forward.page_size != 0) source += at.page * stride.batch;  // view.v is of the cache row otherwise
        source += channel * stride.row + at.slot;
      }
      char* chunk = to + chunk_offset<kKeySpan>(Config::kValueRows, warp * kRows + row, group);
      if (inside && keys < kKeyGroup) {
        const uint4 bytes = *reinterpret_cast<const uint4*>(source);
        *reinterpret_cast<uint4*>(chunk) = make_uint4(bytes.x & kept(keys), bytes.y & kept(keys - 2),
                                                      bytes.z & kept(keys - 4), bytes.w & kept(keys - 6));
      } else {
        ptx::copy_async_16(ptx::shared_address(chunk), source, inside ? 16 : 0);
      }
    }
    ptx::copy_async_commit();
    ptx::copy_async_wait<0>();
  }
  // Bytes of keys 0, 1, 8, 9 that are below `keys`.
  __device__ __forceinline__ static uint32_t kept(int keys) {
    return (keys > 0 ? 0xffu : 0) | (keys > 1 ? 0xff00u : 0) | (keys > 8 ? 0xff0000u : 0) |
           (keys > 9 ? 0xff000000u : 0);
  }

  __device__ __forceinline__ void load_tiles(const TileView& view) {
    const int begin = static_cast<int>(view.tiles.begin), end = static_cast<int>(view.tiles.end);
    const int seqlen_k = static_cast<int>(view.sequence.band.seqlen_k), first = first_slot(view);
    // A box lies in one page; the map ends with the keys where these fill their last group.
    const bool copies = p.forward.page_size == 0 || (p.forward.page_size % kKeySpan == 0 && first % kKeySpan == 0);
    const bool bounded = p.kv_bounded && p.forward.seqlen_k % kKeyGroup == 0;
#pragma unroll 1
    for (int tile = begin; tile < end; ++tile) {
      uint64_t* full = &control.transposed_full[transposed.stage];
      char* to = shared + Config::kTransposedOffset + transposed.stage * Config::kTransposedBytes;
      const int key = tile * Config::kTileN, left = seqlen_k - key;
      wait(control.transposed_empty[transposed.stage], transposed.phase ^ 1);
      if (copies && (bounded || left >= Config::kTileN)) {
        copy_tile(view, first + key, to, full);
      } else {
        gather_tile(view, first + key, left, to);
        // What wgmma reads it reads by the asynchronous proxy.
        cuda_ptx::fence_proxy_async(cuda_ptx::space_shared);
        __syncwarp();
        release(full);
      }
      transposed.advance();
    }
  }

  __device__ __forceinline__ void run() {
    while (true) {
      wait(control.view_full[views.stage], views.phase);
      const TileView& view = control.views[views.stage];
      if (!view.valid) return;
      load_tiles(view);
      __syncwarp();
      leave(control.view_empty, views);
    }
  }
};

}  // namespace tessera::cuda::sm90
