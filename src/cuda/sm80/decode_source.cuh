// How a warp brings its own 16 keys of a tile to shared memory: dense and packed rows at a constant stride, or pages of
// any size. Rows at or past the split's last key are zero-filled, never read.
// Entries of the page table are asked for 32 a warp, a lane an entry, long before their copies, so that none waits for
// one (at d 256 with more than 8 rows no register is left for that: there a turn's first copies wait): of 32 tiles
// where the 16 keys of a warp are on one page, else of the keys of two tiles.
#pragma once

#include <cstdint>

#include "../ptx/load.cuh"
#include "../ptx/opaque.cuh"
#include "../tile/decode_unit.cuh"
#include "../tile/layout.cuh"
#include "decode_config.hpp"

namespace tessera::cuda::sm80 {

template <class Config>
struct DecodeSource {
  // Rows of K and V in 16-byte chunks, as those of 16-bit tiles of as many bytes.
  using Layout = TileLayout<Config::kHeadDim * Config::kCacheBytes / 2>;
  static constexpr int kBytes = Config::kCacheBytes, kLanes = Layout::kSwizzleChunks, kRowsPerPass = 32 / kLanes;
  static constexpr int kPasses = Config::kWarpKeys / kRowsPerPass;
  static constexpr int kChunks = Layout::kRowBytes / 16 / kLanes;

  const DecodeParams& p;
  const DecodeView& view;
  // What a tile's copies need at once, or the next tile is late. The lane's first chunk of k and v: of its first row of
  // the tile whose copies come next; where keys are `scattered`, the first byte of the lane's key. The split's keys.
  // Where the lane's first chunk goes.
  const char *k, *v;
  int seqlen_k;
  uint32_t own;
  bool scattered;             // the 16 keys of a warp may lie on several pages
  int entries, next_entries;  // of the tiles of this turn and of the next ones
  // Two blocks of rows leave no registers to keep it in, at d 256 nor for entries that are not needed yet.
  static constexpr bool kKept = Config::kRowBlocks == 1, kTwoTurns = Config::kHeadDim * Config::kRowBlocks < 512;

  // `part`: the warp's of a stage. begin() is to be called.
  __device__ __forceinline__ DecodeSource(const DecodeParams& params, const DecodeView& of, uint32_t part)
      : p(params), view(of) {
    own = part + Layout::offset(own_row(), own_chunk());
    if constexpr (kKept) own = ptx::opaque(static_cast<int>(own));
  }
  // Of the view as it is now.
  __device__ __forceinline__ void begin() {
    scattered = p.f.page_size != 0 && (p.f.page_size | static_cast<int>(view.sequence.kv_row)) % Config::kWarpKeys != 0;
    if constexpr (kKept) {
      if (p.f.page_size == 0) place(static_cast<int>(view.tiles.begin));
    }
  }
  // What look_up() is going to read comes to L2. Reads nothing.
  __device__ __forceinline__ void prefetch() const {
    if (p.f.page_size != 0 && view.tiles.begin < view.tiles.end)
      ptx::prefetch(entry_at(static_cast<int>(view.tiles.begin)));
  }
  // The first entries of a page table.
  __device__ __forceinline__ void look_up() {
    if (p.f.page_size == 0 || view.tiles.begin >= view.tiles.end) return;
    const int begin = static_cast<int>(view.tiles.begin);
    entries = find(begin);
    if constexpr (kTwoTurns) next_entries = find(begin + turn());
    if constexpr (kKept) place(begin);
  }

  // Starts the copies of the warp's keys and values of `tile` to stage `index`. Tiles come one after another.
  __device__ __forceinline__ void start(int index, int tile) {
    if constexpr (!kKept) place(tile);
    const uint32_t stage = own + index * Config::kStageBytes;
    const int left = seqlen_k - first_key(tile);
    const int k_chunks = p.f.head_dim_qk * kBytes / 16 - own_chunk();
    const int v_chunks = p.f.head_dim_v * kBytes / 16 - own_chunk();
    if (scattered) {
      copy_rows<true>(stage, left, k, 0, k_chunks);
      copy_rows<true>(stage + Config::kKeyBytes, left, v, 0, v_chunks);
    } else {
      copy_rows<false>(stage, left, k, kBytes * p.f.k_stride.row, k_chunks);
      copy_rows<false>(stage + Config::kKeyBytes, left, v, kBytes * p.f.v_stride.row, v_chunks);
    }
  }

  // To be called for each tile, behind its start() and find_scale(): prepares the next one's.
  __device__ __forceinline__ void advance(int tile) {
    if (p.f.page_size == 0) {
      if constexpr (kKept) {
        k += kBytes * Config::kTileN * p.f.k_stride.row;
        v += kBytes * Config::kTileN * p.f.v_stride.row;
      }
      return;
    }
    if (static_cast<uint32_t>(tile + 1 - static_cast<int>(view.tiles.begin)) % turn() == 0) {
      if constexpr (kTwoTurns) {
        entries = next_entries;
        next_entries = find(tile + 1 + turn());
      } else {
        entries = find(tile + 1);
      }
    }
    if constexpr (kKept) place(tile + 1);
  }

