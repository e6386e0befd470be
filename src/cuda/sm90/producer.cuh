// The producer: one warp that fills the Q, K and V tiles of one piece of work after another, as far ahead of the
// consumers as the stages allow.
// Tiles lie as [columns / span][rows][span], 16-byte chunks swizzled as TMA does. Bytes past the last key of a sequence
// never reach a tile: the tensor map ends there, or the rows are gathered with zeros behind.
#pragma once

#include <cuda/ptx>

#include "../ptx/copy_async.cuh"
#include "control.cuh"

namespace tessera::cuda::sm90 {

namespace cuda_ptx = ::cuda::ptx;

// Where element 0 of a 16-byte chunk of a row lies in its tile.
template <int kSpan>
__device__ __forceinline__ uint32_t chunk_offset(uint32_t rows, uint32_t row, uint32_t chunk) {
  constexpr uint32_t kChunks = kSpan / 16;
  const uint32_t swizzle = row / (128 / kSpan) % kChunks;
  return (chunk / kChunks * rows + row) * kSpan + ((chunk % kChunks) ^ swizzle) * 16;
}

template <class Config>
struct Producer {
  const Params& p;
  Control<Config>& control;
  char* shared;
  Ring<Config::kStages> k;
  Ring<Config::kValueStages> v;
  Ring<Config::kQueryStages> q;
  Ring<Control<Config>::kViews> views;
  uint32_t wants;  // which of view_wanted is next

  // The lane of the producer's warp that issues copies.
  __device__ __forceinline__ static bool leads() { return threadIdx.x == (Config::kProduces ? 0 : 128); }

  __device__ __forceinline__ void load_query(const TileView& view) {
    wait(control.q_empty[q.stage], q.phase ^ 1);
    if (leads()) {
      uint64_t* full = &control.q_full[q.stage];
      cuda_ptx::mbarrier_arrive_expect_tx(cuda_ptx::sem_release, cuda_ptx::scope_cta, cuda_ptx::space_shared, full,
                                          Config::kQueryBytes);
      char* to = shared + q.stage * Config::kQueryBytes;
      const auto row = static_cast<int32_t>(view.sequence.q_row + view.first_row);
      const auto batch = static_cast<int32_t>(view.sequence.q_batch);
#pragma unroll
      for (int c = 0; c < Config::kDimQk / Config::kSpanColumns; ++c) {
        const int32_t at[5] = {c * Config::kSpanColumns, 0, row, view.pack_index, batch};
        cuda_ptx::cp_async_bulk_tensor(cuda_ptx::space_cluster, cuda_ptx::space_global,
                                       to + c * Config::kTileM * Config::kSpan, &p.q_map, at, full);
      }
    }
    q.advance();
  }

  // K or V: what one operand's tiles are copied with.
  struct Operand {
    const CUtensorMap* map;
    const char* head;  // row 0 of the key/value head, as in BlockView
    Strides stride;
    int32_t dim;
  };

  // Where the rows of a view begin, as TMA counts.
  struct Position {
    int32_t row, head, batch;
  };

  // Arrives for all lanes; the tile's bytes are to come.
  template <int kColumns, int kLanes>
  __device__ __forceinline__ static void expect_tile(uint64_t* full) {
    if constexpr (kLanes > 1)
      cuda_ptx::mbarrier_arrive(cuda_ptx::sem_release, cuda_ptx::scope_cta, cuda_ptx::space_shared, full, kLanes - 1);
    cuda_ptx::mbarrier_arrive_expect_tx(cuda_ptx::sem_release, cuda_ptx::scope_cta, cuda_ptx::space_shared, full,
                                        Config::kTileN * kColumns * Config::kBytes);
  }

  // One tile by TMA, its rows at a constant stride. Every instruction between the release of a stage and its next copy
  // delays the consumers, so all that a view fixes is in registers.
  template <int kColumns, int kLanes>
  __device__ __forceinline__ void copy_rows(const CUtensorMap& map, const Position& first, int tile, char* to,
                                            uint64_t* full) {
    if (!leads()) return;
    expect_tile<kColumns, kLanes>(full);
    const int32_t row = first.row + tile * Config::kTileN;
#pragma unroll
    for (int c = 0; c < kColumns / Config::kSpanColumns; ++c) {
      copy_box(map, {c * Config::kSpanColumns, row, first.head, first.batch}, to + c * Config::kTileN * Config::kSpan,
               full);
    }
  }

