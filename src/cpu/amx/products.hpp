// The two products of a step on the tile registers: S^T = K Q^T and O^T += V^T P^T, each 16 rows x 32 queries at a
// time. Two accumulator sets alternate, so that one set's stores (16 cycles a tile) run behind the other's products.
// Registers: 0, 1 and 2, 3 the accumulator sets; 4 and 7 the A operand; 5, 6 the B operand.
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

template <int kSet, int kParts, int kPairs, class Tiles>
inline void multiply(Tiles& tiles, const Stripe& a, const Columns& b, int64_t depth_blocks) {
  for (int pair = 0; pair < (kParts == 1 ? 1 : kPairs); ++pair) {
    const uint16_t* left = a.tiles + kPartPairs[pair].a * a.part_stride;
    const uint16_t* right = b.tiles + kPartPairs[pair].b * b.part_stride;
    for (int64_t block = 0; block < depth_blocks; ++block) {
      tiles.template load<4>(left + block * a.depth_stride, 64);
      tiles.template load<5>(right + block * 2 * kTileElements, 64);
      tiles.template load<6>(right + (block * 2 + 1) * kTileElements, 64);
      tiles.template dp_bf16<2 * kSet, 4, 5>();
      tiles.template dp_bf16<2 * kSet + 1, 4, 6>();
    }
  }
}

template <int kSet, class Tiles>
inline void store_stripe(Tiles& tiles, float* to) {
  tiles.template store<2 * kSet>(to, kUnitRows * 4);
  tiles.template store<2 * kSet + 1>(to + 16, kUnitRows * 4);
}
template <int kSet, class Tiles>
inline void load_stripe(Tiles& tiles, const float* from) {
  tiles.template load<2 * kSet>(from, kUnitRows * 4);
  tiles.template load<2 * kSet + 1>(from + 16, kUnitRows * 4);
}
template <int kSet, class Tiles>
inline void zero_stripe(Tiles& tiles) {
  tiles.template zero<2 * kSet>();
  tiles.template zero<2 * kSet + 1>();
}

}  // namespace tessera::cpu::TESSERA_CPU_ISA
