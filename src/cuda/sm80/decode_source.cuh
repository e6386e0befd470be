// How a warp brings its own 16 keys of a tile to shared memory: dense and packed rows at a constant stride, or pages of
// any size. Rows at or past the split's last key are zero-filled, never read.
// Page and slot of key l are held by lane l, looked up a tile ahead of the copies that use them.
#pragma once

#include <cstdint>

#include "../tile/layout.cuh"
#include "decode_config.hpp"
#include "decode_unit.cuh"

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

  // Page and slot of the lane's key of `tile`; nothing is looked up for a key past the end.
  __device__ __forceinline__ int2 find(int tile) const {
    const int lane = threadIdx.x % 32, key = first_key(tile) + lane % Config::kWarpKeys;
    if (p.f.page_size == 0 || key >= view.sequence.band.seqlen_k) return make_int2(0, 0);
    const int position = static_cast<int>(view.sequence.kv_row + key), index = position / p.f.page_size;
    return make_int2(static_cast<int>(clamp_to(view.sequence.pages[index], 0, p.f.num_pages - 1)),
                     position - index * p.f.page_size);
  }

  // Starts the copies of the warp's keys and values of `tile` to the warp's part of a stage.
  __device__ __forceinline__ void start(uint32_t stage, int tile, int2 at) const {
    const int lane = threadIdx.x % 32, row = lane / kLanes, chunk = lane % kLanes, first = first_key(tile);
    // Read here, once: copies are thought to change memory.
    const int left = static_cast<int>(view.sequence.band.seqlen_k) - first;
    const int64_t cache_row = view.sequence.kv_row + first + row;
    const char *k = view.k + chunk * 16, *v = view.v + chunk * 16;
    start_rows(stage, left, cache_row, at, k, p.f.k_stride, p.f.head_dim_qk * kBytes / 16 - chunk);
    start_rows(stage + Config::kKeyBytes, left, cache_row, at, v, p.f.v_stride, p.f.head_dim_v * kBytes / 16 - chunk);
  }

  // The scale of the lane's key (lanes 0 to 15) or value of `tile`, `at` being its page and slot; 0 past the end.
  __device__ __forceinline__ float find_scale(int tile, int2 at) const {
    const int lane = threadIdx.x % 32, key = first_key(tile) + lane % Config::kWarpKeys;
    const CacheScale& scale = lane < Config::kWarpKeys ? p.k_scale : p.v_scale;
    if (key >= view.sequence.band.seqlen_k) return 0.0f;
    if (scale.data == nullptr) return 1.0f;
    int64_t outer = at.x;
    int row = at.y;
    if (p.f.page_size == 0) {
      outer = view.scale_outer;
      // Whatever cumulative lengths hold: there are scales of seqlen_k rows.
      row = static_cast<int>(clamp_to(view.scale_row + key, 0, p.f.seqlen_k - 1));
    }
    row = scale.rows == 0 ? 0 : row / scale.rows;
    return scale.data[outer * scale.stride[0] + row * scale.stride[1] + view.head_kv * scale.stride[2]];
  }
  // To the warp's part of the tile's stage.
  __device__ __forceinline__ static void keep_scale(char* stage, float scale) {
    reinterpret_cast<float*>(stage + 2 * Config::kKeyBytes)[threadIdx.x % 32] = scale;
  }

 private:
  // `left`: keys from the warp's first on; `chunks`: of a row from the lane's first on; `head`: of row 0.
  __device__ __forceinline__ void start_rows(uint32_t destination, int left, int64_t cache_row, int2 at,
                                             const char* head, const Strides& stride, int chunks) const {
    const int lane = threadIdx.x % 32, row = lane / kLanes, chunk = lane % kLanes;
    const char* pointer = head + kBytes * stride.row * cache_row;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int my_row = row + pass * kRowsPerPass;
      if (p.f.page_size != 0) {
        const int page = __shfl_sync(0xffffffffu, at.x, my_row), slot = __shfl_sync(0xffffffffu, at.y, my_row);
        pointer = head + kBytes * (page * stride.batch + slot * stride.row);
      }
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        ptx::copy_async_16(destination + Layout::offset(my_row, chunk) + i * kLanes * 16, pointer + i * kLanes * 16,
                           my_row < left && i * kLanes < chunks ? 16 : 0);
      }
      pointer += kBytes * stride.row * kRowsPerPass;
    }
  }
};

}  // namespace tessera::cuda::sm80
