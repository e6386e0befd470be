// Rows of any type packed in bf16 parts (rounds_part) for the backward products on tiles, which take each row twice:
// along its head dim and across it.
//
// Tile products take elements of depth in pairs, a dword each. Depth is paired i with i + 16 within 32 everywhere, so
// that a pair of vectors becomes a row of dwords by one shift and one blend, without a shuffle.
//
//   rows     16 rows, depth along the row: A operand of a product over a head dim
//   columns  the same turned, B operand of it: row i holds the i-th pair of 16 rows
//   pairs    rows i and i + 16 of 32 paired: B operand of a product over the rows
//   dims     the same turned, A operand of it
//
// Invariants: a tile is 1 KiB contiguous; what lies behind a head dim or where a row is null is zero. Parts below
// 2^-126 count as zero in the products.
#pragma once

#include <cstdint>

#include "cpu/amx/arrange.hpp"
#include "cpu/amx/tiles.hpp"
#include "cpu/load.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

inline constexpr int64_t kPaired = 32;  // depth of a tile

// The parts of `x` in the upper halves of dwords, whose lower halves are arbitrary.
template <int kParts, class V>
struct Parts {
  V part[kParts];
};
template <int kParts, bool kOperand, class V>
[[gnu::always_inline]] inline Parts<kParts, V> split(V x) {
  Parts<kParts, V> parts;
#pragma GCC unroll 3
  for (int i = 0; i < kParts; ++i) parts.part[i] = take_part<kParts, kOperand>(x, i);
  return parts;
}
// The parts of two vectors in pairs: dwords (low, high).
template <int kParts, class V>
[[gnu::always_inline]] inline Parts<kParts, V> merge_parts(const Parts<kParts, V>& low, const Parts<kParts, V>& high) {
  Parts<kParts, V> merged;
#pragma GCC unroll 3
  for (int i = 0; i < kParts; ++i) merged.part[i] = pair_halves(low.part[i], high.part[i]);
  return merged;
}
// ... stored `part_stride` elements apart.
template <int kParts, class V>
[[gnu::always_inline]] inline void store_parts(const Parts<kParts, V>& parts, uint16_t* to, int64_t part_stride) {
#pragma GCC unroll 3
  for (int i = 0; i < kParts; ++i) parts.part[i].store(to + i * part_stride);
}

// 16 elements of a row of `dim` from element c on, in parts.
template <int kParts, class V, class Element>
[[gnu::always_inline]] inline Parts<kParts, V> load_parts(const std::byte* row, int64_t c, int64_t dim) {
  const V x = row != nullptr && c < dim ? load_partial<V, Element>(row + c * Element::kBytes, dim - c) : V::zero();
  return split<kParts, true>(x);
}

// Tiles in the order in which the packing below visits them: of 16 or 32 elements of the head dim `block` elements on,
// each part `part` on.
struct PackedTiles {
  uint16_t* tiles;
  int64_t block, part;
};

// to[c][r] = from[r][c] for 16 x 16 dwords.
template <class V>
inline void turn_tile(const float* from, uint16_t* to) {
  for (int c = 0; c < 16; c += 4) {
    V columns[4];
    take_columns<V>(from + c, 16, columns);
    for (int i = 0; i < 4; ++i) columns[i].store(to + (c + i) * kPaired);
  }
}

// 32 rows to tiles `along` (kTurned: columns, else rows), of rows 0 to 15 and, `half` elements on, 16 to 31; and, where
// there are any, to tiles `across` (kTurned: pairs, else dims).
template <int kParts, bool kTurned, class V, class Element>
void pack_rows(const std::byte* const* rows, int64_t dim, int64_t padded, PackedTiles along, int64_t half,
               PackedTiles across) {
  alignas(64) float turned[2][kParts][16 * 16];
  for (int64_t c = 0; c < padded; c += kPaired) {
    for (int r = 0; r < 16; ++r) {
      Parts<kParts, V> parts[2][2];
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        parts[h][0] = load_parts<kParts, V, Element>(rows[r + 16 * h], c, dim);
        parts[h][1] = load_parts<kParts, V, Element>(rows[r + 16 * h], c + 16, dim);
        const Parts<kParts, V> merged = merge_parts(parts[h][0], parts[h][1]);
#pragma GCC unroll 3
        for (int i = 0; i < kParts; ++i) {
          if constexpr (kTurned) {
            merged.part[i].store(turned[h][i] + 16 * r);
          } else {
            merged.part[i].store(along.tiles + h * half + i * along.part + r * kPaired);
          }
        }
      }
      if (across.tiles == nullptr) continue;
#pragma GCC unroll 2
      for (int b = 0; b < 2; ++b) {
        const Parts<kParts, V> merged = merge_parts(parts[0][b], parts[1][b]);
#pragma GCC unroll 3
        for (int i = 0; i < kParts; ++i) {
          if constexpr (kTurned) {
            merged.part[i].store(across.tiles + b * across.block + i * across.part + r * kPaired);
          } else {
            merged.part[i].store(turned[b][i] + 16 * r);
          }
        }
      }
    }
    for (int i = 0; i < kParts; ++i) {
      for (int j = 0; j < 2; ++j) {
        if constexpr (kTurned) {
          turn_tile<V>(turned[j][i], along.tiles + j * half + i * along.part);
        } else if (across.tiles != nullptr) {
          turn_tile<V>(turned[j][i], across.tiles + j * across.block + i * across.part);
        }
      }
    }
    along.tiles += along.block;
    if (across.tiles != nullptr) across.tiles += 2 * across.block;
  }
}

}  // namespace tessera::cpu::TESSERA_CPU_ISA