  // The scale of the lane's key (lanes 0 to 15) or value of `tile`; 0 past the end.
  __device__ __forceinline__ float find_scale(int tile) const {
    const int lane = threadIdx.x % 32, key = first_key(tile) + lane % Config::kWarpKeys;
    const CacheScale& scale = lane < Config::kWarpKeys ? p.k_scale : p.v_scale;
    int64_t outer = view.scale_outer;
    int row = 0;
    if (p.f.page_size != 0) {
      const int2 at = locate(tile);
      outer = at.x, row = at.y;
    }
    if (key >= view.sequence.band.seqlen_k) return 0.0f;
    if (scale.data == nullptr) return 1.0f;
    if (p.f.page_size == 0) {
      // Whatever cumulative lengths hold: there are scales of seqlen_k rows.
      row = static_cast<int>(clamp_to(view.scale_row + key, 0, p.f.seqlen_k - 1));
    }
    row = static_cast<int>(scale.rows.divide(row));  // a factor of 0 where one scale is for all
    return scale.data[outer * scale.stride[0] + row * scale.stride[1] + view.head_kv * scale.stride[2]];
  }
  // The scale of all of the unit's keys or values, where they have one.
  __device__ __forceinline__ float constant_scale(const CacheScale& scale) const {
    if (scale.data == nullptr) return 1.0f;
    return scale.data[view.scale_outer * scale.stride[0] + view.head_kv * scale.stride[2]];
  }
  // To the warp's part of the tile's scales.
  __device__ __forceinline__ static void keep_scale(char* scales, float scale) {
    reinterpret_cast<float*>(scales)[threadIdx.x % 32] = scale;
  }

 private:
  // The warp's first key of a tile.
  __device__ __forceinline__ static int first_key(int tile) {
    return tile * Config::kTileN + static_cast<int>(threadIdx.x / 32) * Config::kWarpKeys;
  }
  // The lane's row of a pass and its first chunk of a row.
  __device__ __forceinline__ static int own_row() { return threadIdx.x % 32 / kLanes; }
  __device__ __forceinline__ static int own_chunk() { return threadIdx.x % kLanes; }

  // Of `tile`.
  __device__ __forceinline__ void place(int tile) {
    int64_t page = 0, row = view.sequence.kv_row + first_key(tile) + own_row();
    if (p.f.page_size != 0) {
      const int2 at = locate(tile);
      page = at.x, row = at.y;
      // The rows of one page follow one another as those of a dense cache do.
      if (!scattered) row += own_row() - static_cast<int>(threadIdx.x % Config::kWarpKeys);
    }
    const int chunk = scattered ? 0 : own_chunk() * 16;
    k = view.k + kBytes * (page * p.f.k_stride.batch + row * p.f.k_stride.row) + chunk;
    v = view.v + kBytes * (page * p.f.v_stride.batch + row * p.f.v_stride.row) + chunk;
    seqlen_k = static_cast<int>(view.sequence.band.seqlen_k);
  }

  // Tiles whose entries a warp holds at a time.
  __device__ __forceinline__ uint32_t turn() const { return scattered ? 32 / Config::kWarpKeys : 32; }

  // The table's entry that the lane holds of the turn from `tile` on, as it is; past the end that of the last key.
  __device__ __forceinline__ int find(int tile) const { return *entry_at(tile); }
  __device__ __forceinline__ const int32_t* entry_at(int tile) const {
    const int lane = threadIdx.x % 32, key = scattered ? lane % Config::kWarpKeys : 0;
    const uint32_t at = first_key(tile + (scattered ? lane / Config::kWarpKeys : lane)) + key;
    const uint32_t last = static_cast<uint32_t>(view.sequence.band.seqlen_k) - 1;
    const uint32_t position = static_cast<uint32_t>(view.sequence.kv_row) + (at < last ? at : last);
    return view.sequence.pages + p.page_size.divide(position);
  }

  // Page and slot of the lane's key of `tile`.
  __device__ __forceinline__ int2 locate(int tile) const {
    const uint32_t index = tile - static_cast<int>(view.tiles.begin), key = threadIdx.x % Config::kWarpKeys;
    const uint32_t holder = scattered ? index * Config::kWarpKeys + key : index;
    const int entry = __shfl_sync(0xffffffffu, entries, holder % 32);
    const uint32_t at = static_cast<uint32_t>(view.sequence.kv_row) + first_key(tile) + key;
    return make_int2(static_cast<int>(clamp_to(entry, 0, p.f.num_pages - 1)),
                     static_cast<int>(at - p.page_size.divide(at) * p.page_size.value));
  }

  // `stage`: where the lane's first chunk goes; `left`: keys from the warp's first on; `from`: as k and v; `bytes`: to
  // the next row; `chunks`: of a row from the lane's first on.
  template <bool kScattered>
  __device__ __forceinline__ static void copy_rows(uint32_t stage, int left, const char* from, int64_t bytes,
                                                   int chunks) {
    left -= own_row();
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int first = pass * kRowsPerPass;
      const char* at = from;
      if constexpr (kScattered) {
        const auto key = __shfl_sync(0xffffffffu, reinterpret_cast<uint64_t>(from), first + own_row());
        at = reinterpret_cast<const char*>(key) + own_chunk() * 16;
      }
      // One address for all of a row's chunks.
      at = reinterpret_cast<const char*>(ptx::opaque(reinterpret_cast<unsigned long long>(at)));
      // The lane's row of a pass has the bits of `first` clear, so swizzles are taken together.
      const uint32_t to = (stage ^ Layout::swizzle(first) << 4) + first * Layout::kRowBytes;
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        ptx::copy_async_16(to + i * kLanes * 16, at + i * kLanes * 16, first < left && i * kLanes < chunks ? 16 : 0);
      }
      if constexpr (!kScattered) from = at + bytes * kRowsPerPass;
    }
  }
};

}  // namespace tessera::cuda::sm80
