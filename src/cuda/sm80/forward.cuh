// Attention forward on mma.sync for every GPU from sm_80 on.
//   q [seqlen_q, head_dim_qk], k [seqlen_k, head_dim_qk], v [seqlen_k, head_dim_v] of one (sequence, head) -> o, lse
// One block takes kTileM query rows of one (sequence, query head, split); blocks are ordered by Schedule. Each warp
// owns kWarpRows rows and all their keys: no exchange between warps but the shared K and V tiles. What it was before
// each of these steps is the switches of ForwardShape, for the rows of ablations/.
// Shared memory: Q tile [kTileM][d], then kStages x (K tile, V tile) [kTileN][d], then the paged row table. With two
// stages the copies of tile j + 1 start at the head of step j and there is one barrier a tile; with one stage V_j is
// copied during q k^T and K_{j+1} during the softmax and p v, at two barriers a tile.
// Work: 4 * kTileM * kTileN * d FLOPs a step against 4 * kTileN * d bytes from L2 (kTileM = 128: 128 FLOP a byte), so
// the tensor pipe bounds it; ldmatrix moves K and V once a warp, which is why a warp takes 32 rows up
// to d 128.
// Source: Dao, FlashAttention-2, Algorithm 1 and section 3.3.
#pragma once

#include "../tile/key_source.cuh"
#include "../tile/scheduler.cuh"
#include "../tile/score.cuh"
#include "../tile/softmax.cuh"
#include "before.cuh"
#include "epilogue.cuh"
#include "products.cuh"

