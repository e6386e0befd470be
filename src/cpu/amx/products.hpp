// The two products of a step on the tile registers: S^T = K Q^T, 32 keys x 32 queries at a time, and O^T += V^T P^T, 16
// dims x 32 queries at a time. Loads and stores bound them before the products do (a load takes 8 cycles from L1 and 20
// from L2, a store 16 and 60, a product 16), so that what a register holds is used at least twice.
// Scores: 0 to 3 the sums [key block][query half], 4 and 5 K, 6 and 7 Q^T. Values of one part: 0 and 1 the sums, 2 and
// 3 V^T, 4 to 7 all of the step's P^T; of two parts: 0 and 1 the sums, 4 V^T, 5 and 6 P^T.
#pragma once

#include <cstdint>

#include "cpu/amx/pack.hpp"
#include "cpu/amx/scores.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

// Operand parts of the products of two-part operands; one-part operands take the first alone. Scores take all four,
// since exp turns their absolute error into a relative one; values the first three, whose product misses by 2^-16.
struct PartPair {
  int a, b;
};
inline constexpr PartPair kPartPairs[4] = {{0, 0}, {0, 1}, {1, 0}, {1, 1}};
inline constexpr int kScorePairs = 4, kValuePairs = 3;

// Addresses of A tiles (part, depth block) of one 16-row stripe and of B tiles (part, depth block, query half).
struct Stripe {
  const uint16_t* tiles;
  int64_t part_stride, depth_stride;  // elements
};
struct Columns {
  const uint16_t* tiles;
  int64_t part_stride;  // elements; depth blocks follow each other, two halves each
};

// Sums of two stripes; `between` is called behind each pair of products.
template <int kParts, class Tiles, class Between>
inline void multiply_scores(Tiles& tiles, const Stripe& a, const Stripe& b, const Columns& q, int64_t depth_blocks,
                            const Between& between) {
  tiles.template zero<0>();
  tiles.template zero<1>();
  tiles.template zero<2>();
  tiles.template zero<3>();
  for (int pair = 0; pair < (kParts == 1 ? 1 : kScorePairs); ++pair) {
    const uint16_t* first = a.tiles + kPartPairs[pair].a * a.part_stride;
    const uint16_t* second = b.tiles + kPartPairs[pair].a * b.part_stride;
    const uint16_t* right = q.tiles + kPartPairs[pair].b * q.part_stride;
    for (int64_t block = 0; block < depth_blocks; ++block) {
      tiles.template load<4>(first + block * a.depth_stride, 64);
      tiles.template load<6>(right + block * 2 * kTileElements, 64);
      tiles.template load<7>(right + (block * 2 + 1) * kTileElements, 64);
      tiles.template dp_bf16<0, 4, 6>();
      tiles.template dp_bf16<1, 4, 7>();
      between();
      tiles.template load<5>(second + block * b.depth_stride, 64);
      tiles.template dp_bf16<2, 5, 6>();
      tiles.template dp_bf16<3, 5, 7>();
      between();
    }
  }
}

// Loads P^T of one part, for multiply_values.
template <class Tiles>
inline void load_probabilities(Tiles& tiles, const Columns& p) {
  tiles.template load<4>(p.tiles, 64);
  tiles.template load<5>(p.tiles + kTileElements, 64);
  tiles.template load<6>(p.tiles + 2 * kTileElements, 64);
  tiles.template load<7>(p.tiles + 3 * kTileElements, 64);
}
template <int kParts, class Tiles, class Between>
inline void multiply_values(Tiles& tiles, const Stripe& v, const Columns& p, const Between& between) {
  constexpr int64_t kDepth = kStepKeys / 32;
  static_assert(kDepth == 2);
  if constexpr (kParts == 1) {
    tiles.template load<2>(v.tiles, 64);
    tiles.template dp_bf16<0, 2, 4>();
    tiles.template dp_bf16<1, 2, 5>();
    between();
    tiles.template load<3>(v.tiles + v.depth_stride, 64);
    tiles.template dp_bf16<0, 3, 6>();
    tiles.template dp_bf16<1, 3, 7>();
    between();
  } else {
    for (int pair = 0; pair < kValuePairs; ++pair) {
      const uint16_t* left = v.tiles + kPartPairs[pair].a * v.part_stride;
      const uint16_t* right = p.tiles + kPartPairs[pair].b * p.part_stride;
      for (int64_t block = 0; block < kDepth; ++block) {
        tiles.template load<4>(left + block * v.depth_stride, 64);
        tiles.template load<5>(right + block * 2 * kTileElements, 64);
        tiles.template load<6>(right + (block * 2 + 1) * kTileElements, 64);
        tiles.template dp_bf16<0, 4, 5>();
        tiles.template dp_bf16<1, 4, 6>();
        between();
      }
    }
  }
}

template <int kSet, class Tiles>
inline void store_stripe(Tiles& tiles, float* to) {
  tiles.template store<2 * kSet>(to, kUnitRows * 4);
  tiles.template store<2 * kSet + 1>(to + 16, kUnitRows * 4);
}
template <class Tiles>
inline void load_stripe(Tiles& tiles, const float* from) {
  tiles.template load<0>(from, kUnitRows * 4);
  tiles.template load<1>(from + 16, kUnitRows * 4);
}

}  // namespace tessera::cpu::TESSERA_CPU_ISA
