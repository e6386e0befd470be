// Tile shapes of the sm90 forward kernel. Host and device: planning reads the same constants as the kernels are made
// from.
#pragma once

#include <cstdint>

#include "../score_kind.hpp"

namespace tessera::cuda::sm90 {

// A block takes kTileM = 64 * kGroups query rows, 64 a consumer warpgroup, and kTileN keys a step.
template <int kDimQk_, int kDimV_, int kGroups_, int kTileN_, int kQueryStages_, bool kTurns_, bool kLazy_,
          int kStages_ = 2, bool kDense_ = false>
struct ForwardShape {
  static constexpr int kDimQk = kDimQk_, kDimV = kDimV_, kGroups = kGroups_, kTileN = kTileN_;
  static constexpr int kQueryStages = kQueryStages_, kStages = kStages_, kValueStages = kStages;
  static constexpr int kBytes = 2;         // an element of q, k and v
  static constexpr int kTransposers = 0;   // warps between V's copies and the consumers
  static constexpr bool kProduces = true;  // K and V come by a producer warp; else a consumer warp copies them
  static constexpr bool kTurns = kTurns_;  // consumers take turns at issuing their products
  static constexpr bool kOverlaps = true;  // the softmax of a step runs beside the product of the one before
  static constexpr bool kLazy = kLazy_;    // accumulators are rescaled when a maximum grows by more than 2^8
  static constexpr bool kDense = kDense_;  // takes whole dense q, k and v only, in one split
  static constexpr int kTileM = 64 * kGroups, kThreads = 128 * (kGroups + 1);
  // Bytes of a tile's row that lie together, swizzled; columns of such a span.
  static constexpr int kSpan = kDimQk % 64 == 0 && kDimV % 64 == 0 ? 128 : 64, kSpanColumns = kSpan / kBytes;
  static constexpr int kQueryBytes = kTileM * kDimQk * 2, kKeyBytes = kTileN * kDimQk * 2;
  static constexpr int kValueBytes = kTileN * kDimV * 2;
  // setmaxnreg hands out what the launch took: 168 registers for 384 threads, 128 for 512, 96 for 640. A lone warpgroup
  // has enough without it.
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kProducerRegisters = kGroups > 2 ? 32 : 56;
  static constexpr int kConsumerRegisters = kGroups == 1 ? 255 : kGroups == 2 ? 224 : kGroups == 3 ? 160 : 112;
  static_assert(kProducerRegisters + kGroups * kConsumerRegisters <= kLaunchRegisters * (kGroups + 1));
  static_assert(kTileN % 16 == 0 && kDimQk % kSpanColumns == 0 && kDimV % kSpanColumns == 0);
  // [Q tiles][K tiles][V tiles][a span of o, 16 rows a consumer's warp][Control], tiles at multiples of 1024 bytes.
  static constexpr int kKeyOffset = kQueryStages * kQueryBytes, kValueOffset = kKeyOffset + kStages * kKeyBytes;
  static constexpr int kOutputOffset = kValueOffset + kStages * kValueBytes, kWarpOutputBytes = 16 * kSpan;
  static constexpr int kControlOffset = kOutputOffset + 4 * kGroups * kWarpOutputBytes, kControlBytes = 2048;
  static constexpr int kSharedBytes = kControlOffset + kControlBytes;
  static_assert(kQueryBytes % 1024 == 0 && kKeyBytes % 1024 == 0 && kValueBytes % 1024 == 0);
  static_assert(kSharedBytes <= 227 * 1024);
};

// A shape with what it was measured to reach on an H200: its share of the 16-bit peak on long rows, and what a query
// tile costs beside its key tiles, in key tiles.
template <class Shape, int kSharePercent, int kOverheadPercent>
struct Measured : Shape {
  static constexpr double kShare = kSharePercent * 0.01, kOverheadTiles = kOverheadPercent * 0.01;
};

// Shapes by bucket of head dims. Plain takes plain scores of any layout, General all scores, with fewer keys a step,
// since the scores' arithmetic needs registers too. The others take whole dense rows alone (cut.cpp): Wide from
// kWideKeys keys on, Brief up to kBriefKeys under a mask, where steps of 64 keys end closer to the diagonal, and for
// windows of up to kBriefWindow keys a row, Narrow where tiles of 64 rows leave multiprocessors idle. A bucket that has
// none of these has Plain there (PlainAlone).
template <int kDimQk, int kDimV>
struct ForwardConfig;
template <class Shape>
struct PlainAlone {
  static constexpr int kWideKeys = 0, kBriefKeys = 0, kBriefWindow = 0;
  using Plain = Shape;
  using Wide = Shape;
  using Brief = Shape;
  using Narrow = Shape;
};
template <>
struct ForwardConfig<64, 64> {
  static constexpr int kWideKeys = 512, kBriefKeys = 1024, kBriefWindow = 640;
  using Plain = Measured<ForwardShape<64, 64, 2, 128, 2, true, false, 3>, 46, 200>;
  using Wide = Measured<ForwardShape<64, 64, 3, 128, 2, true, false, 2, true>, 57, 200>;
  using Brief = Measured<ForwardShape<64, 64, 4, 64, 2, true, false, 6, true>, 54, 300>;
  using Narrow = Measured<ForwardShape<64, 64, 1, 128, 1, false, false, 2, true>, 32, 400>;
  using General = Measured<ForwardShape<64, 64, 2, 64, 2, true, false>, 25, 200>;
};
template <>
struct ForwardConfig<96, 96> : PlainAlone<Measured<ForwardShape<96, 96, 2, 128, 2, true, false>, 56, 200>> {
  using General = Measured<ForwardShape<96, 96, 2, 64, 2, true, false>, 25, 200>;
};
template <>
struct ForwardConfig<128, 128> {
  static constexpr int kWideKeys = 2048, kBriefKeys = 512, kBriefWindow = 1536;
  using Plain = Measured<ForwardShape<128, 128, 2, 128, 2, true, true>, 69, 150>;
  using Wide = Measured<ForwardShape<128, 128, 3, 80, 2, true, true, 2, true>, 75, 100>;
  using Brief = Measured<ForwardShape<128, 128, 3, 64, 2, false, true, 3, true>, 84, 400>;
  using Narrow = Measured<ForwardShape<128, 128, 1, 128, 1, false, true, 2, true>, 49, 350>;
  using General = Measured<ForwardShape<128, 128, 2, 64, 2, true, false>, 35, 200>;
};
template <>
struct ForwardConfig<192, 128> : PlainAlone<Measured<ForwardShape<192, 128, 2, 128, 1, true, false>, 70, 150>> {
  using General = Measured<ForwardShape<192, 128, 2, 64, 1, true, false>, 35, 200>;
};
template <>
struct ForwardConfig<192, 192> : PlainAlone<Measured<ForwardShape<192, 192, 2, 96, 1, true, true>, 70, 150>> {
  using General = Measured<ForwardShape<192, 192, 2, 48, 1, true, true>, 35, 200>;
};
template <>
struct ForwardConfig<256, 256> : PlainAlone<Measured<ForwardShape<256, 256, 2, 64, 1, true, true>, 78, 200>> {
  using General = Measured<ForwardShape<256, 256, 2, 32, 1, true, true>, 35, 200>;
};

}  // namespace tessera::cuda::sm90
