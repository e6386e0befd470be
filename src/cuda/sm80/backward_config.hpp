// Tile shapes of the sm80 backward kernels by head-dim bucket. Host and device: planning reads the same constants as
// the kernels are made from.
#pragma once

#include <cstdint>

#include "../score_kind.hpp"

namespace tessera::cuda::sm80 {

// A block owns kTileN = 16 * kKeyBlocks * kKeyWarps keys and meets kTileM queries a step. Its warps stand in a grid of
// kKeyWarps x kColumnWarps: a warp's dk and dv are 16 * kKeyBlocks keys x head dim / kColumnWarps. Of the scores it
// makes its own keys x kQueries, so where kColumnWarps > 1 probabilities reach the warps of the other columns through
// shared memory; else they never leave registers. For dq the warps stand by rows: 16 * kRowBlocks queries each.
template <int kHeadDim_, int kKeyWarps_, int kKeyBlocks_, int kColumnWarps_, int kTileM_, int kQueries_,
          int kRowBlocks_, int kStages_, int kBlocksPerSm_>
struct BackwardShape {
  static constexpr int kHeadDim = kHeadDim_, kKeyWarps = kKeyWarps_, kKeyBlocks = kKeyBlocks_;
  static constexpr int kColumnWarps = kColumnWarps_, kTileM = kTileM_, kQueries = kQueries_, kRowBlocks = kRowBlocks_;
  static constexpr int kStages = kStages_, kBlocksPerSm = kBlocksPerSm_;
  static constexpr int kWarps = kKeyWarps * kColumnWarps, kThreads = 32 * kWarps;
  static constexpr int kWarpKeys = 16 * kKeyBlocks, kTileN = kWarpKeys * kKeyWarps;
  static constexpr bool kShareProbs = kColumnWarps > 1;
  // Query pieces a warp goes through one after the other.
  static constexpr int kPieces = kShareProbs ? 1 : kTileM / kQueries;
  static_assert(kQueries % 16 == 0 && kQueries * (kShareProbs ? kColumnWarps : kPieces) == kTileM);
  // Pairs of 8-column blocks of a warp, in dk and dv and in dq.
  static constexpr int kColumnPairs = kHeadDim / 16 / kColumnWarps;
  static constexpr int kRowWarps = kTileM / 16 / kRowBlocks, kDqColumnWarps = kWarps / kRowWarps;
  static constexpr int kDqPairs = kHeadDim / 16 / kDqColumnWarps;
  static_assert(kColumnPairs * kColumnWarps * 16 == kHeadDim && kDqPairs * kDqColumnWarps * 16 == kHeadDim);
  static_assert(kRowWarps * kDqColumnWarps == kWarps && kTileM >= 32);
  // Additions to dq stand behind a branch each, for columns past the head dim. Where dv and dk are still to be made,
  // branches would keep them from going in between (4 % at d 128); with 32 queries 12.0 would spill 20 bytes without.
  static constexpr bool kBranches = !kShareProbs || kTileM == 32;

  static constexpr int kKeyBytes = kTileN * kHeadDim * 2, kQueryBytes = kTileM * kHeadDim * 2;
  static constexpr int kGradBytes = kTileN * kTileM * 2, kStatisticsBytes = 2 * kTileM * 4;
  // [K][V][stages x (Q, dO)][dS^T][P^T where shared][lse, -delta]. Two blocks of the shapes up to d 96 fit the 164 KB
  // of an 8.0, with what every block has reserved.
  static constexpr int kValueOffset = kKeyBytes, kQueryOffset = 2 * kKeyBytes;
  static constexpr int kGradOffset = kQueryOffset + kStages * 2 * kQueryBytes;
  static constexpr int kProbOffset = kGradOffset + kGradBytes;
  static constexpr int kStatisticsOffset = kProbOffset + (kShareProbs ? kGradBytes : 0);
  static constexpr int kDynamicBytes = kStatisticsOffset + kStatisticsBytes, kViewBytes = 256;
  static constexpr int kSharedBytes = kDynamicBytes + kViewBytes;
  static_assert(kBlocksPerSm == 1 || kBlocksPerSm * (kSharedBytes + 1024) <= 164 * 1024);
};

// The least that a device must give a block: wide 227 KB (9.0, 10.0; d 256 alone), large 161 KB (8.0 and those), small
// 99 KB, what all from sm_80 on have.
enum class BackwardSize { wide, large, small };

template <int kHeadDim, BackwardSize kSize, ScoreKind kKind>
struct BackwardConfig;
// Up to d 96 one shape is right for all: two blocks an SM where the device has room for them. The general scores need
// registers of their own.
template <BackwardSize kSize>
struct BackwardConfig<64, kSize, ScoreKind::plain> : BackwardShape<64, 4, 2, 1, 64, 32, 2, 2, 2> {};
template <BackwardSize kSize>
struct BackwardConfig<64, kSize, ScoreKind::general> : BackwardShape<64, 4, 1, 1, 64, 32, 2, 2, 2> {};
template <BackwardSize kSize>
struct BackwardConfig<96, kSize, ScoreKind::plain> : BackwardShape<96, 4, 1, 1, 64, 64, 1, 2, 2> {};
template <BackwardSize kSize>
struct BackwardConfig<96, kSize, ScoreKind::general> : BackwardShape<96, 4, 1, 1, 64, 32, 1, 2, 2> {};
template <>
struct BackwardConfig<128, BackwardSize::large, ScoreKind::plain> : BackwardShape<128, 4, 2, 2, 64, 32, 2, 2, 1> {};
template <>
struct BackwardConfig<128, BackwardSize::large, ScoreKind::general> : BackwardShape<128, 8, 1, 1, 64, 32, 2, 2, 1> {};
template <ScoreKind kKind>
struct BackwardConfig<128, BackwardSize::small, kKind> : BackwardShape<128, 4, 1, 1, 64, 32, 1, 1, 1> {};
template <ScoreKind kKind>
struct BackwardConfig<192, BackwardSize::large, kKind> : BackwardShape<192, 2, 2, 4, 64, 16, 2, 2, 1> {};
template <ScoreKind kKind>
struct BackwardConfig<192, BackwardSize::small, kKind> : BackwardShape<192, 4, 1, 2, 32, 16, 1, 1, 1> {};
template <ScoreKind kKind>
struct BackwardConfig<256, BackwardSize::wide, kKind> : BackwardShape<256, 2, 2, 4, 64, 16, 2, 2, 1> {};
template <ScoreKind kKind>
struct BackwardConfig<256, BackwardSize::large, kKind> : BackwardShape<256, 2, 2, 4, 64, 16, 2, 1, 1> {};
template <ScoreKind kKind>
struct BackwardConfig<256, BackwardSize::small, kKind> : BackwardShape<256, 2, 1, 2, 32, 16, 2, 1, 1> {};

}  // namespace tessera::cuda::sm80
