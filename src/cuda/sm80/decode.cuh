// Attention of few query rows over long caches on mma.sync, for every GPU from sm_80 on.
//   q [seqlen_q, heads of a group, head_dim_qk], k [seqlen_k, head_dim_qk], v [seqlen_k, head_dim_v] of one
//   (sequence, key/value head) -> o, lse
// All rows of a key/value head share one read of K and V. A block takes up to 64 of them over one split of the keys.
// Its warps have row_tiles tiles of 16 rows; the warps of one tile take different keys and merge their states at the
// end.
// A warp copies 16 keys of each tile into stages of its own. With one row tile it reads no others, so no warp waits for
// another; with more, warps read what others copied, at one barrier a tile.
// Shared memory: kStages x [warp][K, V of 16 keys]; afterwards the warps' states (DecodeShape).
// Work: 4 * 16 * d FLOPs against 4 * d bytes a key, so device memory bounds it; registers hold queries and
// accumulators, and each byte passes shared memory once in each direction.
// Source: Dao et al., Flash-Decoding (2023).
#pragma once

#include "../tile/decode_merge.cuh"
#include "../tile/score.cuh"
#include "../tile/softmax.cuh"
#include "decode_products.cuh"
#include "decode_source.cuh"

namespace tessera::cuda::sm80 {

// Products to masked scores. `key`: the first of the 16 keys; `unmasked`: the band keeps all of them for all rows.
template <class Element>
__device__ __forceinline__ void score_keys(float (&scores)[1][2][4], const DecodeParams& p, const DecodeView& view,
                                           int64_t key, bool unmasked) {
  if (unmasked && !p.general) return;
  const DecodeRows rows(p, view);
  const core::Band& band = view.sequence.band;
  if (p.general) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = rows.query.row[0][half], head = rows.head[half], batch = view.batch;
      const float slope =
          p.f.alibi_slopes != nullptr && rows.valid[half] ? p.f.alibi_slopes[batch * p.f.alibi_stride + head] : 0.0f;
      const int64_t bias_row0 =
          batch * p.f.bias_stride[0] + head * p.f.bias_stride[1] + view.sequence.first_key * p.f.bias_stride[3];
      const ScoreRow at = score_row(p.f, band, bias_row0, row);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          float capped;
          const float x =
              general_score<Element>(p.f, band, slope, at, key + fragment_column(n, e), scores[0][n][e], &capped);
          scores[0][n][e] = x * static_cast<float>(core::kLog2E);
        }
      }
    }
  }
  if (!unmasked) mask_scores(scores, band, rows.query, key);
}

// The scales of a tile of bytes. Those of keys multiply scores. Those of values would multiply probabilities, which f16
// may not hold; so they do over the largest so far, which is what the accumulators are counted in.
struct ScaleState {
  float largest = 0.0f, inverse = 0.0f;

  // `values`: of the warp's 16 keys.
  template <int kColumns>
  __device__ __forceinline__ void apply(float (&probs)[1][2][4], float (&acc)[1][kColumns][4], const float* values) {
    float2 scale[2];
    float highest = largest;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      scale[n] = *reinterpret_cast<const float2*>(values + fragment_column(n, 0));
      highest = fmaxf(highest, fmaxf(fabsf(scale[n].x), fabsf(scale[n].y)));
    }
    highest = quad_max(highest);
    if (highest > largest) {  // the same in every lane: each quad has all 16 keys
      const float shrink = largest / highest;
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) acc[0][n][e] *= shrink;
      }
      largest = highest;
      inverse = largest < 0x1p-126f ? 0.0f : 1.0f / largest;  // what would overflow is no number's scale
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float low = scale[n].x * inverse, high = scale[n].y * inverse;
      probs[0][n][0] *= low, probs[0][n][2] *= low;
      probs[0][n][1] *= high, probs[0][n][3] *= high;
    }
  }

  // `row`: of the lane's two rows.
  template <class Cache>
  __device__ __forceinline__ static void apply_keys(float (&scores)[1][2][4], const float* keys,
                                                    const float (&row)[2]) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float2 scale = *reinterpret_cast<const float2*>(keys + fragment_column(n, 0));
      const float low = scale.x * Cache::kUnit, high = scale.y * Cache::kUnit;
      scores[0][n][0] = scores[0][n][0] * row[0] * low, scores[0][n][2] = scores[0][n][2] * row[1] * low;
      scores[0][n][1] = scores[0][n][1] * row[0] * high, scores[0][n][3] = scores[0][n][3] * row[1] * high;
    }
  }
};

