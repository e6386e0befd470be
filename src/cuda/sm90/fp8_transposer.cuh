// The warps that turn tiles of V over in shared memory: [keys][columns] as TMA wrote them to V^T, [columns][keys].
// A step takes 32 keys of 16 columns. ldmatrix.trans moves pairs of bytes: of a pair of columns a lane gets keys 2 q,
// 2 q + 1 (q = lane % 4) of four blocks of eight; a byte permutation parts the columns and joins two blocks, so that 16
// keys lie in the order 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15, which is the order of p's fragments as the scores'
// registers pack into them (fp8_consumer.cuh). Even columns are stored in the upper half of V^T, odd ones in the lower:
// rows of one store are neighbours, free of bank conflicts, and the consumers' lanes hold four columns in a row.
#pragma once

#include "../ptx/convert.cuh"
#include "../ptx/mma.cuh"
#include "../ptx/stmatrix.cuh"
#include "fp8_control.cuh"
#include "producer.cuh"

namespace tessera::cuda::sm90 {

template <class Config>
struct Transposer {
  // Blocks of 16 columns of a warp, and how many it takes at a time: four registers a block.
  static constexpr int kOwn = Config::kDimV / 16 / Config::kTransposers, kBlocks = kOwn < 4 ? kOwn : 4;
  static constexpr int kValueChunks = Config::kSpan / 16, kKeyChunks = kFp8KeySpan / 16;
  static_assert(kValueChunks % kBlocks == 0 && kOwn % kBlocks == 0);

  Fp8Control<Config>& control;
  uint32_t shared;  // address of the tiles
  int warp;         // of the transposers
  Ring<Config::kValueStages> v;
  Ring<Config::kStages> transposed;
  Ring<Control<Config>::kViews> views;

  __device__ __forceinline__ void transpose() const {
#pragma unroll 1
    for (int block = 0; block < kOwn; block += kBlocks) transpose_blocks(warp * kOwn + block);
  }

  // kBlocks blocks of columns from `first` on: 32 keys at a time, so that as many loads are under way.
  __device__ __forceinline__ void transpose_blocks(uint32_t first) const {
    const uint32_t lane = threadIdx.x % 32, matrix = lane / 8, row = lane % 8;
    const uint32_t from = shared + Config::kValueOffset + v.stage * Config::kValueBytes +
                          chunk_offset<Config::kSpan>(Config::kTileN, lane, first);
    const uint32_t to =
        shared + Config::kTransposedOffset + transposed.stage * Config::kTransposedBytes +
        chunk_offset<kFp8KeySpan>(Config::kValueRows, matrix % 2 * (Config::kDimV / 2) + first * 8 + row, matrix / 2);
#pragma unroll
    for (int keys = 0; keys < Config::kTileN / 32; ++keys) {
      uint32_t pairs[kBlocks][4];
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        // `first` is a multiple of kBlocks, so its bits and b's do not meet.
        ptx::ldmatrix_x4_trans(pairs[b], (from ^ b * 16) + keys * 32 * Config::kSpan);
      }
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const uint32_t(&x)[4] = pairs[b];
        const uint32_t columns[4] = {ptx::permute_bytes(x[0], x[1], 0x6420), ptx::permute_bytes(x[0], x[1], 0x7531),
                                     ptx::permute_bytes(x[2], x[3], 0x6420), ptx::permute_bytes(x[2], x[3], 0x7531)};
        ptx::stmatrix_x4((to ^ 2 * keys % kKeyChunks * 16) + 2 * keys / kKeyChunks * Config::kValueRows * kFp8KeySpan +
                             b * 8 * kFp8KeySpan,
                         columns);
      }
    }
  }

  __device__ __forceinline__ void run() {
    while (true) {
      wait(control.view_full[views.stage], views.phase);
      const TileView& view = control.views[views.stage];
      if (!view.valid) return;
      const int begin = static_cast<int>(view.tiles.begin), end = static_cast<int>(view.tiles.end);
      __syncwarp();
      leave(control.view_empty, views);
#pragma unroll 1
      for (int tile = begin; tile < end; ++tile) {
        wait(control.v_full[v.stage], v.phase);
        wait(control.transposed_empty[transposed.stage], transposed.phase ^ 1);
        transpose();
        // What wgmma reads it reads by the asynchronous proxy.
        ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);
        __syncwarp();
        release_lanes(&control.v_empty[v.stage]);
        release(&control.transposed_full[transposed.stage]);
        v.advance();
        transposed.advance();
      }
    }
  }
};

}  // namespace tessera::cuda::sm90
