// The two products of a step on the tile registers: S^T = K Q^T, 32 keys x 32 queries at a time, and O^T += V^T P^T, 16
// dims x 32 queries at a time. Loads and stores bound them before the products do (a load takes 8 cycles from L1 and 20
// from L2, a store 16 and 60, a product 16), so that what a register holds is used at least twice.
// Scores, and values of several parts: 0 to 3 the sums [stripe][query half], 4 and 5 K or V^T, 6 and 7 Q^T or P^T.
// Values of one part: 0 and 1 the sums, 2 and 3 V^T, 4 to 7 all of the step's P^T.
#pragma once

#include <cstdint>

#include "cpu/amx/pack.hpp"
#include "cpu/amx/part_products.hpp"
#include "cpu/amx/scores.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

// Loads P^T of one part, for multiply_values.
template <class Tiles>
inline void load_probabilities(Tiles& tiles, const uint16_t* p) {
  tiles.template load<4>(p, kPairElements * 2);
  tiles.template load<5>(p + 32, kPairElements * 2);
  tiles.template load<6>(p + 16 * kPairElements, kPairElements * 2);
  tiles.template load<7>(p + 16 * kPairElements + 32, kPairElements * 2);
}
template <class Tiles, class Between>
inline void multiply_values(Tiles& tiles, const TileOperand& v, const Between& between) {
  static_assert(kStepKeys / 32 == 2);
  tiles.template load<2>(v.tiles, 64);
  tiles.template dp_bf16<0, 2, 4>();
  tiles.template dp_bf16<1, 2, 5>();
  between();
  tiles.template load<3>(v.tiles + v.depth, 64);
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

}  // namespace tessera::cpu::TESSERA_CPU_ISA
