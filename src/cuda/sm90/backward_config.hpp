// Tile shapes of the sm90 backward kernel. Host and device: planning reads the same constants as the kernels are made
// from.
#pragma once

#include <cstdint>

#include "../score_kind.hpp"

namespace tessera::cuda::sm90 {

// A block of two consumer warpgroups owns kTileN keys and meets kTileM queries a step. 128 keys: each warpgroup has 64
// of them, see backward_consumer.cuh. 64 keys: the warpgroups share the tensors, see backward_wide_consumer.cuh.
// Persistent blocks go on to further key tiles: the next one's loads are under way while dk and dv are stored.
template <int kDim_, int kTileM_, int kTileN_, bool kPersistent_ = false>
struct BackwardShape {
  static constexpr int kDim = kDim_, kTileM = kTileM_, kTileN = kTileN_, kGroups = 2, kStages = 2;
  static constexpr bool kPersistent = kPersistent_;
  static constexpr int kThreads = 128 * (kGroups + 1);
  static constexpr int kKeyBlocks = kTileN / 64;
  static constexpr bool kWide = kKeyBlocks == 1;
  static_assert(!kPersistent || !kWide);  // its consumers release neither V nor their last tiles
  static constexpr int kKeyBuffers = kPersistent ? 2 : 1;
  // Behind dS: dq before dv, whose reds then have the time of three products before dP wants their registers (353 for
  // 365 microseconds at d 128, N 512), or dv before dq, which is 3 % faster at d 64 and was not timed where blocks are
  // not persistent.
  static constexpr bool kDqFirst = kPersistent && kDim == 128;
  // Where no register holds delta until dP is there: dP is summed from -delta on.
  static constexpr bool kSumsDelta = kPersistent && kDim == 64;
  static constexpr int kSpan = 128, kSpanColumns = kSpan / 2, kSpans = kDim / kSpanColumns;
  static_assert(kDim % kSpanColumns == 0 && (kWide || kSpans <= kGroups));
  // dq^T = K^T dS^T has the head dim as its rows, 64 a product: at d 64 a warpgroup makes half of the queries, else
  // whole spans.
  static constexpr int kDqQueries = kWide ? kTileM : kTileM * kSpans / kGroups;
  static constexpr int kKeyBytes = kTileN * kDim * 2, kQueryBytes = kTileM * kDim * 2;
  static constexpr int kGradBytes = kTileN * kTileM * 2, kProbBytes = kWide ? kTileN * kTileM * 4 : 0;
  // Of persistent blocks: every second K, and dv, then dk on their way out, which others put where K and V were.
  static constexpr int kSecondKeyBytes = kPersistent ? kKeyBytes : 0, kOutputBytes = kSecondKeyBytes;
  static constexpr int kStatisticsBytes = 2 * kTileM * 4;
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
  // [K][V][stages x (Q, dO)][2 x dS][P][K][dv, dk][stages x (lse, -delta)][control], tiles at multiples of 1024 bytes.
  static constexpr int kValueOffset = kKeyBytes, kQueryOffset = 2 * kKeyBytes;
  static constexpr int kGradOffset = kQueryOffset + kStages * 2 * kQueryBytes;
  static constexpr int kProbOffset = kGradOffset + 2 * kGradBytes;
  static constexpr int kSecondKeyOffset = kProbOffset + kProbBytes, kOutputOffset = kSecondKeyOffset + kSecondKeyBytes;
  static constexpr int kStatisticsOffset = kOutputOffset + kOutputBytes;
  static constexpr int kControlOffset = kStatisticsOffset + kStages * kStatisticsBytes;
  static constexpr int kControlBytes = kPersistent ? 1024 : 512;
  static constexpr int kSharedBytes = kControlOffset + kControlBytes;
  static_assert(kKeyBytes % 1024 == 0 && kQueryBytes % 1024 == 0 && kGradBytes % 1024 == 0);
  static_assert(kSharedBytes <= 227 * 1024);
};

// A softcap's derivative needs registers of its own: half as many queries a step at d 64, and persistent blocks were
// not tried with it. At d 128 these leave 1 KB of shared memory: K 2 x 32, V 32, Q and dO 2 x 2 x 16, dS 2 x 16, dv and
// dk on their way out 32, statistics and control 2 KB.
template <int kDim, ScoreKind kKind>
struct BackwardConfig;
template <>
struct BackwardConfig<64, ScoreKind::plain> : BackwardShape<64, 128, 128, true> {};
template <>
struct BackwardConfig<64, ScoreKind::general> : BackwardShape<64, 64, 128> {};
template <>
struct BackwardConfig<128, ScoreKind::plain> : BackwardShape<128, 64, 128, true> {};
template <>
struct BackwardConfig<128, ScoreKind::general> : BackwardShape<128, 64, 128> {};
template <ScoreKind kKind>
struct BackwardConfig<192, kKind> : BackwardShape<192, 64, 64> {};
template <ScoreKind kKind>
struct BackwardConfig<256, kKind> : BackwardShape<256, 64, 64> {};

}  // namespace tessera::cuda::sm90
