// Shapes of the decode kernel by head-dim bucket. Host and device.
#pragma once

#include <cstdint>

namespace tessera::cuda::sm80 {

inline constexpr int32_t kDecodeBuckets[] = {64, 128, 256};
// The largest block has 64 rows; more rows of one K and V are a matter of arithmetic, not of memory.
inline constexpr int kMaxDecodeRows = 64;
// Keys a query, where there are several: fewer are a prompt's beginning, which has nothing to be split.
inline constexpr int kLeastKeys = 4;

// A warp takes kWarpKeys keys of every tile of kTileN, copies them itself, kStages tiles deep, and needs no other warp
// until the end. kCacheBytes: of an element of K and V.
template <int kHeadDim_, int kWarps_, int kStages_, int kBlocksPerSm_, int kCacheBytes_>
struct DecodeShape {
  static constexpr int kHeadDim = kHeadDim_, kWarps = kWarps_, kStages = kStages_;
  static constexpr int kBlocksPerSm = kBlocksPerSm_, kCacheBytes = kCacheBytes_;
  static constexpr int kThreads = kWarps * 32, kWarpKeys = 16, kTileN = kWarps * kWarpKeys;
  static constexpr int kKeyBytes = kWarpKeys * kHeadDim * kCacheBytes;
  // [K][V], of quantised caches also [scales of the keys][of the values].
  static constexpr int kScaleBytes = kCacheBytes == 1 ? 2 * kWarpKeys * 4 : 0;
  static constexpr int kWarpBytes = 2 * kKeyBytes + kScaleBytes, kStageBytes = kWarps * kWarpBytes;
  // Behind the main loop the warps' states lie there: [warp][16 rows][dim], then [warp][16 rows] (base, sum). Rows are
  // 8 floats apart from a multiple of 32, so that the 8 rows of a store lie in different banks.
  static constexpr int kStateStride = kHeadDim + 8;
  static constexpr int kStateBytes = kWarps * 16 * kStateStride * 4;
  static constexpr int kEndBytes = kStateBytes + kWarps * 16 * 8;
  static constexpr int kDynamicBytes = kStages * kStageBytes > kEndBytes ? kStages* kStageBytes : kEndBytes;
  static constexpr int kViewBytes = 256;
  static constexpr int kSharedBytes = kDynamicBytes + kViewBytes;
};

// 96 KB of stages a block: a part with 99 KB has one block, Hopper two. Two of three (d 64: five of six) stages are in
// flight, so 128 KB an SM on Hopper; 4.35 TB/s at a microsecond of latency need 33.
template <int kHeadDim, int kCacheBytes>
struct DecodeConfig;
template <>
struct DecodeConfig<64, 2> : DecodeShape<64, 4, 6, 2, 2> {};
template <>
struct DecodeConfig<128, 2> : DecodeShape<128, 4, 3, 2, 2> {};
template <>
struct DecodeConfig<256, 2> : DecodeShape<256, 2, 3, 2, 2> {};
// Of bytes a key is half as many, while turning them into 16 bits costs instructions: more warps an SM, as far as
// their registers go.
template <>
struct DecodeConfig<64, 1> : DecodeShape<64, 4, 6, 4, 1> {};
template <>
struct DecodeConfig<128, 1> : DecodeShape<128, 4, 4, 3, 1> {};
template <>
struct DecodeConfig<256, 1> : DecodeShape<256, 2, 3, 4, 1> {};

}  // namespace tessera::cuda::sm80
