// Tile shapes of the sm90 forward for e4m3. Host and device.
#pragma once

#include "config.hpp"

namespace tessera::cuda::sm90 {

// Bytes of a row of a tile of V^T, a byte a key, that lie together, swizzled.
inline constexpr int kFp8KeySpan = 128;

// As ForwardShape, of bytes, with V^T beside V: wgmma multiplies bytes by a K-major operand only, so warps of the
// producer's warpgroup turn every tile of V over in shared memory, or copy V^T where the caller has it. A tile of V^T
// is the even columns, the odd ones, and eight rows of ones, whose products are the sums of p.
template <int kDimQk_, int kDimV_, int kGroups_, int kTileN_, int kQueryStages_, int kStages_,
          int kValueStages_ = kStages_>
struct Fp8Shape {
  static constexpr int kDimQk = kDimQk_, kDimV = kDimV_, kGroups = kGroups_, kTileN = kTileN_;
  static constexpr int kQueryStages = kQueryStages_, kStages = kStages_, kBytes = 1, kTransposers = 2;
  static constexpr int kValueStages = kValueStages_;  // of V as it lies; K and V^T have kStages
  static constexpr bool kProduces = true, kDense = false;
  static constexpr bool kChains = kQueryStages > 1;  // a block's tiles follow one another (Fp8Consumer::run_pieces)
  // The softmax of a step runs beside the product of the one before. Else p v is over before the scores come, which
  // then have the registers of p, which leaves room for 128 keys a step at d 64.
  static constexpr bool kOverlaps = kChains && kGroups < 3;
  // A row's base stays from key tile to key tile as long as no probability exceeds e4m3, so that the exponentials need
  // not wait for the row's largest score. Not tried at d 256, where the assembler serialises products at less.
  static constexpr bool kLazy = kChains;
  // Probabilities are times 2^kShift. e4m3 ends at 448: a base that stays needs room above.
  static constexpr int kShift = kLazy ? 5 : 8;
  static constexpr bool kTurns = !kOverlaps;  // warpgroups take turns at the tensor cores; at d 128 that cost 1 to 3 %
  static constexpr int kTileM = 64 * kGroups, kThreads = 128 * (kGroups + 1);
  // Bytes of a row of Q, K and V that lie together, swizzled.
  static constexpr int kSpan = kDimQk % 128 == 0 && kDimV % 128 == 0 ? 128 : 64, kSpanColumns = kSpan;
  static constexpr int kValueRows = kDimV + 8;
  static constexpr int kQueryBytes = kTileM * kDimQk, kKeyBytes = kTileN * kDimQk, kValueBytes = kTileN * kDimV;
  static constexpr int kTransposedBytes = kTileN * kValueRows;
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kProducerRegisters = kGroups == 3 ? 56 : 40, kConsumerRegisters = kGroups == 3 ? 152 : 232;
  static_assert(kProducerRegisters + kGroups * kConsumerRegisters <= kLaunchRegisters * (kGroups + 1));
  static_assert(kTileN % kFp8KeySpan == 0 && kDimQk % kSpan == 0 && kDimV % kSpan == 0);
  // [Q tiles][K tiles][V tiles][V^T tiles][Control][Fp8Notes a consumer thread, of two views where they chain]. A tile
  // begins where its swizzle does: at 8 of its spans.
  static constexpr int kKeyOffset = kQueryStages * kQueryBytes, kValueOffset = kKeyOffset + kStages * kKeyBytes;
  static constexpr int kTransposedOffset = kValueOffset + kValueStages * kValueBytes;
  static constexpr int kControlOffset = kTransposedOffset + kStages * kTransposedBytes, kControlBytes = 2048;
  static constexpr int kNotesOffset = kControlOffset + kControlBytes, kNotesBytes = 48, kNotes = kChains ? 2 : 1;
  static constexpr int kSharedBytes = kNotesOffset + kNotes * kNotesBytes * 128 * kGroups;
  static_assert(kQueryBytes % 1024 == 0 && kKeyBytes % 1024 == 0 && kValueBytes % 1024 == 0);
  static_assert(kTransposedBytes % (8 * kFp8KeySpan) == 0 && kControlOffset % 128 == 0);
  static_assert(kSharedBytes <= 227 * 1024);
};

// Shapes by bucket of head dims, with their share of the 8-bit peak on long rows and what a query tile costs beside its
// key tiles, both measured on an H200 (docs/notes/hopper.md). More keys a step do not fit the registers: scores, both
// levels of accumulators and p are 214 of 232 at d 128, and without p 134 of 152 at d 64. At 256
// scores and the first level of accumulators take turns (fp8_wide_loop.cuh).
template <int kDim>
struct Fp8Config;
template <>
struct Fp8Config<64> {
  using Plain = Measured<Fp8Shape<64, 64, 3, 128, 2, 3>, 35, 250>;
};
template <>
struct Fp8Config<128> {
  using Plain = Measured<Fp8Shape<128, 128, 2, 128, 2, 3>, 51, 300>;
};
template <>
struct Fp8Config<256> {
  using Plain = Measured<Fp8Shape<256, 256, 2, 128, 1, 2, 1>, 62, 390>;
};

}  // namespace tessera::cuda::sm90
