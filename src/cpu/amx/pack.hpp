// How Q, K and V lie in memory for the tile instructions, and their packing. Invariant: a tile is 1 KiB contiguous, all
// loads use stride 64, and everything beyond a head dim or a sequence's keys is zero, whatever the source holds there.
//
//   Q^T  B operand of S^T = K Q^T   tile (dim block of 32, query half): 16 dim pairs x 16 queries, a dword a pair
//   K    A operand of S^T           tile (key block of 16, dim block of 32): 16 keys x 32 dims, as stored
//   V^T  A operand of O^T = V^T P^T tile (dim block of 16, key block of 32): 16 dims x 32 keys
//   P^T  B operand of O^T           tile (key block of 32, query half): 16 key pairs x 16 queries
//
// bf16 inputs are one part. f16 inputs are two: high = bf16(x), low = bf16(x - high), which keep all 11 bits of x; one
// part would miss by 2^-9, eight times the rounding of f16 itself.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/amx/tiles.hpp"
#include "cpu/convert.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

inline constexpr int64_t kTileElements = amx::kTileBytes / 2;  // bf16 elements

// One row of `dim` 16-bit elements as bf16 in `parts` rows of `padded` elements each, zeros behind `dim`. A row that
// does not exist has dim 0 and no source.
template <int kParts, class V>
inline void load_row(const uint16_t* source, int64_t dim, int64_t padded, uint16_t* row) {
  std::memset(row, 0, size_t(kParts * padded) * 2);
  if constexpr (kParts == 1) {
    if (dim > 0) std::memcpy(row, source, size_t(dim) * 2);
  } else {
    alignas(64) uint16_t staged[16] = {};
    alignas(64) float wide[16];
    for (int64_t c = 0; c < dim; c += 16) {
      const int64_t count = dim - c < 16 ? dim - c : 16;
      std::memcpy(staged, source + c, size_t(count) * 2);
      V::load_f16(staged).store(wide);
      for (int64_t i = 0; i < count; ++i) {
        const uint16_t high = bf16_from_float(wide[i]);
        const float rest = wide[i] - float_from_bf16(high);
        row[c + i] = high;
        row[padded + c + i] = rest == rest ? bf16_from_float(rest) : uint16_t(0);  // infinities have no low part
      }
    }
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
inline void pack_queries(const uint16_t* const (&rows)[16], int64_t dim, int64_t padded, int half, uint16_t* scratch,
                         uint16_t* tiles) {
  const int64_t row_elements = kParts * padded;
  for (int r = 0; r < 16; ++r) {
    if (rows[r] != nullptr)
      load_row<kParts, V>(rows[r], dim, padded, scratch + r * row_elements);
    else
      std::memset(scratch + r * row_elements, 0, size_t(row_elements) * 2);
  }
  const int64_t blocks = padded / 32;
  for (int part = 0; part < kParts; ++part)
    for (int64_t block = 0; block < blocks; ++block)
      transpose_tile<V>(reinterpret_cast<const uint32_t*>(scratch + part * padded + block * 32), row_elements / 2,
                        reinterpret_cast<uint32_t*>(tiles + ((part * blocks + block) * 2 + half) * kTileElements));
}

// Packs one key row into row `key` of the chunk's K tiles [part][key block][dim block].
template <int kParts, class V>
inline void pack_key(const uint16_t* source, int64_t dim, int64_t padded, int64_t key, int64_t chunk_keys,
                     uint16_t* scratch, uint16_t* tiles) {
  const int64_t blocks = padded / 32, key_blocks = chunk_keys / 16;
  uint16_t* to = tiles + (key / 16 * blocks) * kTileElements + (key % 16) * 32;
  if (kParts == 1 && dim == padded) {  // as stored
    for (int64_t block = 0; block < blocks; ++block) std::memcpy(to + block * kTileElements, source + block * 32, 64);
    return;
  }
  load_row<kParts, V>(source, dim, padded, scratch);
  for (int part = 0; part < kParts; ++part)
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t tile = (part * key_blocks + key / 16) * blocks + block;
      std::memcpy(tiles + tile * kTileElements + (key % 16) * 32, scratch + part * padded + block * 32, 64);
    }
}

// Packs 32 value rows, `scratch` [32][part][padded] as load_row left them, into the chunk's V^T tiles
// [part][dim block][key block].
template <int kParts, class V>
inline void pack_values(const uint16_t* scratch, int64_t padded, int64_t key_block, int64_t chunk_keys,
                        uint16_t* tiles) {
  const int64_t blocks = padded / 16, key_blocks = chunk_keys / 32, row_elements = kParts * padded;
  alignas(64) uint32_t pairs[16][16];
  for (int part = 0; part < kParts; ++part)
    for (int64_t block = 0; block < blocks; ++block) {
      for (int r = 0; r < 16; ++r) {
        const uint16_t* even = scratch + (2 * r) * row_elements + part * padded + block * 16;
        const uint16_t* odd = even + row_elements;
        for (int c = 0; c < 16; ++c) pairs[r][c] = uint32_t(even[c]) | uint32_t(odd[c]) << 16;
      }
      const int64_t tile = (part * blocks + block) * key_blocks + key_block;
      transpose_tile<V>(&pairs[0][0], 16, reinterpret_cast<uint32_t*>(tiles + tile * kTileElements));
    }
}

}  // namespace tessera::cpu::TESSERA_CPU_ISA
