// What quantising and reading its results share on the host and on devices: where a key lies in the order of the
// Hopper kernel, a cell's scale, the rotation's signs.
#pragma once

#include <cstdint>

#include "semantics.hpp"

namespace tessera::core {

// Keys of a sequence are stored in groups of 16, and inside a group in the order in which a thread of a warp holds the
// probabilities of wgmma's accumulator when it packs them four to a register: slots 0 to 15 hold keys
// 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15.
inline constexpr int64_t kKeyGroup = 16;
TESSERA_HD int64_t key_slot(int64_t key) {
  const int64_t in = key % kKeyGroup;
  return key - in + in % 8 / 2 * 4 + in / 8 * 2 + in % 2;
}
TESSERA_HD int64_t whole_groups(int64_t keys) { return (keys + kKeyGroup - 1) / kKeyGroup * kKeyGroup; }
// Packed: the first slot of a sequence, a group's first, from its number and its first row; and the slots of an array.
TESSERA_HD int64_t packed_first_slot(int64_t row, int64_t sequence) {
  return (row + (kKeyGroup - 1) * sequence) / kKeyGroup * kKeyGroup;
}

// The scale under which the largest magnitude of a cell becomes the type's largest number; 1 where all is zero. Not
// below the smallest normal number, so that its reciprocal is finite.
TESSERA_HD float scale_of_largest(float largest, float limit) {
  if (largest == 0.0f) return 1.0f;
  const float scale = largest / limit;
  return scale < 0x1p-126f ? 0x1p-126f : scale;
}

// The largest power of two, up to 256, that divides a head dim: the elements that a rotation mixes.
TESSERA_HD int32_t rotation_block(int32_t head_dim) {
  int32_t block = 1;
  while (block < 256 && head_dim % (2 * block) == 0) block *= 2;
  return block;
}
// 1 / sqrt(block), rounded once.
TESSERA_HD float rotation_unit(int32_t block) {
  float unit = 1.0f;
  for (; block >= 4; block /= 4) unit *= 0.5f;
  return block == 2 ? unit * 0.70710678f : unit;
}
// Whether the rotation turns the sign of a channel: a bit of SplitMix64 (Steele, Lea and Flood, 2014).
TESSERA_HD bool rotation_negates(uint64_t seed, int32_t channel) {
  uint64_t z = seed + (static_cast<uint64_t>(channel) + 1) * UINT64_C(0x9e3779b97f4a7c15);
  z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
  return (z ^ z >> 31) >> 63 != 0;
}

}  // namespace tessera::core