// The block's key tiles, as far as this warp takes them. On return acc and rows hold the unnormalised state; the result
// is what acc is to be multiplied by.
template <class Element, class Cache, class Config>
__device__ __forceinline__ float run_tiles(const DecodeParams& p, const DecodeView& view, char* shared_memory,
                                           float (&acc)[1][Config::kHeadDim / 8][4], RowStatistics<1>& statistics) {
  using Layout = typename DecodeSource<Config>::Layout;
  using Product = typename Cache::template Product<Element>;
  constexpr bool kScaled = Cache::kBytes == 1, kConverts = Product::kType != Element::kType;
  const DecodeSource<Config> source{p, view};
  const uint32_t shared = ptx::shared_address(shared_memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int begin = static_cast<int>(view.tiles.begin), end = static_cast<int>(view.tiles.end);
  // The 16 keys of a tile that this warp reads are those that warps [first_piece, first_piece + row_tiles) copy.
  const int first_piece = warp / p.row_tiles * p.row_tiles;
  const uint32_t own = shared + warp * Config::kWarpBytes;

  const uint32_t key_lane = Layout::lane_offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
  const uint32_t value_lane = Config::kKeyBytes + Layout::lane_offset(lane % 16, lane / 16);

  QueryFragments<Config::kHeadDim> q;
  float row_scale[2] = {1.0f, 1.0f};
  int page = source.find(begin), next_page = source.find(begin + 1);
  float scale_ahead = 0.0f;  // of the tile whose copies were started last
  ScaleState scale_state;
  // The first kStages - 1 turns start copies only.
  constexpr int kAhead = Config::kStages - 1;
  int free = 0;  // the stage that is filled; the one behind it in the ring is read
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
    if (tile + kAhead < end) source.start(own + free * Config::kStageBytes, tile + kAhead, page);
    ptx::copy_async_commit();
    if constexpr (kScaled) {
      // Kept a turn late, so that nothing waits for them; the barrier before their tile is still to come.
      static_assert(Config::kStages > 2);
      const float next = source.find_scale(tile + kAhead, page);
      const int before = free == 0 ? kAhead : free - 1;
      source.keep_scale(shared_memory + before * Config::kStageBytes + warp * Config::kWarpBytes, scale_ahead);
      scale_ahead = next;
    }
    page = next_page;
    next_page = source.find(tile + kAhead + 2);
    free = free == kAhead ? 0 : free + 1;
    // While the first keys are on their way.
    if (tile == begin - 1) {
      open_arrivals(p, view.unit);
      load_queries<Cache>(q, p, view, DecodeRows(p, view));
      if constexpr (kConverts) queries_to_f16(q, row_scale);
    }
    if (tile < begin) continue;

    const bool unmasked = tile >= view.tiles.unmasked_begin && tile < view.tiles.unmasked_end;
#pragma unroll 1
    for (int piece = first_piece; piece < first_piece + p.row_tiles; ++piece) {
      const uint32_t part = free * Config::kStageBytes + piece * Config::kWarpBytes, keys = shared + part;
      const auto* key_scales = reinterpret_cast<const float*>(shared_memory + part + 2 * Config::kKeyBytes);
      float scores[1][2][4];
      multiply_query_keys<Product, Cache>(scores, q, keys + key_lane);
      if constexpr (kScaled) ScaleState::apply_keys<Cache>(scores, key_scales, row_scale);
      score_keys<Element>(scores, p, view, int64_t{tile} * Config::kTileN + piece * Config::kWarpKeys, unmasked);
      online_softmax(scores, acc, statistics, p.general ? 1.0f : p.f.scale_log2);
      if constexpr (kScaled) scale_state.apply(scores, acc, key_scales + Config::kWarpKeys);
      multiply_probs_values<Product, Cache, Config::kHeadDim>(acc, scores, keys + value_lane);
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
  if (threadIdx.x == 0) {
    view_unit(p, blockIdx.x, 16 * p.row_tiles, Config::kTileN, Config::kCacheBytes, view);
  }
  __syncthreads();
  if (view.first_row >= view.rows) return;

  float acc[1][Config::kHeadDim / 8][4];
#pragma unroll
  for (int n = 0; n < Config::kHeadDim / 8; ++n) acc[0][n][0] = acc[0][n][1] = acc[0][n][2] = acc[0][n][3] = 0.0f;
  RowStatistics<1> statistics;
  statistics.clear();
  float factor = 1.0f;
  if (view.tiles.begin < view.tiles.end) {
    factor = run_tiles<Element, Cache, Config>(p, view, shared, acc, statistics);
  } else {
    open_arrivals(p, view.unit);
  }
  float base[2], sum[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    base[half] = RowStatistics<1>::base(statistics.row_max[0][half], p.general ? 1.0f : p.f.scale_log2);
    sum[half] = quad_sum(statistics.row_sum[0][half]);
  }
  __syncthreads();
  keep_state<Cache, Config>(shared, acc, factor, base, sum);
  __syncthreads();
  finish_unit<Element, Config>(p, view, shared);
}

}  // namespace tessera::cuda::sm80
