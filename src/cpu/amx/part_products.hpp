// The product that forward and backward share: sums of 2 x 2 tiles, of operands in bf16 parts. Loads bound it before
// the products do (a load takes 8 cycles from L1 and 20 from L2, a product 16), so consecutive pairs of parts share one
// operand: 14 tile loads (scores: 16) for the 24 products of three parts, 8 to 10 for the 12 to 16 of two, 4 for the 4
// of one.
// Registers: 0 to 3 the sums [A stripe][B column], 4 and 5 A, 6 and 7 B.
#pragma once

#include <cstdint>

namespace tessera::cpu::TESSERA_CPU_ISA {

// Pairs of parts whose products are summed, in an order in which a pair shares a part with the one before it, so that
// the other alone is loaded. Two parts: scores take all four, since exp turns their absolute error into a relative one;
// other products do without the first, which misses by 2^-16. Three parts: what is left out is below 2^-25.
struct PartPair {
  int a, b;
};
template <int kParts>
inline constexpr PartPair kPartPairs[1] = {{0, 0}};
template <>
inline constexpr PartPair kPartPairs<2>[4] = {{1, 1}, {1, 0}, {0, 0}, {0, 1}};
template <>
inline constexpr PartPair kPartPairs<3>[6] = {{2, 0}, {1, 0}, {1, 1}, {0, 1}, {0, 2}, {0, 0}};
template <int kParts>
inline constexpr int kPairs = sizeof(kPartPairs<kParts>) / sizeof(PartPair);
template <int kParts>
inline constexpr int kFirstOtherPair = kParts == 2 ? 1 : 0;
// Pairs of scores whose products are summed over all of the head dim before the others': of three parts those but the
// first of both, so that a sum as large as the score is rounded once in 32 dims, not six times.
template <int kParts>
inline constexpr int kSmallScorePairs = kParts == 3 ? kPairs<kParts> - 1 : 0;

// Two stripes of A or columns of B, `stripe` elements apart; tiles of the depth and parts likewise.
struct TileOperand {
  const uint16_t* tiles;
  int64_t stripe, depth, part;
  int64_t row_bytes = 64;
};

template <class Tiles>
inline void zero_sums(Tiles& tiles) {
  tiles.template zero<0>();
  tiles.template zero<1>();
  tiles.template zero<2>();
  tiles.template zero<3>();
}

// What is called behind each two products: nothing.
struct Nothing {
  void operator()() const {}
};

// What is done with a sum's register before its first product: nothing, it is set.
struct SetSums {
  template <int T>
  void start() const {}
};

// Adds the pairs of parts [kBegin, kEnd) over `depth` tiles.
template <int kParts, int kBegin, int kEnd, class Tiles, class Between, class Sums = SetSums>
[[gnu::always_inline]] inline void multiply_pairs(Tiles& tiles, TileOperand a, TileOperand b, int64_t depth,
                                                  const Between& between, const Sums& sums = {}) {
  for (int64_t d = 0; d < depth; ++d, a.tiles += a.depth, b.tiles += b.depth) {
#pragma GCC unroll 6
    for (int i = kBegin; i < kEnd; ++i) {
      const PartPair pair = kPartPairs<kParts>[i], before = i > kBegin ? kPartPairs<kParts>[i - 1] : PartPair{-1, -1};
      const uint16_t *left = a.tiles + pair.a * a.part, *right = b.tiles + pair.b * b.part;
      const bool first = i == kBegin && d == 0;
      if (pair.a != before.a) tiles.template load<4>(left, a.row_bytes);
      if (pair.b != before.b) tiles.template load<6>(right, b.row_bytes);
      if (first) sums.template start<0>();
      tiles.template dp_bf16<0, 4, 6>();
      if (pair.b != before.b) tiles.template load<7>(right + b.stripe, b.row_bytes);
      if (first) sums.template start<1>();
      tiles.template dp_bf16<1, 4, 7>();
      between();
      if (pair.a != before.a) tiles.template load<5>(left + a.stripe, a.row_bytes);
      if (first) sums.template start<2>();
      tiles.template dp_bf16<2, 5, 6>();
      if (first) sums.template start<3>();
      tiles.template dp_bf16<3, 5, 7>();
      between();
    }
  }
}
template <int kParts, class Tiles, class Between = Nothing, class Sums = SetSums>
[[gnu::always_inline]] inline void multiply_scores(Tiles& tiles, const TileOperand& a, const TileOperand& b,
                                                   int64_t depth, const Between& between = {}, const Sums& sums = {}) {
  constexpr int kSmall = kSmallScorePairs<kParts>;
  if constexpr (kSmall > 0) {
    multiply_pairs<kParts, 0, kSmall>(tiles, a, b, depth, between, sums);
    multiply_pairs<kParts, kSmall, kPairs<kParts>>(tiles, a, b, depth, between);
  } else {
    multiply_pairs<kParts, 0, kPairs<kParts>>(tiles, a, b, depth, between, sums);
  }
}
template <int kParts, class Tiles, class Between = Nothing, class Sums = SetSums>
[[gnu::always_inline]] inline void multiply_others(Tiles& tiles, const TileOperand& a, const TileOperand& b,
                                                   int64_t depth, const Between& between = {}, const Sums& sums = {}) {
  multiply_pairs<kParts, kFirstOtherPair<kParts>, kPairs<kParts>>(tiles, a, b, depth, between, sums);
}

}  // namespace tessera::cpu::TESSERA_CPU_ISA