  // One tile in boxes of kv_box_rows from the pages, or row by row.
  template <int kColumns, int kLanes>
  __device__ __forceinline__ void collect_rows(const TileView& view, int tile, const Operand& operand, char* to,
                                               uint64_t* full) {
    const bool last = (tile + 1) * Config::kTileN > view.sequence.band.seqlen_k;
    if (!view.copies || (last && view.gathers_tail)) {
      gather_rows<kColumns>(view, tile, operand, ptx::shared_address(to));
      ptx::copy_async_commit();
      ptx::copy_async_wait<0>();
      cuda_ptx::fence_proxy_async(cuda_ptx::space_shared);
      __syncwarp();
      if (kLanes > 1 || threadIdx.x == 0) cuda_ptx::mbarrier_arrive(full);
      return;
    }
    if (threadIdx.x == 0) expect_tile<kColumns, kLanes>(full);
    if (static_cast<int>(threadIdx.x) < Config::kTileN / p.kv_box_rows) {
      const int box = static_cast<int>(threadIdx.x) * p.kv_box_rows;
      const int slot = static_cast<int>(view.sequence.kv_row) + tile * Config::kTileN + box;
      const int entry = slot / p.forward.page_size;
      const auto page = static_cast<int32_t>(clamp_to(view.sequence.pages[entry], 0, p.forward.num_pages - 1));
      to += box * Config::kSpan;
#pragma unroll 1
      for (int c = 0; c < kColumns / Config::kSpanColumns; ++c) {
        copy_box(*operand.map, {c * Config::kSpanColumns, slot - entry * p.forward.page_size, view.head_kv, page}, to,
                 full);
        to += Config::kTileN * Config::kSpan;
      }
    }
    __syncwarp();
  }

  __device__ __forceinline__ static void copy_box(const CUtensorMap& map, const int32_t (&at)[4], char* to,
                                                  uint64_t* full) {
    cuda_ptx::cp_async_bulk_tensor(cuda_ptx::space_cluster, cuda_ptx::space_global, to, &map, at, full);
  }

  // Rows by 16-byte copies, wherever they lie, with zeros from the end of the sequence on.
  template <int kColumns>
  __device__ __forceinline__ void gather_rows(const TileView& view, int tile, const Operand& operand, uint32_t to) {
    constexpr int kElements = 16 / Config::kBytes, kChunks = kColumns / kElements;
    const auto& s = view.sequence;
    const int first = tile * Config::kTileN, seqlen_k = static_cast<int>(s.band.seqlen_k);
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < Config::kTileN * kChunks; i += 32) {
      const int row = i / kChunks, chunk = i - row * kChunks;
      const bool inside = first + row < seqlen_k && chunk * kElements < operand.dim;
      const char* source = operand.head;
      if (inside) {
        int64_t at = s.kv_row + first + row;
        int64_t page = 0;
        if (p.forward.page_size != 0) {
          const int entry = static_cast<int>(at) / p.forward.page_size;
          page = clamp_to(s.pages[entry], 0, p.forward.num_pages - 1);
          at -= int64_t{entry} * p.forward.page_size;
        }
        source += Config::kBytes * (page * operand.stride.batch + at * operand.stride.row) + chunk * 16;
      }
      ptx::copy_async_16(to + chunk_offset<Config::kSpan>(Config::kTileN, row, chunk), source, inside ? 16 : 0);
    }
  }

  // False: warps of their own bring V^T (fp8_ordered.cuh).
  __device__ __forceinline__ bool brings_values() const {
    if constexpr (Config::kTransposers != 0) return !p.fp8.v_ordered;
    return true;
  }

