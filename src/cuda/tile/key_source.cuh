// How the key and value rows of a block reach shared memory: dense and packed rows at a constant stride, or pages of
// any size found through the page table. Rows at or past seqlen_k are zero-filled, never read.
// Paged blocks keep the page and slot of the rows of two tiles in shared memory, written one tile ahead of the copies
// that use them, so that the page table's latency hides behind a tile's arithmetic.
#pragma once

#include <cstdint>

#include "layout.cuh"
#include "scheduler.cuh"

namespace tessera::cuda {

template <class Config>
struct KeySource {
  using Copy = TileCopy<Config::kTileN, Config::kHeadDim, Config::kThreads>;
  static_assert(Config::kTileN <= Config::kThreads);

  const ForwardParams& p;
  const BlockView& view;
  int2* rows;  // shared memory [2][kTileN]: page, slot

  // Page and slot of key row threadIdx.x of `tile`; nothing is looked up for a row past the end.
  __device__ __forceinline__ int2 find_row(int tile) const {
    const int64_t key = int64_t{tile} * Config::kTileN + threadIdx.x;
    if (p.page_size == 0 || threadIdx.x >= Config::kTileN || key >= view.sequence.band.seqlen_k) return {0, 0};
    const int position = static_cast<int>(view.sequence.kv_row + key);
    const int index = position / p.page_size;
    return {static_cast<int>(clamp_to(view.sequence.pages[index], 0, p.num_pages - 1)), position - index * p.page_size};
  }
  __device__ __forceinline__ void keep_row(int tile, int2 row) const {
    if (p.page_size != 0 && threadIdx.x < Config::kTileN) rows[(tile & 1) * Config::kTileN + threadIdx.x] = row;
  }

  // Starts the copies of one tile of k or of v to the tile at `destination`.
  __device__ __forceinline__ void start_keys(uint32_t destination, int tile) const {
    start(destination, tile, view.k, p.k_stride, p.head_dim_qk / 8);
  }
  __device__ __forceinline__ void start_values(uint32_t destination, int tile) const {
    start(destination, tile, view.v, p.v_stride, p.head_dim_v / 8);
  }

 private:
  __device__ __forceinline__ void start(uint32_t destination, int tile, const char* head, const Strides& stride,
                                        int valid_chunks) const {
    const int row = tile * Config::kTileN + Copy::row(), seqlen_k = static_cast<int>(view.sequence.band.seqlen_k);
    const char* chunk = head + Copy::chunk() * 16;
    if (p.page_size == 0) {
      const char* pointer = chunk + 2 * stride.row * (view.sequence.kv_row + row);
#pragma unroll
      for (int pass = 0; pass < Copy::kPasses; ++pass) {
        Copy::start(destination, pass, pointer + 2 * stride.row * (pass * Copy::kRowsPerPass),
                    row + pass * Copy::kRowsPerPass < seqlen_k, valid_chunks);
      }
      return;
    }
#pragma unroll
    for (int pass = 0; pass < Copy::kPasses; ++pass) {
      const int2 at = rows[(tile & 1) * Config::kTileN + Copy::row() + pass * Copy::kRowsPerPass];
      Copy::start(destination, pass, chunk + 2 * (at.x * stride.batch + at.y * stride.row),
                  row + pass * Copy::kRowsPerPass < seqlen_k, valid_chunks);
    }
  }
};

}  // namespace tessera::cuda
