// How a warp brings its own 16 keys of a tile to shared memory: dense and packed rows at a constant stride, or pages of
// any size. Rows at or past the split's last key are zero-filled, never read.
// The page table's entry of key l is held by lane l, asked for two tiles ahead of the copies that use it.
#pragma once

#include <cstdint>

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

  // The warp's first key of a tile.
  __device__ __forceinline__ static int first_key(int tile) {
    return tile * Config::kTileN + static_cast<int>(threadIdx.x / 32) * Config::kWarpKeys;
  }

  // Position in its sequence's cache of the lane's key of `tile`.
  __device__ __forceinline__ uint32_t position(int tile) const {
    return static_cast<uint32_t>(view.sequence.kv_row) + first_key(tile) + threadIdx.x % Config::kWarpKeys;
  }

  // The table's entry for the lane's key of `tile`, as it is: nothing waits for it here. None past the end.
  __device__ __forceinline__ int find(int tile) const {
    const int key = first_key(tile) + static_cast<int>(threadIdx.x % Config::kWarpKeys);
    if (p.f.page_size == 0 || key >= view.sequence.band.seqlen_k) return 0;
    return view.sequence.pages[p.page_size.divide(position(tile))];
  }

  // Starts the copies of the warp's keys and values of `tile` to the warp's part of a stage.
  __device__ __forceinline__ void start(uint32_t stage, int tile, int entry) const {
    // Read here, once: copies are thought to change memory.
    const int left = static_cast<int>(view.sequence.band.seqlen_k) - first_key(tile);
    const int k_chunks = p.f.head_dim_qk * kBytes / 16 - own_chunk();
    const int v_chunks = p.f.head_dim_v * kBytes / 16 - own_chunk();
    const int64_t k_row = kBytes * p.f.k_stride.row, v_row = kBytes * p.f.v_stride.row;
    const char *k = view.k, *v = view.v;
    int64_t row = view.sequence.kv_row + first_key(tile);
    if (p.f.page_size != 0) {
      int2 at = locate(tile, entry);
      // Where the pages of 16 keys are one page, its rows follow one another as those of a dense cache do.
      const bool scattered = (p.f.page_size | view.sequence.kv_row) % Config::kWarpKeys != 0;
      if (!scattered) at.x = __shfl_sync(0xffffffffu, at.x, 0), at.y = __shfl_sync(0xffffffffu, at.y, 0);
      k += kBytes * at.x * p.f.k_stride.batch;
      v += kBytes * at.x * p.f.v_stride.batch;
      row = at.y;
      if (scattered) {
        start_rows<true>(stage, left, k + row * k_row, 0, k_chunks);
        start_rows<true>(stage + Config::kKeyBytes, left, v + row * v_row, 0, v_chunks);
        return;
      }
    }
    row += own_row();
    start_rows<false>(stage, left, k + row * k_row + own_chunk() * 16, k_row, k_chunks);
    start_rows<false>(stage + Config::kKeyBytes, left, v + row * v_row + own_chunk() * 16, v_row, v_chunks);
  }

  // The scale of the lane's key (lanes 0 to 15) or value of `tile`; 0 past the end.
  __device__ __forceinline__ float find_scale(int tile, int entry) const {
    const int lane = threadIdx.x % 32, key = first_key(tile) + lane % Config::kWarpKeys;
    const CacheScale& scale = lane < Config::kWarpKeys ? p.k_scale : p.v_scale;
    if (key >= view.sequence.band.seqlen_k) return 0.0f;
    if (scale.data == nullptr) return 1.0f;
    int64_t outer = view.scale_outer;
    int row = 0;
    if (p.f.page_size != 0) {
      const int2 at = locate(tile, entry);
      outer = at.x, row = at.y;
    } else {
      // Whatever cumulative lengths hold: there are scales of seqlen_k rows.
      row = static_cast<int>(clamp_to(view.scale_row + key, 0, p.f.seqlen_k - 1));
    }
    row = static_cast<int>(scale.rows.divide(row));  // a factor of 0 where one scale is for all
    return scale.data[outer * scale.stride[0] + row * scale.stride[1] + view.head_kv * scale.stride[2]];
  }
  // To the warp's part of the tile's scales.
  __device__ __forceinline__ static void keep_scale(char* scales, float scale) {
    reinterpret_cast<float*>(scales)[threadIdx.x % 32] = scale;
  }

 private:
  // The lane's row of a pass and its first chunk of a row.
  __device__ __forceinline__ static int own_row() { return threadIdx.x % 32 / kLanes; }
  __device__ __forceinline__ static int own_chunk() { return threadIdx.x % kLanes; }

  // Page and slot of the lane's key of `tile`.
  __device__ __forceinline__ int2 locate(int tile, int entry) const {
    const uint32_t at = position(tile);
    return make_int2(static_cast<int>(clamp_to(entry, 0, p.f.num_pages - 1)),
                     static_cast<int>(at - p.page_size.divide(at) * p.page_size.value));
  }

  // `left`: keys from the warp's first on; `from`: the lane's first chunk, of scattered rows the lane's key;
  // `row_bytes`: to the next row; `chunks`: of a row from the lane's first on.
  template <bool kScattered>
  __device__ __forceinline__ static void start_rows(uint32_t stage, int left, const char* from, int64_t row_bytes,
                                                    int chunks) {
    const uint32_t own = stage + Layout::offset(own_row(), own_chunk());
    left -= own_row();
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int first = pass * kRowsPerPass;
      const char* at = from;
      if constexpr (kScattered) {
        const auto key = __shfl_sync(0xffffffffu, reinterpret_cast<uint64_t>(from), first + own_row());
        at = reinterpret_cast<const char*>(key) + own_chunk() * 16;
      }
      // The lane's row of a pass has the bits of `first` clear, so swizzles are taken together.
      const uint32_t to = (own ^ Layout::swizzle(first) << 4) + first * Layout::kRowBytes;
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        ptx::copy_async_16(to + i * kLanes * 16, at + i * kLanes * 16, first < left && i * kLanes < chunks ? 16 : 0);
      }
      from += row_bytes * kRowsPerPass;
    }
  }
};

}  // namespace tessera::cuda::sm80