  // Which tiles a view has: [begin, copied_end) come whole by copy_rows, the others by collect_rows.
  struct Stretch {
    int begin, end, copied_end, wanted;
    Position first;
  };
  __device__ __forceinline__ Stretch find_stretch(const TileView& view) const {
    const int begin = static_cast<int>(view.tiles.begin), end = static_cast<int>(view.tiles.end);
    int copied_end = end;
    if constexpr (!Config::kDense) {
      copied_end = !view.copies || p.forward.page_size != 0 ? begin : view.gathers_tail ? end - 1 : end;
    }
    const Position first{static_cast<int32_t>(view.sequence.kv_row), view.head_kv,
                         static_cast<int32_t>(view.sequence.kv_batch)};
    // The next piece of work is asked for with so many tiles to go: finding it takes about as long as they do.
    constexpr int kLead = 3;
    const int wanted = end - begin > kLead ? end - kLead : begin;
    return {begin, end, copied_end, wanted, first};
  }

  __device__ __forceinline__ void want_view() {
    if (leads()) cuda_ptx::mbarrier_arrive(&control.view_wanted[wants]);
    wants ^= 1;
  }

  // K of one tile, where there is one, as soon as its stage has been left; before that of tile `wanted` the next piece
  // of work is asked for.
  __device__ __forceinline__ void load_key(const TileView& view, const Stretch& tiles, int tile) {
    if (tile == tiles.wanted) want_view();
    if (tile < tiles.end) {
      char* to = shared + Config::kKeyOffset + k.stage * Config::kKeyBytes;
      uint64_t* full = &control.k_full[k.stage];
      wait(control.k_empty[k.stage], k.phase ^ 1);
      if (Config::kDense || tile < tiles.copied_end) {
        copy_rows<Config::kDimQk, 1>(p.k_map, tiles.first, tile, to, full);
      } else {
        collect_rows<Config::kDimQk, 1>(view, tile, {&p.k_map, view.k, p.forward.k_stride, p.forward.head_dim_qk}, to,
                                        full);
      }
      k.advance();
    }
  }

  // V of the tile before `next`.
  __device__ __forceinline__ void load_value(const TileView& view, const Stretch& tiles, int next) {
    char* to = shared + Config::kValueOffset + v.stage * Config::kValueBytes;
    uint64_t* full = &control.v_full[v.stage];
    wait(control.v_empty[v.stage], v.phase ^ 1);
    if (Config::kDense || next - 1 < tiles.copied_end) {
      copy_rows<Config::kDimV, Control<Config>::kValueLanes>(p.v_map, tiles.first, next - 1, to, full);
    } else {
      collect_rows<Config::kDimV, Control<Config>::kValueLanes>(
          view, next - 1, {&p.v_map, view.v, p.forward.v_stride, p.forward.head_dim_v}, to, full);
    }
    v.advance();
  }

  // The same for a consumer warp, which keeps its registers for its scores.
  __device__ __forceinline__ void load_key(const TileView& view, int tile) { load_key(view, find_stretch(view), tile); }
  __device__ __forceinline__ void load_value(const TileView& view, int tile) {
    load_value(view, find_stretch(view), tile + 1);
  }

  // V lags one tile behind K, as the consumers take them.
  __device__ __forceinline__ void load_tiles(const TileView& view) {
    const Stretch tiles = find_stretch(view);
#pragma unroll 1
    for (int tile = tiles.begin; tile <= tiles.end; ++tile) {
      load_key(view, tiles, tile);
      if (tile > tiles.begin && brings_values()) load_value(view, tiles, tile);
    }
  }

  __device__ __forceinline__ void run() {
    while (true) {
      if constexpr (Control<Config>::kFindsFirst) {
        wait(control.view_found[views.stage], views.phase);
      } else {
        wait(control.view_full[views.stage], views.phase);
      }
      const TileView& view = control.views[views.stage];
      if (!view.valid) return;
      // An empty view has tiles [0, 0).
      if (view.tiles.begin < view.tiles.end) {
        load_query(view);
        load_tiles(view);
      } else {
        want_view();
      }
      __syncwarp();
      if (threadIdx.x == 0) cuda_ptx::mbarrier_arrive(&control.view_empty[views.stage]);
      views.advance();
    }
  }
};

}  // namespace tessera::cuda::sm90
