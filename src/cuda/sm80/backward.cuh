// Gradients of attention on mma.sync for every GPU from sm_80 on, P recomputed from q, k and lse.
// One block owns kTileN keys of one (sequence, key/value head): it holds their K and V, walks over the query tiles of
// all query heads of the group that see them, and sums dk and dv in registers, so these two need no exchange and are
// bitwise repeatable. dq is the sum over key tiles: each block adds its part to float32 sums in the workspace, by
// atomic additions in any order, or with `turns` in the order of the tickets by which blocks start, so that a block
// waits only for blocks that started before it.
// Work: 10 * kTileM * kTileN * d FLOPs a step against 4 * kTileM * d bytes of Q and dO from L2 and 4 * kTileM * d of dq
// added there. At d 128 fragment loads from shared memory (608 KB a step of 64 x 128) weigh as much as the products.
// Shared memory: see BackwardShape. Two barriers a step: operands are there, dS^T is there. With turns one thread waits
// for the step's and another ends that of the step before, between these two.
// Source: Dao, FlashAttention-2, Algorithm 2.
#pragma once

#include "../ptx/atomic.cuh"
#include "../tile/dq_sums.cuh"
#include "../tile/key_tile.cuh"
#include "../tile/row_store.cuh"
#include "../tile/score_gradient.cuh"
#include "backward_products.cuh"

