// Tile shapes of the sm80 forward kernel by head-dim bucket and score kind. Host and device: planning reads the same
// constants as the kernels are made from.
#pragma once

#include <cstdint>

#include "../score_kind.hpp"

namespace tessera::cuda::sm80 {

inline constexpr int32_t kHeadDimBuckets[] = {64, 96, 128, 192, 256};

// A block takes kTileM = kWarps * kWarpRows query rows, each warp owning 16 * kRowBlocks of them, and kTileN keys a
// step; or kKeyWarps warps own the same rows and each a share of the keys.
template <int kHeadDim_, int kWarps_, int kRowBlocks_, int kTileN_, int kStages_, int kBlocksPerSm_, int kKeyWarps_ = 1>
struct ForwardShape {
  static constexpr int kHeadDim = kHeadDim_, kWarps = kWarps_, kRowBlocks = kRowBlocks_, kTileN = kTileN_;
  static constexpr int kStages = kStages_, kBlocksPerSm = kBlocksPerSm_, kKeyWarps = kKeyWarps_;
  static constexpr bool kWholeHead = false;   // a block goes over all query tiles of its head; else it has one
  static constexpr bool kNormalises = false;  // accumulators are divided at every step; else once at the end
  // The first tile's products start before its V is there: 1 to 2 % at 512 keys, where the registers allow it.
  static constexpr bool kValuesApart = kStages == 2 && kHeadDim <= 64;
  static constexpr int kThreads = kWarps * 32, kWarpRows = 16 * kRowBlocks;
  static constexpr int kTileM = kWarps / kKeyWarps * kWarpRows, kWarpKeys = kTileN / kKeyWarps;
  static constexpr int kQueryBytes = kTileM * kHeadDim * 2, kKeyBytes = kTileN * kHeadDim * 2;
  // [Q][K, V of each stage][page and slot of the keys of two tiles][what warps of the same rows exchange: maxima and
  // partial accumulators]; beside it a static BlockView.
  static constexpr int kKeyRowsOffset = kQueryBytes + 2 * kStages * kKeyBytes;
  static constexpr int kExchangeOffset = kKeyRowsOffset + 2 * kTileN * 8;
  static constexpr int kExchangeBytes = kKeyWarps == 1 ? 0 : kWarps * kWarpRows * (kHeadDim + 1) * 4;
  static constexpr int kDynamicBytes = kExchangeOffset + kExchangeBytes, kViewBytes = 256;
  static constexpr int kSharedBytes = kDynamicBytes + kViewBytes;
};

// Two blocks an SM, so that one block's softmax runs beside the other's products; what fits 255 registers a thread and
// 99 KB (the least that a part from sm_80 on gives a block) decides the rest. A warp takes 32 rows where its
// accumulators fit: every K and V fragment then feeds two products, which halves the ldmatrix traffic.
template <int kHeadDim, ScoreKind kKind>
struct ForwardConfig;
template <>
struct ForwardConfig<64, ScoreKind::plain> : ForwardShape<64, 4, 2, 128, 2, 2> {};
template <>
struct ForwardConfig<96, ScoreKind::plain> : ForwardShape<96, 4, 2, 64, 2, 2> {};
template <>
struct ForwardConfig<128, ScoreKind::plain> : ForwardShape<128, 4, 2, 64, 2, 2> {};
template <>
struct ForwardConfig<192, ScoreKind::plain> : ForwardShape<192, 4, 1, 64, 1, 2> {};
template <>
struct ForwardConfig<256, ScoreKind::plain> : ForwardShape<256, 4, 1, 64, 1, 2> {};
// From compute capability 12.0 on ptxas finds no room for 128 keys at d 64: 120 bytes of spills where 64 keys have
// none.
struct NarrowConfig64 : ForwardShape<64, 4, 2, 64, 2, 2> {};
inline constexpr int kNarrowArch = 120;
// The general scores need registers of their own: 16 rows a warp.
template <>
struct ForwardConfig<64, ScoreKind::general> : ForwardShape<64, 4, 1, 64, 2, 2> {};
template <>
struct ForwardConfig<96, ScoreKind::general> : ForwardShape<96, 4, 1, 64, 2, 2> {};
template <>
struct ForwardConfig<128, ScoreKind::general> : ForwardShape<128, 4, 1, 64, 2, 2> {};
template <>
struct ForwardConfig<192, ScoreKind::general> : ForwardShape<192, 4, 1, 64, 1, 2> {};
template <>
struct ForwardConfig<256, ScoreKind::general> : ForwardShape<256, 4, 1, 64, 1, 2> {};

}  // namespace tessera::cuda::sm80
