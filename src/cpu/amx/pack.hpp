// How Q, K and V lie in memory for the tile instructions, and their packing. Invariant: a tile is 1 KiB contiguous, all
// loads use stride 64, and everything beyond a head dim or a sequence's keys is zero, whatever the source holds there.
//
//   Q^T  B operand of S^T = K Q^T   tile (dim block of 32, query half): 16 dim pairs x 16 queries, a dword a pair
//   K    A operand of S^T           tile (key block of 16, dim block of 32): 16 keys x 32 dims, as stored
//   V^T  A operand of O^T = V^T P^T tile (dim block of 16, key block of 32): 16 dims x 32 keys
//   P^T  B operand of O^T           tile (key block of 32, query half): 16 key pairs x 16 queries
//
// bf16 inputs are one part. f16 inputs are two bf16, the second of what the first lost, which keep all 11 bits; one
// would miss by 2^-9, eight times the rounding of f16 itself. f32 inputs are three, which keep all 24 bits of numbers
// from 2^-102 on; below, the tile product takes parts under 2^-126 for zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cpu/amx/arrange.hpp"
#include "cpu/amx/tiles.hpp"
#include "cpu/load.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

// The element of operands that become kParts parts.
template <int kParts>
using PartsElement =
    std::conditional_t<kParts == 1, Bf16Element, std::conditional_t<kParts == 2, F16Element, F32Element>>;

// 16 elements of a row of `dim` from element c on, zeros behind it.
template <int kParts, class V>
inline V load_elements(const std::byte* row, int64_t dim, int64_t c) {
  using Element = PartsElement<kParts>;
  return c < dim ? load_partial<V, Element>(row + c * Element::kBytes, dim - c) : V::zero();
}

// One row of `dim` elements as bf16 parts `part_stride` elements apart, blocks of 32 `block_stride` elements apart,
// zeros from `dim` to `padded`. A row that does not exist has dim 0 and no source.
template <int kParts, class V>
inline void load_row(const std::byte* source, int64_t dim, int64_t padded, uint16_t* row, int64_t block_stride,
                     int64_t part_stride) {
  for (int64_t c = 0; c < padded; c += 32, row += block_stride) {
    if (kParts == 1 && dim - c >= 32)
      std::memcpy(row, source + c * 2, 64);  // as stored
    else
      split_row<kParts>(load_elements<kParts, V>(source, dim, c), load_elements<kParts, V>(source, dim, c + 16), row,
                        part_stride);
  }
}

// to[c][r] = rows[r][c] for a 16 x 16 block of dwords; to has 16 dwords a row.
template <class V>
inline void transpose_tile(const uint32_t* rows, int64_t row_stride, uint32_t* to) {
  V block[16];
  for (int r = 0; r < 16; ++r) block[r] = V::load(rows + r * row_stride);
  V::store_transposed(block, reinterpret_cast<float*>(to), 16, 16);
}

// Packs 16 query rows (null: a row of zeros) into tiles[part][dim block][half] for one half.
template <int kParts, class V>
inline void pack_queries(const std::byte* const (&rows)[16], int64_t dim, int64_t padded, int half, uint16_t* scratch,
                         uint16_t* tiles) {
  const int64_t row_elements = kParts * padded, blocks = padded / 32;
  for (int r = 0; r < 16; ++r)
    load_row<kParts, V>(rows[r], rows[r] != nullptr ? dim : 0, padded, scratch + r * row_elements, 32, padded);
  for (int part = 0; part < kParts; ++part)
    for (int64_t block = 0; block < blocks; ++block)
      transpose_tile<V>(reinterpret_cast<const uint32_t*>(scratch + part * padded + block * 32), row_elements / 2,
                        reinterpret_cast<uint32_t*>(tiles + ((part * blocks + block) * 2 + half) * kTileElements));
}

// Packs one key row into row `key` of the chunk's K tiles [part][key block][dim block].
template <int kParts, class V>
inline void pack_key(const std::byte* source, int64_t dim, int64_t padded, int64_t key, int64_t chunk_keys,
                     uint16_t* tiles) {
  const int64_t blocks = padded / 32;
  load_row<kParts, V>(source, dim, padded, tiles + (key / 16 * blocks) * kTileElements + (key % 16) * 32, kTileElements,
                      chunk_keys / 16 * blocks * kTileElements);
}

// Packs 32 value rows (null: zeros) into the chunk's V^T tiles [part][dim block][key block].
template <int kParts, class V>
inline void pack_values(const std::byte* const (&rows)[32], int64_t dim, int64_t padded, int64_t key_block,
                        int64_t chunk_keys, uint16_t* tiles) {
  const int64_t blocks = padded / 16, key_blocks = chunk_keys / 32;
  alignas(64) uint32_t pairs[kParts][16][16];
  for (int64_t block = 0; block < blocks; ++block) {
    for (int r = 0; r < 16; ++r) {
      const auto load = [&](const std::byte* row) {
        return load_elements<kParts, V>(row, row != nullptr ? dim : 0, block * 16);
      };
      split_pairs<kParts, true>(load(rows[2 * r]), load(rows[2 * r + 1]), reinterpret_cast<uint16_t*>(&pairs[0][r][0]),
                                16 * 32);
    }
    for (int part = 0; part < kParts; ++part) {
      const int64_t tile = (part * blocks + block) * key_blocks + key_block;
      transpose_tile<V>(&pairs[part][0][0], 16, reinterpret_cast<uint32_t*>(tiles + tile * kTileElements));
    }
  }
}

}  // namespace tessera::cpu::TESSERA_CPU_ISA
