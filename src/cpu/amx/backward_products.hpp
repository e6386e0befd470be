// Where the sums of the tile kernel's backward lie.
#pragma once

#include "cpu/amx/part_products.hpp"
#include "cpu/amx/parts.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

// Sums lie as four tiles one behind the other, [A stripe][B column].
inline constexpr int64_t kTileFloats = amx::kTileBytes / 4, kSumFloats = 4 * kTileFloats;

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
