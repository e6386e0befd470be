// The gradient of a bias on mma.sync: dX of every (sequence, head) that shares an element, summed in rising order of
// sequence, head, query tile, key tile. A block owns a rectangle of d_bias of kTileM rows x kTileN keys, with all rows
// or keys where one element serves them, and recomputes scores for it: two products beside the backward kernel's five,
// in exchange for no copies of d_bias and no order among blocks.
// Invariant: every element of the rectangle is written, 0 where nothing is kept.
#pragma once

#include "../element_io.cuh"
#include "backward.cuh"

namespace tessera::cuda::sm80 {

// Which sequences, heads, query tiles and key tiles a block sums over: all of a dim that broadcasts, else one.
struct BiasTask {
  int begin[4], end[4];
};

TESSERA_HD int64_t bias_tiles(const BackwardParams& p, int dim, int tile_m, int tile_n) {
  const int64_t sizes[4] = {p.batch, p.f.heads_q, (p.f.seqlen_q + int64_t{tile_m} - 1) / tile_m,
                            (p.f.seqlen_k + int64_t{tile_n} - 1) / tile_n};
  return sizes[dim];
}
TESSERA_HD BiasTask bias_task(const BackwardParams& p, int64_t block, int tile_m, int tile_n) {
  BiasTask task;
  for (int d = 3; d >= 0; --d) {
    const int64_t tiles = bias_tiles(p, d, tile_m, tile_n);
    const bool shared = p.d_bias_stride[d] == 0;
    task.begin[d] = shared ? 0 : static_cast<int>(block % tiles);
    task.end[d] = shared ? static_cast<int>(tiles) : task.begin[d] + 1;
    if (!shared) block /= tiles;
  }
  return task;
}

// A warp's part of the sums: of each of its pieces of queries, its keys.
template <class Config>
using BiasSums = float[Config::kPieces][Config::kKeyBlocks][Config::kQueries / 8][4];

// Adds dX of one tile of one head of the view's sequence.
template <class Element, class Config>
__device__ __forceinline__ void add_bias_tile(BiasSums<Config>& sums, const BackwardParams& p, const KeyTileView& view,
                                              int head, char* shared, int query_tile) {
  const uint32_t base = ptx::shared_address(shared);
  __syncthreads();
  start_key_tile<Config>(p, view, base);
  start_queries<Config>(p, view, base, 0, head, query_tile, true);
  start_statistics<Config>(p, view, base, head, query_tile);
  ptx::copy_async_commit();
  ptx::copy_async_wait<0>();
  __syncthreads();
#pragma unroll
  for (int i = 0; i < Config::kPieces; ++i) {
    const int piece = Config::kShareProbs ? WarpPlace<Config>().column_warp : i;
    ScoreFragments<Config> probs, grads;
    make_scores<Element, Config, ScoreKind::general, false>(probs, grads, p, view, shared, 0, head, query_tile, piece,
                                                            [] {});
#pragma unroll
    for (int b = 0; b < Config::kKeyBlocks; ++b) {
#pragma unroll
      for (int n = 0; n < Config::kQueries / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[i][b][n][e] += grads[b][n][e];
      }
    }
  }
}

// Sums of the rectangle, in shared memory as [kTileM][kTileN], to d_bias. Where rows or keys share an element one
// thread adds theirs up in order.
template <class Config>
__device__ __forceinline__ void store_bias(const BackwardParams& p, const BiasTask& task, const float* sums) {
  const bool share_rows = p.d_bias_stride[2] == 0, share_keys = p.d_bias_stride[3] == 0;
  const int rows = share_rows ? 1 : Config::kTileM, keys = share_keys ? 1 : Config::kTileN;
  for (int i = threadIdx.x; i < rows * keys; i += Config::kThreads) {
    const int row = i / keys, key = i % keys;
    const int64_t at_row = int64_t{task.begin[2]} * Config::kTileM + row,
                  at_key = int64_t{task.begin[3]} * Config::kTileN + key;
    if (at_row >= p.f.seqlen_q || at_key >= p.f.seqlen_k) continue;
    float sum = 0.0f;
    for (int r = row; r < (share_rows ? Config::kTileM : row + 1); ++r) {
      for (int k = key; k < (share_keys ? Config::kTileN : key + 1); ++k) sum += sums[r * Config::kTileN + k];
    }
    store_number(p.d_bias, p.d_bias_dtype,
                 task.begin[0] * p.d_bias_stride[0] + task.begin[1] * p.d_bias_stride[1] + at_row * p.d_bias_stride[2] +
                     at_key * p.d_bias_stride[3],
                 sum);
  }
}

template <class Element, class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocksPerSm)
    bias_gradient_kernel(const __grid_constant__ BackwardParams p) {
  extern __shared__ __align__(128) char shared[];
  static_assert(Config::kTileM * Config::kTileN * 4 <= Config::kDynamicBytes);
  __shared__ KeyTileView view;
  const BiasTask task = bias_task(p, blockIdx.x, Config::kTileM, Config::kTileN);
  BiasSums<Config> sums;
#pragma unroll
  for (int i = 0; i < Config::kPieces; ++i) clear(sums[i]);
#pragma unroll 1
  for (int batch = task.begin[0]; batch < task.end[0]; ++batch) {
#pragma unroll 1
    for (int head = task.begin[1]; head < task.end[1]; ++head) {
#pragma unroll 1
      for (int key_tile = task.begin[3]; key_tile < task.end[3]; ++key_tile) {
        __syncthreads();
        if (threadIdx.x == 0) {
          view_key_tile(p, batch * p.heads_kv + head / p.f.group, key_tile, Config::kTileN, Config::kTileM, view);
        }
        __syncthreads();
        const auto begin = static_cast<int>(clamp_to(view.first_tile, task.begin[2], task.end[2]));
        const auto end = static_cast<int>(clamp_to(view.stop_tile, task.begin[2], task.end[2]));
#pragma unroll 1
        for (int tile = begin; tile < end; ++tile) {
          add_bias_tile<Element, Config>(sums, p, view, head, shared, tile);
        }
      }
    }
  }
  __syncthreads();
  const WarpPlace<Config> warp;
  auto* rectangle = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int i = 0; i < Config::kPieces; ++i) {
    const int query = (Config::kShareProbs ? warp.column_warp : i) * Config::kQueries;
#pragma unroll
    for (int b = 0; b < Config::kKeyBlocks; ++b) {
#pragma unroll
      for (int n = 0; n < Config::kQueries / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          rectangle[(query + fragment_column(n, e)) * Config::kTileN + warp.first_key() + fragment_row(b, e / 2)] =
              sums[i][b][n][e];
        }
      }
    }
  }
  __syncthreads();
  store_bias<Config>(p, task, rectangle);
}

}  // namespace tessera::cuda::sm80