namespace tessera::cuda::sm80 {

// Where a warp's share of a tile of queries and of one of keys begins.
template <class Config>
__device__ __forceinline__ uint32_t first_row_of_warp() {
  return threadIdx.x / 32 / Config::kKeyWarps * Config::kWarpRows;
}
template <class Config>
__device__ __forceinline__ uint32_t first_key_of_warp() {
  return threadIdx.x / 32 % Config::kKeyWarps * Config::kWarpKeys;
}

template <class Config>
__device__ __forceinline__ void start_query_tile(const ForwardParams& p, const SequenceView& sequence,
                                                 int64_t first_row, int head, uint32_t shared) {
  using Copy = TileCopy<Config::kTileM, Config::kHeadDim, Config::kThreads>;
  const char* q = static_cast<const char*>(p.q) +
                  2 * (sequence.q_batch * p.q_stride.batch + head * p.q_stride.head + Copy::chunk() * 8);
#pragma unroll
  for (int pass = 0; pass < Copy::kPasses; ++pass) {
    const int64_t row = first_row + Copy::row() + pass * Copy::kRowsPerPass;
    Copy::start(shared, pass, q + 2 * (sequence.q_row + row) * p.q_stride.row, row < sequence.band.seqlen_q,
                p.head_dim_qk / 8);
  }
}

// Products to masked scores of the warp's rows from `first_row` on.
template <class Element, class Config, ScoreKind kKind>
__device__ __forceinline__ void score_tile(typename Fragments<Config>::Scores& scores, const ForwardParams& p,
                                           const BlockView& view, int64_t first_row, int tile) {
  const int64_t key = int64_t{tile} * Config::kTileN + first_key_of_warp<Config>();
  const auto rows = rows_from<Config::kRowBlocks>(first_row);
  if constexpr (kKind == ScoreKind::general) general_scores<Element>(scores, p, view, rows, key);
  if (tile < view.tiles.unmasked_begin || tile >= view.tiles.unmasked_end) {
    mask_scores(scores, view.sequence.band, rows, key);
  }
}

// All key tiles of the block. On return acc and rows hold the unnormalised state.
template <class Element, class Config, ScoreKind kKind>
__device__ __forceinline__ void run_tiles(const ForwardParams& p, const BlockView& view, int64_t first_row,
                                          char* shared, typename Fragments<Config>::Accumulators& acc,
                                          RowStatistics<Config::kRowBlocks>& rows) {
  const uint32_t shared_base = ptx::shared_address(shared), stages = shared_base + Config::kQueryBytes;
  const KeySource<Config> keys{p, view, reinterpret_cast<int2*>(shared + Config::kKeyRowsOffset)};
  const LaneAddresses<Config> lane(shared_base, first_row_of_warp<Config>(), first_key_of_warp<Config>());
  const float scale = kKind == ScoreKind::plain ? p.scale_log2 : 1.0f;
  [[maybe_unused]] float* const exchange = reinterpret_cast<float*>(shared + Config::kExchangeOffset);
  const int begin = static_cast<int>(view.tiles.begin), end = static_cast<int>(view.tiles.end);

  keys.keep_row(begin, keys.find_row(begin));
  keys.keep_row(begin + 1, keys.find_row(begin + 1));
  if (p.page_size != 0) __syncthreads();
  keys.start_keys(stages, begin);
  if (Config::kValuesApart) ptx::copy_async_commit();
  if (Config::kStages == 2) keys.start_values(stages + Config::kKeyBytes, begin);
  ptx::copy_async_commit();

  uint32_t stage = stages;
#pragma unroll 1
  for (int tile = begin; tile < end; ++tile) {
    // Everything in flight is this tile's; the barrier also says that all warps are done with the tile before. The
    // first tile may start without its V.
    if (Config::kValuesApart && tile == view.tiles.begin) {
      ptx::copy_async_wait<1>();
    } else {
      ptx::copy_async_wait<0>();
    }
    __syncthreads();
    const int2 next_row = keys.find_row(tile + 2);
    const uint32_t key = stage, value = stage + Config::kKeyBytes;
    if constexpr (Config::kStages == 2) {
      stage = 2 * stages + 2 * Config::kKeyBytes - stage;
      if (tile + 1 < end) {
        keys.start_keys(stage, tile + 1);
        keys.start_values(stage + Config::kKeyBytes, tile + 1);
      }
    } else {
      keys.start_values(value, tile);
    }
    ptx::copy_async_commit();

    typename Fragments<Config>::Scores scores;
    multiply_rows<Element, Config::kHeadDim>(scores, lane.query, key + lane.key);
    if constexpr (Config::kStages == 1) {
      ptx::copy_async_wait<0>();
      __syncthreads();
      if (tile + 1 < end) keys.start_keys(key, tile + 1);
      ptx::copy_async_commit();
    }
    score_tile<Element, Config, kKind>(scores, p, view, first_row, tile);
    if (Config::kValuesApart && tile == view.tiles.begin) {
      ptx::copy_async_wait<1>();
      __syncthreads();
    }
    if constexpr (Config::kKeyWarps > 1) {
      multiply_shared_rows<Element, Config>(acc, scores, rows, scale, value + lane.value, exchange);
    } else if constexpr (Config::kNormalises) {
      multiply_normalised<Element, Config>(acc, scores, rows, scale, value + lane.value);
    } else {
      online_softmax(scores, acc, rows, scale);
      multiply_registers<Element, Config::kHeadDim>(acc, scores, value + lane.value);
    }
    keys.keep_row(tile + 2, next_row);
  }
  if constexpr (Config::kKeyWarps > 1) gather_sums<Config>(rows, exchange);
  if constexpr (Config::kNormalises) weigh(acc, rows);
}

// One query tile of one head and split.
template <class Element, class Config, ScoreKind kKind>
__device__ __forceinline__ void attend_tile(const ForwardParams& p, const WorkItem& item, int split, BlockView& view,
                                            char* shared) {
  const int head = item.head_batch % p.heads_q;
  const int64_t block_row = int64_t{item.query_block} * Config::kTileM;
  if (threadIdx.x == 0) {
    view_block<false>(p, item.head_batch / p.heads_q, head, split, block_row, Config::kTileM, Config::kTileN, view);
  }
  __syncthreads();
  if (block_row >= view.sequence.rows_q) return;

  typename Fragments<Config>::Accumulators acc;
  clear(acc);
  RowStatistics<Config::kRowBlocks> rows;
  rows.clear();
  const int64_t first_row = block_row + first_row_of_warp<Config>();
  if (view.tiles.begin < view.tiles.end) {
    start_query_tile<Config>(p, view.sequence, block_row, head, ptx::shared_address(shared));
    run_tiles<Element, Config, kKind>(p, view, first_row, shared, acc, rows);
  }

  const OutputRows at{first_row, split, head};
  float factors[Config::kRowBlocks][2];
  finish_rows<Config, kKind>(p, view.sequence, at, rows, factors);
  if constexpr (Config::kKeyWarps > 1) {
    store_shared_rows<Element, Config>(p, view.sequence, at, acc, factors, shared);
  } else if (p.o_is_float) {
    store_float_rows<Config>(p, view.sequence, at, acc, factors);
  } else {
    store_element_rows<Element, Config>(p, view.sequence, at, acc, factors, shared);
  }
}

template <class Element, class Config, ScoreKind kKind>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocksPerSm)
    forward_kernel(const __grid_constant__ ForwardParams p) {
  extern __shared__ __align__(128) char shared[];
  // Static: its fields then have constant addresses, which saves the registers that would hold them.
  static_assert(sizeof(BlockView) <= Config::kViewBytes);
  __shared__ BlockView view;
  if constexpr (Config::kWholeHead) {
#pragma unroll 1
    for (uint32_t block = p.schedule.query_blocks; block != 0; --block) {
      attend_tile<Element, Config, kKind>(p, {block - 1, blockIdx.x}, 0, view, shared);
      __syncthreads();  // all warps are done with the view and the tiles
    }
  } else {
    const int split = p.num_splits > 1 ? blockIdx.x % p.num_splits : 0;
    const WorkItem item = locate_block(p.schedule, p.num_splits > 1 ? blockIdx.x / p.num_splits : blockIdx.x);
    attend_tile<Element, Config, kKind>(p, item, split, view, shared);
  }
}

}  // namespace tessera::cuda::sm80
