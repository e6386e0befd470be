// Attention of few query rows over long caches on mma.sync, for every GPU from sm_80 on.
//   q [seqlen_q, heads of a group, head_dim_qk], k [seqlen_k, head_dim_qk], v [seqlen_k, head_dim_v] of one
//   (sequence, key/value head) -> o, lse
// All rows of a key/value head share one read of K and V. A block takes up to 64 of them over one split of the keys.
// Its warps have row_tiles tiles of 8 or 16 rows; the warps of one tile take different keys and merge their states at
// the end.
// A warp copies 16 keys of each tile into stages of its own. With one row tile it reads no others, so no warp waits for
// another; with more, warps read what others copied, at one barrier a tile.
// Shared memory: kStages x [warp][K, V of 16 keys], of bytes their scales; afterwards the warps' states (DecodeShape).
// Work: 4 * 8 * d FLOPs (16 rows: twice) against 4 * d bytes a key, so device memory bounds it; registers hold queries
// and accumulators, and each byte passes shared memory once in each direction.
// Source: Dao et al., Flash-Decoding (2023).
#pragma once

#include "../ptx/grid.cuh"
#include "../ptx/opaque.cuh"
#include "../tile/decode_merge.cuh"
#include "../tile/score.cuh"
#include "decode_products.cuh"
#include "decode_softmax.cuh"
#include "decode_source.cuh"

namespace tessera::cuda::sm80 {

// Products to masked scores. `key`: the first of the 16 keys; `unmasked`: the band keeps all of them for all rows.
template <class Element, class Config>
__device__ __forceinline__ void score_keys(float (&scores)[Config::kRowBlocks][4], const DecodeParams& p,
                                           const DecodeView& view, int64_t key, bool unmasked) {
  if (unmasked && !p.general) return;
  const core::Band& band = view.sequence.band;
  const int own_key = threadIdx.x % 32 / 4;
#pragma unroll
  for (int b = 0; b < Config::kRowBlocks; ++b) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      // Rare: what it needs of a row costs the registers of the loop nothing.
      const DecodeRow at = decode_row<Config>(p, view, ptx::opaque(lane_row(b, j)));
      if (p.general) {
        const int64_t batch = view.batch;
        const float slope =
            p.f.alibi_slopes != nullptr && at.valid ? p.f.alibi_slopes[batch * p.f.alibi_stride + at.head] : 0.0f;
        const int64_t bias_row0 =
            batch * p.f.bias_stride[0] + at.head * p.f.bias_stride[1] + view.sequence.first_key * p.f.bias_stride[3];
        const ScoreRow row = score_row(p.f, band, bias_row0, at.query);
#pragma unroll
        for (int e = j; e < 4; e += 2) {
          float capped;
          const float x =
              general_score<Element>(p.f, band, slope, row, key + own_key + e / 2 * 8, scores[b][e], &capped);
          scores[b][e] = x * static_cast<float>(core::kLog2E);
        }
      }
      if (!unmasked) {
        const core::Range keys = band.visible_keys(at.query);
#pragma unroll
        for (int e = j; e < 4; e += 2) {
          const int64_t at_key = key + own_key + e / 2 * 8;
          if (at_key < keys.begin || at_key >= keys.end) scores[b][e] = -INFINITY;
        }
      }
    }
  }
}

// The block's key tiles, as far as this warp takes them. On return acc and softmax hold the unnormalised state; the
// result is what acc is to be multiplied by.
template <class Element, class Cache, class Config>
__device__ __forceinline__ float run_tiles(const DecodeParams& p, const DecodeView& view, char* shared_memory,
                                           DecodeSource<Config>& source,
                                           float (&acc)[Config::kHeadDim / 16][Config::kRowBlocks][4],
                                           DecodeSoftmax<Config::kRowBlocks>& softmax) {
  using Layout = typename DecodeSource<Config>::Layout;
  using Product = typename Cache::template Product<Element>;
  constexpr bool kScaled = Cache::kBytes == 1, kConverts = Product::kType != Element::kType;
  const uint32_t shared = ptx::shared_address(shared_memory);
  constexpr int kBlocks = Config::kRowBlocks;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int begin = static_cast<int>(view.tiles.begin), end = static_cast<int>(view.tiles.end);
  // The 16 keys of a tile that this warp reads are those that warps [first_piece, first_piece + row_tiles) copy.
  const int first_piece = warp & -p.row_tiles;
  const uint32_t key_lane = Layout::lane_offset(lane % 16, lane / 16);
  const uint32_t value_lane = Config::kKeyBytes + Layout::lane_offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);

  QueryFragments<Config> q;
  float row_scale[kBlocks][2];
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) row_scale[b][0] = row_scale[b][1] = 1.0f;
  float scale_ahead = 0.0f;  // of the tile whose copies were started last
  ScaleState<kBlocks> scale_state;
  // The first kStages - 1 turns start copies only.
  constexpr int kAhead = Config::kStages - 1;
  int free = 0;   // the stage that is filled; the one behind it in the ring is read
  int place = 0;  // of the tile's scales; the one in front of it in the ring is filled
  char* const scales = shared_memory + Config::kStages * Config::kStageBytes;