namespace tessera::cuda::sm80 {

// Starts the copies of kRows rows of one head from `row` on, to the tile at `destination`; rows at or past `count` are
// zero-filled.
template <int kRows, class Config>
__device__ __forceinline__ void start_rows(uint32_t destination, const void* base, const Strides& stride, int64_t batch,
                                           int64_t first_row, int64_t head, int64_t row, int64_t count, int head_dim) {
  using Copy = TileCopy<kRows, Config::kHeadDim, Config::kThreads>;
  const int valid = static_cast<int>(clamp_to(count - row, 0, kRows));
  const char* my_row =
      static_cast<const char*>(base) + 2 * (batch * stride.batch + head * stride.head +
                                            (first_row + row + Copy::row()) * stride.row + Copy::chunk() * 8);
#pragma unroll
  for (int pass = 0; pass < Copy::kPasses; ++pass) {
    Copy::start(destination, pass, my_row, Copy::row() + pass * Copy::kRowsPerPass < valid, head_dim / 8);
    my_row += 2 * Copy::kRowsPerPass * stride.row;
  }
}

// Starts the copies of Q and dO of one query tile of one head to stage `stage`; zeros where it is not `wanted`, since
// without a branch the instructions go in between those of a product.
template <class Config>
__device__ __forceinline__ void start_queries(const BackwardParams& p, const KeyTileView& view, uint32_t shared,
                                              int stage, int head, int query_tile, bool wanted) {
  const SequenceView& at = view.sequence;
  const int64_t count = wanted ? at.band.seqlen_q : 0;
  const int64_t row = int64_t{query_tile} * Config::kTileM;
  const uint32_t q = shared + Config::kQueryOffset + stage * 2 * Config::kQueryBytes;
  start_rows<Config::kTileM, Config>(q, p.f.q, p.f.q_stride, at.q_batch, at.q_row, head, row, count, p.f.head_dim_qk);
  start_rows<Config::kTileM, Config>(q + Config::kQueryBytes, p.d_o, p.d_o_stride, at.q_batch, at.q_row, head, row,
                                     count, p.f.head_dim_v);
}

// Starts the copies of lse and -delta of the same tile. They have one buffer: it is free once the scores are made.
template <class Config>
__device__ __forceinline__ void start_statistics(const BackwardParams& p, const KeyTileView& view, uint32_t shared,
                                                 int head, int query_tile) {
  constexpr int kCopies = Config::kTileM / 4;
  const int copy = threadIdx.x;
  if (copy >= 2 * kCopies) return;
  const float* from = (copy < kCopies ? p.lse : p.minus_delta) + head * p.scratch_rows + view.scratch_row +
                      int64_t{query_tile} * Config::kTileM;
  ptx::copy_async_16(shared + Config::kStatisticsOffset + copy * 16, from + copy % kCopies * 4, 16);
}

// Starts the copies of the key tile's K and V.
template <class Config>
__device__ __forceinline__ void start_key_tile(const BackwardParams& p, const KeyTileView& view, uint32_t shared) {
  const SequenceView& at = view.sequence;
  const int64_t key = int64_t{view.key_tile} * Config::kTileN;
  start_rows<Config::kTileN, Config>(shared, p.f.k, p.f.k_stride, at.kv_batch, at.kv_row, view.kv_head, key,
                                     at.band.seqlen_k, p.f.head_dim_qk);
  start_rows<Config::kTileN, Config>(shared + Config::kValueOffset, p.f.v, p.f.v_stride, at.kv_batch, at.kv_row,
                                     view.kv_head, key, at.band.seqlen_k, p.f.head_dim_v);
}

template <class Config>
struct WarpPlace {
  int key_warp, column_warp, row_warp, dq_column_warp;
  __device__ __forceinline__ WarpPlace() {
    const int warp = threadIdx.x / 32;
    key_warp = warp % Config::kKeyWarps;
    column_warp = warp / Config::kKeyWarps;
    row_warp = warp % Config::kRowWarps;
    dq_column_warp = warp / Config::kRowWarps;
  }
  __device__ __forceinline__ int first_key() const { return key_warp * Config::kWarpKeys; }
};

template <class Config>
using ScoreFragments = float[Config::kKeyBlocks][Config::kQueries / 8][4];
template <class Config>
using KeyGradients = float[Config::kKeyBlocks][2 * Config::kColumnPairs][4];

// P and dC (kCapped) or dX of the warp's keys against kQueries queries from `piece` of the tile on. Between the two
// products stands `between`.
template <class Element, class Config, ScoreKind kKind, bool kCapped, class Between>
__device__ __forceinline__ void make_scores(ScoreFragments<Config>& probs, ScoreFragments<Config>& grads,
                                            const BackwardParams& p, const KeyTileView& view, const char* shared,
                                            int stage, int head, int query_tile, int piece, const Between& between) {
  using Layout = TileLayout<Config::kHeadDim>;
  const LaneOffsets<Config::kHeadDim> lane;
  const uint32_t base = ptx::shared_address(shared), q = base + Config::kQueryOffset + stage * 2 * Config::kQueryBytes;
  const WarpPlace<Config> warp;
  const uint32_t keys = base + lane.a + warp.first_key() * Layout::kRowBytes;
  const uint32_t queries = q + lane.b + piece * Config::kQueries * Layout::kRowBytes;
  multiply_rows<Element, Config::kHeadDim>(probs, keys, queries);
  between();
  multiply_rows<Element, Config::kHeadDim>(grads, keys + Config::kValueOffset, queries + Config::kQueryBytes);

  const auto* statistics =
      reinterpret_cast<const float*>(shared + Config::kStatisticsOffset) + piece * Config::kQueries;
  const QueryStatistics at{statistics, statistics + Config::kTileM};
  const core::Band& band = view.sequence.band;
  const int64_t key = int64_t{view.key_tile} * Config::kTileN, query = int64_t{query_tile} * Config::kTileM;
  const int64_t first_key = key + warp.first_key(), first_query = query + piece * Config::kQueries;
  if constexpr (kKind == ScoreKind::plain) {
    differentiate_plain(probs, grads, at, p.f.scale_log2);
  } else {
    const HeadScores scores = head_scores(p.f, view.batch, head);
    differentiate_general<Element, kCapped>(probs, grads, at, p.f, scores, band, first_key, first_query);
  }
  if (query_tile < view.plain_begin || query_tile >= view.plain_end) {
    mask_transposed(probs, grads, band, first_key, first_query);
  }
}

// The count of the key tiles that were added to dq of one query tile, for a fixed order.
template <class Config>
__device__ __forceinline__ int32_t* dq_turn(const BackwardParams& p, const KeyTileView& view, int head,
                                            int query_tile) {
  return p.turns + (head * p.scratch_rows + view.scratch_row + int64_t{query_tile} * Config::kTileM) / kTurnRows;
}

// Waits until the query tile's turn is this key tile's: key tiles with higher numbers have lower tickets, and those of
// them that see these queries come before. One thread, before the barrier in the step by which all know.
template <class Config>
__device__ __forceinline__ void await_turn(const BackwardParams& p, const KeyTileView& view, int head, int query_tile) {
  if (threadIdx.x != 0) return;
  const int64_t row = int64_t{query_tile} * Config::kTileM;
  const int64_t tiles = view.sequence.band.visible_tiles(row, row + Config::kTileM, Config::kTileN).end;
  const int32_t* turn = dq_turn<Config>(p, view, head, query_tile);
  while (ptx::load_acquire(turn) < tiles - 1 - view.key_tile) {
  }
}

// Ends the turn of the step before this one. One thread, of another warp so that no warp waits for device memory twice,
// behind a barrier by which it knows of everybody's additions, so that its release covers them.
template <class Config>
__device__ __forceinline__ void close_turn(const BackwardParams& p, const KeyTileView& view, int head, int query_tile) {
  if (threadIdx.x != 32) return;
  if (query_tile == view.first_tile) {
    if (head == view.first_head) return;
    --head;
    query_tile = view.stop_tile;
  }
  ptx::reduce_add_release(dq_turn<Config>(p, view, head, query_tile - 1), 1);
}

// dq of one query tile: += dS K, to the sums of the workspace.
template <class Element, class Config>
__device__ __forceinline__ void add_query_gradient(const BackwardParams& p, const KeyTileView& view, uint32_t shared,
                                                   int head, int query_tile) {
  constexpr int kDim = Config::kHeadDim;
  const WarpPlace<Config> warp;
  const LaneOffsets<kDim> lane;
  float dq[Config::kRowBlocks][2 * Config::kDqPairs][4];
  multiply_transposed<Element, kDim, Config::kTileM, Config::kTileN, Config::kDqColumnWarps>(
      dq, shared + Config::kGradOffset + LaneOffsets<Config::kTileM>().b, warp.row_warp * Config::kRowBlocks,
      shared + column_warp_address(lane.b_transposed, warp.dq_column_warp));

#pragma unroll
  for (int b = 0; b < Config::kRowBlocks; ++b) {
    const int64_t row =
        view.scratch_row + int64_t{query_tile} * Config::kTileM + (warp.row_warp * Config::kRowBlocks + b) * 16;
    const int first_column = Config::kBranches ? 0 : warp.dq_column_warp * 16;
    float* sums = p.dq_sum + dq_fragment(p.scratch_rows, head, row, first_column, kDim);
#pragma unroll
    for (int n = 0; n < 2 * Config::kDqPairs; ++n) {
      if constexpr (Config::kBranches) {
        const int column = pair_column<Config::kDqColumnWarps>(warp.dq_column_warp, n / 2) + n % 2 * 8;
        if (column < p.f.head_dim_qk) add_dq_fragment(sums + column * 16, dq[b][n]);
      } else {
        add_dq_fragment(sums + (n / 2 * Config::kDqColumnWarps * 2 + n % 2) * 128, dq[b][n]);
      }
    }
  }
}

// One step: the key tile against the query tile in `stage`. Behind its first product stands `between`.
template <class Element, class Config, ScoreKind kKind, class Between>
__device__ __forceinline__ void add_step(KeyGradients<Config>& dk, KeyGradients<Config>& dv, const BackwardParams& p,
                                         const KeyTileView& view, char* shared, int stage, int head, int query_tile,
                                         const Between& between) {
  constexpr int kDim = Config::kHeadDim, kTileM = Config::kTileM;
  using Layout = TileLayout<kDim>;
  const WarpPlace<Config> warp;
  const LaneOffsets<kDim> lane;
  const uint32_t base = ptx::shared_address(shared), q = base + Config::kQueryOffset + stage * 2 * Config::kQueryBytes;
  const uint32_t rows = q + column_warp_address(lane.b_transposed, warp.column_warp);
#pragma unroll
  for (int i = 0; i < Config::kPieces; ++i) {
    const int piece = Config::kShareProbs ? warp.column_warp : i;
    ScoreFragments<Config> probs, grads;
    make_scores<Element, Config, kKind, true>(
        probs, grads, p, view, shared, stage, head, query_tile, piece, [&]() __attribute__((always_inline)) {
          if (i == 0) between();
        });
    store_scores<Element, kTileM>(shared + Config::kGradOffset, grads, warp.first_key(), piece * Config::kQueries);
    if constexpr (Config::kShareProbs) {
      store_scores<Element, kTileM>(shared + Config::kProbOffset, probs, warp.first_key(), piece * Config::kQueries);
    } else {
      const uint32_t piece_rows = rows + piece * Config::kQueries * Layout::kRowBytes;
      multiply_registers<Element, kDim>(dv, probs, piece_rows + Config::kQueryBytes);
      multiply_registers<Element, kDim>(dk, grads, piece_rows);
    }
  }
  __syncthreads();
  if constexpr (Config::kShareProbs) {
    const uint32_t keys = base + LaneOffsets<kTileM>().a + warp.first_key() * TileLayout<kTileM>::kRowBytes;
    multiply_shared<Element, kDim, kTileM, Config::kColumnWarps>(dv, keys + Config::kProbOffset,
                                                                 rows + Config::kQueryBytes);
    multiply_shared<Element, kDim, kTileM, Config::kColumnWarps>(dk, keys + Config::kGradOffset, rows);
  }
}

// All query tiles of all query heads of the group: head by head, query tile by query tile. What does not change on the
// way is read from `view`, in shared memory, where it needs no registers.
template <class Element, class Config, ScoreKind kKind>
__device__ __forceinline__ void walk_queries(KeyGradients<Config>& dk, KeyGradients<Config>& dv,
                                             const BackwardParams& p, const KeyTileView& view, char* shared) {
  const uint32_t base = ptx::shared_address(shared);
  start_key_tile<Config>(p, view, base);
  start_queries<Config>(p, view, base, 0, view.first_head, view.first_tile, true);
  start_statistics<Config>(p, view, base, view.first_head, view.first_tile);
  ptx::copy_async_commit();

  int stage = 0, head = view.first_head, tile = view.first_tile;
#pragma unroll 1
  for (bool more = true; more;) {
    // The barrier also says that all warps are done with the step before.
    ptx::copy_async_wait<0>();
    __syncthreads();
    int next_head = head, next_tile = tile + 1;
    if (next_tile == view.stop_tile) {
      next_tile = view.first_tile;
      ++next_head;
    }
    more = next_head < view.last_head;
    add_step<Element, Config, kKind>(
        dk, dv, p, view, shared, stage, head, tile, [&]() __attribute__((always_inline)) {
          if (Config::kStages == 2) start_queries<Config>(p, view, base, 1 - stage, next_head, next_tile, more);
          ptx::copy_async_commit();
          if (p.turns != nullptr) {
            close_turn<Config>(p, view, head, tile);
            await_turn<Config>(p, view, head, tile);
          }
        });
    if constexpr (Config::kStages == 1) {
      // Where probabilities are shared, Q and dO were read after the barrier of the step.
      if (Config::kShareProbs) __syncthreads();
      start_queries<Config>(p, view, base, 0, next_head, next_tile, more);
    } else {
      stage = 1 - stage;
    }
    if (more) start_statistics<Config>(p, view, base, next_head, next_tile);
    ptx::copy_async_commit();
    add_query_gradient<Element, Config>(p, view, base, head, tile);
    head = next_head;
    tile = next_tile;
  }
  ptx::copy_async_wait<0>();
  __syncthreads();
  if (p.turns != nullptr) close_turn<Config>(p, view, view.last_head, view.first_tile);
}

template <class Element, class Config, ScoreKind kKind>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocksPerSm)
    backward_kernel(const __grid_constant__ BackwardParams p) {
  extern __shared__ __align__(128) char shared[];
  static_assert(sizeof(KeyTileView) <= Config::kViewBytes);
  __shared__ KeyTileView view;
  if (threadIdx.x == 0) find_key_tile(p, Config::kTileN, Config::kTileM, view);
  __syncthreads();
  const int64_t key = int64_t{view.key_tile} * Config::kTileN;
  if (key >= view.owned_keys) return;

  KeyGradients<Config> dk, dv;
  clear(dk);
  clear(dv);
  if (view.first_tile != view.stop_tile) walk_queries<Element, Config, kKind>(dk, dv, p, view, shared);

  const SequenceView& at = view.sequence;
  const WarpPlace<Config> warp;
  const RowTarget dk_rows = row_target(p.dk, p.dk_stride, at.kv_batch, at.kv_row + key, view.kv_head,
                                       view.owned_keys - key, p.f.head_dim_qk, p.dk_is_float);
  const RowTarget dv_rows = row_target(p.dv, p.dv_stride, at.kv_batch, at.kv_row + key, view.kv_head,
                                       view.owned_keys - key, p.f.head_dim_v, p.dv_is_float);
  char* dv_tile = shared + Config::kValueOffset;
  store_rows<Element, Config::kHeadDim, Config::kColumnWarps>(dk_rows, shared, dk, warp.first_key(), warp.column_warp,
                                                              p.f.scale);
  store_rows<Element, Config::kHeadDim, Config::kColumnWarps>(dv_rows, dv_tile, dv, warp.first_key(), warp.column_warp,
                                                              1.0f);
  __syncthreads();
  copy_rows<Config::kTileN, Config::kHeadDim, Config::kThreads>(dk_rows, shared, threadIdx.x);
  copy_rows<Config::kTileN, Config::kHeadDim, Config::kThreads>(dv_rows, dv_tile, threadIdx.x);
}

}  // namespace tessera::cuda::sm80
