// The two products of a step on the tile registers: S^T = K Q^T, 32 keys x 32 queries at a time, and O^T += V^T P^T, 32
// dims x 32 queries at a time. Loads and stores bound them before the products do (a load takes 8 cycles from L1 and 20
// from L2, a store 16 and 60, a product 16), so that what a register holds is used at least twice.
// Registers 0 to 3 are the sums [stripe][query half], 4 and 5 K or V^T, 6 and 7 Q^T or
// P^T.
#pragma once

#include <cstdint>

#include "cpu/amx/pack.hpp"
#include "cpu/amx/part_products.hpp"
#include "cpu/amx/scores.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

// O^T's last stripe where their number is odd, of one part: 0 and 1 the sums, 4 V^T, 6 and 7 P^T.
template <class Tiles, class Between>
[[gnu::always_inline]] inline void multiply_stripe(Tiles& tiles, TileOperand v, TileOperand p, int64_t depth,
                                                   const Between& between) {
  for (int64_t d = 0; d < depth; ++d, v.tiles += v.depth, p.tiles += p.depth) {
    tiles.template load<4>(v.tiles, v.row_bytes);
    tiles.template load<6>(p.tiles, p.row_bytes);
    tiles.template dp_bf16<0, 4, 6>();
    tiles.template load<7>(p.tiles + p.stripe, p.row_bytes);
    tiles.template dp_bf16<1, 4, 7>();
    between();
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

// The four sums of a block of 32 x 32, two stripes of 16 rows, on their way through the registers: those before are
// stored just before the registers are needed again, since a store right behind the products waits for them, and the
// tile instructions behind wait with it.
template <class Tiles>
struct BlockSums {
  Tiles& tiles;
  float* before;      // null: nothing to store
  const float* from;  // null: zeros

  static constexpr int64_t offset(int t) { return t / 2 * 16 * kUnitRows + t % 2 * 16; }
  template <int T>
  void start() const {
    if (before != nullptr) tiles.template store<T>(before + offset(T), kUnitRows * 4);
    if (from != nullptr)
      tiles.template load<T>(from + offset(T), kUnitRows * 4);
    else
      tiles.template zero<T>();
  }
};

}  // namespace tessera::cpu::TESSERA_CPU_ISA
