// The product of the tile kernel's backward: sums of 2 x 2 tiles, of operands in bf16 parts. Loads bound it before the
// products do (a load takes 8 cycles from L1 and 20 from L2, a product 16), so consecutive pairs of parts share one
// operand: 14 tile loads (scores: 16) for the 24 products of three parts, 8 to 10 for the 12 to 16 of two, 4 for the 4
// of one.
// Registers: 0 to 3 the sums [A stripe][B column], 4 and 5 A, 6 and 7 B.
#pragma once

#include <cstdint>

#include "cpu/amx/part_pairs.hpp"
#include "cpu/amx/parts.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

// Two stripes of A or columns of B, `stripe` elements apart; tiles of the depth and parts likewise.
struct TileOperand {
  const uint16_t* tiles;
  int64_t stripe, depth, part;
};

// Adds the pairs of parts [kPair, kEnd), of which the one before kPair left its parts in the registers unless kFirst.
template <int kParts, int kPair, int kEnd, bool kFirst, class Tiles>
[[gnu::always_inline]] inline void multiply_pairs(Tiles& tiles, const TileOperand& a, const TileOperand& b) {
  if constexpr (kPair < kEnd) {
    constexpr PartPair kNow = kPartPairs<kParts>[kPair], kBefore = kPartPairs<kParts>[kFirst ? kPair : kPair - 1];
    constexpr bool kLoadA = kFirst || kNow.a != kBefore.a, kLoadB = kFirst || kNow.b != kBefore.b;
    const uint16_t *left = a.tiles + kNow.a * a.part, *right = b.tiles + kNow.b * b.part;
    if constexpr (kLoadA) tiles.template load<4>(left, 64);
    if constexpr (kLoadB) tiles.template load<6>(right, 64);
    tiles.template dp_bf16<0, 4, 6>();
    if constexpr (kLoadB) tiles.template load<7>(right + b.stripe, 64);
    tiles.template dp_bf16<1, 4, 7>();
    if constexpr (kLoadA) tiles.template load<5>(left + a.stripe, 64);
    tiles.template dp_bf16<2, 5, 6>();
    tiles.template dp_bf16<3, 5, 7>();
    multiply_pairs<kParts, kPair + 1, kEnd, false>(tiles, a, b);
  }
}
template <int kParts, int kBegin, int kEnd, class Tiles>
inline void multiply_depth(Tiles& tiles, TileOperand a, TileOperand b, int64_t depth) {
  for (int64_t d = 0; d < depth; ++d, a.tiles += a.depth, b.tiles += b.depth)
    multiply_pairs<kParts, kBegin, kEnd, true>(tiles, a, b);
}
template <int kParts, bool kScores, class Tiles>
inline void multiply(Tiles& tiles, const TileOperand& a, const TileOperand& b, int64_t depth) {
  constexpr int kSmall = kScores ? kSmallScorePairs<kParts> : kFirstValuePair<kParts>;
  if constexpr (kScores && kSmall > 0) multiply_depth<kParts, 0, kSmall>(tiles, a, b, depth);
  multiply_depth<kParts, kSmall, kPairs<kParts>>(tiles, a, b, depth);
}

// Sums lie as four tiles one behind the other, [A stripe][B column].
inline constexpr int64_t kTileFloats = amx::kTileBytes / 4, kSumFloats = 4 * kTileFloats;

template <class Tiles>
inline void clear_sums(Tiles& tiles) {
  tiles.template zero<0>();
  tiles.template zero<1>();
  tiles.template zero<2>();
  tiles.template zero<3>();
}
template <class Tiles>
inline void load_sums(Tiles& tiles, const float* from) {
  tiles.template load<0>(from, 64);
  tiles.template load<1>(from + kTileFloats, 64);
  tiles.template load<2>(from + 2 * kTileFloats, 64);
  tiles.template load<3>(from + 3 * kTileFloats, 64);
}
template <class Tiles>
inline void store_sums(Tiles& tiles, float* to) {
  tiles.template store<0>(to, 64);
  tiles.template store<1>(to + kTileFloats, 64);
  tiles.template store<2>(to + 2 * kTileFloats, 64);
  tiles.template store<3>(to + 3 * kTileFloats, 64);
}

}  // namespace tessera::cpu::TESSERA_CPU_ISA
