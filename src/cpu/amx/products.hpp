// The two products of a step on the tile registers: S^T = K Q^T, 32 keys x 32 queries at a time, and O^T += V^T P^T, 16
// dims x 32 queries at a time. Loads and stores bound them before the products do (a load takes 8 cycles from L1 and 20
// from L2, a store 16 and 60, a product 16), so that what a register holds is used at least twice.
// Scores, and values of several parts: 0 to 3 the sums [stripe][query half], 4 and 5 K or V^T, 6 and 7 Q^T or P^T.
// Values of one part: 0 and 1 the sums, 2 and 3 V^T, 4 to 7 all of the step's P^T.
#pragma once

#include <cstdint>

#include "cpu/amx/pack.hpp"
#include "cpu/amx/part_pairs.hpp"
#include "cpu/amx/scores.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

// Addresses of A tiles (part, depth block) of one 16-row stripe and of B tiles (part, depth block, query half).
struct Stripe {
  const uint16_t* tiles;
  int64_t part_stride, depth_stride;  // elements
};
struct Columns {
  const uint16_t* tiles;
  int64_t part_stride;  // elements; depth blocks follow each other, two halves each
};

// Adds the pairs of parts [kBegin, kEnd) to the sums of two stripes; `between` is called behind each pair of products.
template <int kParts, int kBegin, int kEnd, class Tiles, class Between>
inline void multiply_stripes(Tiles& tiles, const Stripe& a, const Stripe& b, const Columns& columns,
                             int64_t depth_blocks, const Between& between) {
  for (int64_t block = 0; block < depth_blocks; ++block) {
#pragma GCC unroll 6
    for (int i = kBegin; i < kEnd; ++i) {
      const PartPair pair = kPartPairs<kParts>[i], before = i > kBegin ? kPartPairs<kParts>[i - 1] : PartPair{-1, -1};
      if (pair.a != before.a) {
        tiles.template load<4>(a.tiles + pair.a * a.part_stride + block * a.depth_stride, 64);
        tiles.template load<5>(b.tiles + pair.a * b.part_stride + block * b.depth_stride, 64);
      }
      if (pair.b != before.b) {
        const uint16_t* right = columns.tiles + pair.b * columns.part_stride + block * 2 * kTileElements;
        tiles.template load<6>(right, 64);
        tiles.template load<7>(right + kTileElements, 64);
      }
      tiles.template dp_bf16<0, 4, 6>();
      tiles.template dp_bf16<1, 4, 7>();
      between();
      tiles.template dp_bf16<2, 5, 6>();
      tiles.template dp_bf16<3, 5, 7>();
      between();
    }
  }
}

// Loads P^T of one part, for multiply_values.
template <class Tiles>
inline void load_probabilities(Tiles& tiles, const Columns& p) {
  tiles.template load<4>(p.tiles, kPairElements * 2);
  tiles.template load<5>(p.tiles + 32, kPairElements * 2);
  tiles.template load<6>(p.tiles + 16 * kPairElements, kPairElements * 2);
  tiles.template load<7>(p.tiles + 16 * kPairElements + 32, kPairElements * 2);
}
template <class Tiles, class Between>
inline void multiply_values(Tiles& tiles, const Stripe& v, const Between& between) {
  static_assert(kStepKeys / 32 == 2);
  tiles.template load<2>(v.tiles, 64);
  tiles.template dp_bf16<0, 2, 4>();
  tiles.template dp_bf16<1, 2, 5>();
  between();
  tiles.template load<3>(v.tiles + v.depth_stride, 64);
  tiles.template dp_bf16<0, 3, 6>();
  tiles.template dp_bf16<1, 3, 7>();
  between();
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
template <class Tiles>
inline void zero_stripes(Tiles& tiles) {
  tiles.template zero<0>();
  tiles.template zero<1>();
  tiles.template zero<2>();
  tiles.template zero<3>();
}

}  // namespace tessera::cpu::TESSERA_CPU_ISA
