// Shapes of the decode kernel by head-dim bucket. Host and device.
#pragma once

#include <cstdint>

namespace tessera::cuda::sm80 {

inline constexpr int32_t kDecodeBuckets[] = {64, 128, 256};
// Blocks of 8 rows that a warp has: where 8 rows are all, the other 8 would only cost instructions and registers.
inline constexpr int kFewRowBlocks = 1, kManyRowBlocks = 2;
// The largest block has 64 rows; more rows of one K and V are a matter of arithmetic, not of memory.
inline constexpr int kMaxDecodeRows = 64;
// Keys a query, where there are several: fewer are a prompt's beginning, which has nothing to be split.
inline constexpr int kLeastKeys = 4;

// A warp takes kWarpKeys keys of every tile of kTileN, copies them itself, kStages tiles deep, and needs no other warp
// until the end. Its rows are kRowBlocks times 8. kCacheBytes: of an element of K and V.
template <int kHeadDim_, int kRowBlocks_, int kWarps_, int kStages_, int kBlocksPerSm_, int kCacheBytes_>
struct DecodeShape {
  static constexpr int kHeadDim = kHeadDim_, kWarps = kWarps_, kStages = kStages_;
  static constexpr int kRowBlocks = kRowBlocks_, kTileRows = 8 * kRowBlocks;
  static constexpr int kBlocksPerSm = kBlocksPerSm_, kCacheBytes = kCacheBytes_;
  static constexpr int kThreads = kWarps * 32, kWarpKeys = 16, kTileN = kWarps * kWarpKeys;
  static constexpr int kKeyBytes = kWarpKeys * kHeadDim * kCacheBytes;
  // [K][V].
  static constexpr int kWarpBytes = 2 * kKeyBytes, kStageBytes = kWarps * kWarpBytes;
  // Of quantised caches [scales of the keys][of the values]. Those of a tile come a turn behind its copies, so there is
  // one place less than stages; they lie behind the stages.
  static constexpr int kScaleBytes = kCacheBytes == 1 ? 2 * kWarpKeys * 4 : 0, kScalePlaces = kStages - 1;
  static constexpr int kLoopBytes = kStages * kStageBytes + kScalePlaces * kWarps * kScaleBytes;
  // Behind the main loop the warps' states lie there: [warp][row][dim], then [warp][row] (base, sum). Rows are 4 floats
  // apart from a multiple of 32, so that the 4 even or odd rows of a store lie in different banks.
  static constexpr int kStateStride = kHeadDim + 4;
  static constexpr int kStateBytes = kWarps * kTileRows * kStateStride * 4;
  static constexpr int kEndBytes = kStateBytes + kWarps * kTileRows * 8;
  static constexpr int kDynamicBytes = kLoopBytes > kEndBytes ? kLoopBytes : kEndBytes;
  static constexpr int kViewBytes = 256;
  static constexpr int kSharedBytes = kDynamicBytes + kViewBytes;
};

// 96 KB of stages a block: a part with 99 KB has one block, Hopper two. Two of three (d 64: five of six) stages are in
// flight, so 128 KB an SM on Hopper; 4.35 TB/s at a microsecond of latency need 33.
template <int kHeadDim, int kCacheBytes, int kRowBlocks>
struct DecodeConfig;
template <int kRowBlocks>
struct DecodeConfig<64, 2, kRowBlocks> : DecodeShape<64, kRowBlocks, 4, 6, 2, 2> {};
template <int kRowBlocks>
struct DecodeConfig<128, 2, kRowBlocks> : DecodeShape<128, kRowBlocks, 4, 3, 2, 2> {};
template <int kRowBlocks>
struct DecodeConfig<256, 2, kRowBlocks> : DecodeShape<256, kRowBlocks, 2, 3, 2, 2> {};
// Of bytes a key is half as many, while turning them into 16 bits costs instructions: more warps an SM, as far as
// their registers go; at d 128 16 of them in two blocks, since fewer splits end sooner.
template <int kRowBlocks>
struct DecodeConfig<64, 1, kRowBlocks> : DecodeShape<64, kRowBlocks, 4, 6, 4, 1> {};
template <>
struct DecodeConfig<128, 1, 1> : DecodeShape<128, 1, 8, 3, 2, 1> {};
template <>
struct DecodeConfig<128, 1, 2> : DecodeShape<128, 2, 4, 4, 3, 1> {};
template <int kRowBlocks>
struct DecodeConfig<256, 1, kRowBlocks> : DecodeShape<256, kRowBlocks, 2, 3, 4, 1> {};

}  // namespace tessera::cuda::sm80