#pragma unroll 1
  for (int tile = begin - kAhead; tile < end; ++tile) {
    if (tile >= begin) {
      ptx::copy_async_wait<Config::kStages - 2>();
      // Says also that the stage of the tile before is free.
      if (p.row_tiles == 1) {
        __syncwarp();
      } else {
        __syncthreads();
      }
    }
    if (tile + kAhead < end) source.start(free, tile + kAhead);
    ptx::copy_async_commit();
    if constexpr (kScaled) {
      // Kept a turn late, so that nothing waits for them; the barrier before their tile is still to come.
      static_assert(Config::kStages > 2);
      if (!p.constant_scales) {
        const float next = source.find_scale(tile + kAhead);
        const int before = place == 0 ? Config::kScalePlaces - 1 : place - 1;
        source.keep_scale(scales + (before * Config::kWarps + warp) * Config::kScaleBytes, scale_ahead);
        scale_ahead = next;
      }
    }
    source.advance(tile + kAhead);
    free = free == kAhead ? 0 : free + 1;
    const char* const tile_scales = scales + place * Config::kWarps * Config::kScaleBytes;
    place = place == Config::kScalePlaces - 1 ? 0 : place + 1;
    // While the first keys are on their way.
    if (tile == begin - 1) {
      load_queries<Cache>(q, p, view);
      if constexpr (kConverts) queries_to_f16(q, row_scale);
      if constexpr (kScaled) {
        if (p.constant_scales) {
          scale_state.factor = source.constant_scale(p.k_scale) * Cache::kUnit;
          scale_state.largest = source.constant_scale(p.v_scale);
        }
      }
    }
    if (tile < begin) continue;

    const bool unmasked = tile >= view.tiles.unmasked_begin && tile < view.tiles.unmasked_end;
#pragma unroll 1
    for (int piece = first_piece; piece < first_piece + p.row_tiles; ++piece) {
      const uint32_t part = free * Config::kStageBytes + piece * Config::kWarpBytes, keys = shared + part;
      const auto* key_scales = reinterpret_cast<const float*>(tile_scales + piece * Config::kScaleBytes);
      float scores[kBlocks][4];
      multiply_keys_queries<Product, Cache, Config>(scores, q, keys + key_lane);
      if constexpr (kScaled) {
        scale_state.template apply_keys<Cache>(scores, p.constant_scales ? nullptr : key_scales, row_scale);
      }
      score_keys<Element, Config>(scores, p, view, int64_t{tile} * Config::kTileN + piece * Config::kWarpKeys,
                                  unmasked);
      softmax.apply(scores, acc, p.general ? 1.0f : p.f.scale_log2);
      if constexpr (kScaled) {
        if (!p.constant_scales) scale_state.apply(scores, acc, key_scales + Config::kWarpKeys);
      }
      multiply_values_probs<Product, Cache, Config>(acc, scores, keys + value_lane);
    }
  }
  ptx::copy_async_wait<0>();
  if constexpr (kScaled) return scale_state.largest * Cache::kUnit;
  return 1.0f;
}

template <class Element, class Cache, class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocksPerSm)
    decode_kernel(const __grid_constant__ DecodeParams p) {
  extern __shared__ __align__(128) char shared[];
  static_assert(sizeof(DecodeView) <= Config::kViewBytes);
  __shared__ DecodeView view;
  __shared__ bool stale;
  const auto make_view = [&] {
    if (threadIdx.x == 0)
      view_unit(p, blockIdx.x, Config::kTileRows * p.row_tiles, Config::kTileN, Config::kCacheBytes, view);
    __syncthreads();
  };
  // May begin while the launch before it still runs: a view that looks nothing up but lengths is made meanwhile.
  if (p.looks_up && !p.guesses) ptx::wait_for_grids_before();
  make_view();
  DecodeSource<Config> source(p, view, ptx::shared_address(shared) + threadIdx.x / 32 * Config::kWarpBytes);
  source.begin();
  source.prefetch();
  ptx::wait_for_grids_before();
  ptx::let_next_grid_begin();
  int used = p.guesses && threadIdx.x == 0 ? ptx::load_relaxed(p.f.seqused_k + view.batch) : 0;
  source.look_up();
  if (p.guesses) {
    used = ptx::opaque(used);  // or it is waited for before the entries are asked for
    if (threadIdx.x == 0) stale = used != view.used;
    __syncthreads();
    // The launch before wrote another length.
    if (stale) {
      make_view();
      source.begin();
      source.look_up();
    }
  }
  if (view.first_row >= view.rows) return;

  float acc[Config::kHeadDim / 16][Config::kRowBlocks][4] = {};
  DecodeSoftmax<Config::kRowBlocks> softmax;
  softmax.clear();
  float factor = 1.0f;
  if (view.tiles.begin < view.tiles.end)
    factor = run_tiles<Element, Cache, Config>(p, view, shared, source, acc, softmax);
  // Asked for here, needed when the warps have merged.
  const unsigned long long seen = p.splits > 1 && threadIdx.x == 0 ? ptx::load_relaxed(p.arrivals + view.unit) : 0;
  __syncthreads();
  keep_state<Cache, Config>(shared, acc, factor, softmax);
  __syncthreads();
  finish_unit<Element, Config>(p, view, shared, seen);
}

}  // namespace tessera::cuda::sm80
