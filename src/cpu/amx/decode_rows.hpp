// What both tile products of decode share: the keys' rows as tiles, where they lie or gathered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cpu/amx/arrange.hpp"
#include "cpu/amx/tiles.hpp"
#include "cpu/decode_products.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

inline constexpr int64_t kRowBytes = 64;  // of a tile
inline constexpr int64_t kKeyGroups = kDecodeBlock / amx::kTileRows;
alignas(64) inline constexpr std::byte kZeroRow[kRowBytes] = {};

constexpr int64_t pieces(int64_t bytes) { return (bytes + kRowBytes - 1) / kRowBytes; }

// 64 bytes of a row from piece `piece` on, of which the row has `bytes` in all; where it ends earlier, a copy in `copy`
// with zeros behind. Null stands for a row of zeros.
inline const std::byte* row_piece(const std::byte* row, int64_t piece, int64_t bytes, std::byte* copy) {
  if (row == nullptr) return kZeroRow;
  const int64_t at = piece * kRowBytes, left = bytes - at;
  if (left >= kRowBytes) return row + at;
  std::memset(copy, 0, kRowBytes);
  std::memcpy(copy, row + at, static_cast<size_t>(left));
  return copy;
}

// The keys of a head's block as tiles of 16 keys x 64 bytes.
template <class Tiles>
class KeyTiles {
 public:
  // `gathered`: memory for a block's keys, 64 bytes each.
  KeyTiles(const BlockRows& keys, int64_t element_bytes, std::byte* gathered)
      : keys_(keys), bytes_(keys.dim * element_bytes), gathered_(gathered) {
    groups_ = (keys.count + amx::kTileRows - 1) / amx::kTileRows;
    for (int64_t group = 0; group < groups_; ++group) {
      const std::byte* const* rows = keys.rows + group * amx::kTileRows;
      stride_[group] = rows[1] - rows[0];
      even_[group] = true;
      for (int i = 2; i < amx::kTileRows; ++i) even_[group] &= rows[i] - rows[i - 1] == stride_[group];
    }
  }
  int64_t groups() const { return groups_; }
  int64_t depth() const { return pieces(bytes_); }

  // Loads piece `piece` of group `group` into register T.
  template <int T>
  [[gnu::always_inline]] void load(Tiles& tiles, int64_t group, int64_t piece) const {
    const std::byte* const* rows = keys_.rows + group * amx::kTileRows;
    const int64_t at = piece * kRowBytes;
    if (even_[group] && at + kRowBytes <= bytes_) {
      tiles.template load<T>(rows[0] + keys_.head + at, stride_[group]);
      return;
    }
    std::byte* to = gathered_ + group * amx::kTileBytes;
    for (int i = 0; i < amx::kTileRows; ++i) {
      alignas(64) std::byte copy[kRowBytes];
      std::memcpy(to + i * kRowBytes, row_piece(rows[i] + keys_.head, piece, bytes_, copy), kRowBytes);
    }
    tiles.template load<T>(to, kRowBytes);
  }

 private:
  const BlockRows keys_;
  const int64_t bytes_;
  std::byte* gathered_;
  int64_t groups_, stride_[kKeyGroups];
  bool even_[kKeyGroups];
};

// What the registers of decode hold. Rows of q and P leave most of a tile empty: loading and storing only what they
// fill keeps the rest of L1.
//   0, 1  scores of 16 keys   `columns` dwords a row
//   2     q                   `columns` dwords a row
//   3, 4  keys or values      16 x 64 bytes
//   5     P                   `weights` rows
//   6, 7  sums of values      `weights` rows
inline amx::TileShapes decode_shapes(int64_t columns, int64_t weights) {
  amx::TileShapes shapes;
  for (int t = 0; t < 3; ++t) shapes.row_bytes[t] = static_cast<uint16_t>(4 * columns);
  for (int t = 5; t < 8; ++t) shapes.rows[t] = static_cast<uint8_t>(weights);
  return shapes;
}

// products[group] = keys of the group * columns, each 16 rows of `row_bytes`; `columns` are the depth's tiles, one
// behind the other. Product is the tile type's function.
template <class Tiles, class Product>
inline void multiply_key_tiles(Tiles& tiles, const KeyTiles<Tiles>& keys, const std::byte* columns, int64_t row_bytes,
                               std::byte* products, Product product, RowsAhead ahead) {
  const int64_t depth = keys.depth();
  const auto step = [&]<int T, int K>(std::integral_constant<int, T> sums, std::integral_constant<int, K> rows,
                                      int64_t group, int64_t piece) {
    keys.template load<K>(tiles, group, piece);
    product(tiles, sums, rows);
    for (int64_t i = 0; i < amx::kTileRows; ++i) ahead.ask(group * amx::kTileRows + i, piece * kRowBytes);
  };
  const int64_t tile_bytes = amx::kTileRows * row_bytes;
  for (int64_t group = 0; group < keys.groups(); group += 2, products += 2 * tile_bytes) {
    const bool both = group + 1 < keys.groups();
    tiles.template zero<0>();
    tiles.template zero<1>();
    for (int64_t piece = 0; piece < depth; ++piece) {
      tiles.template load<2>(columns + piece * tile_bytes, row_bytes);
      step(std::integral_constant<int, 0>{}, std::integral_constant<int, 3>{}, group, piece);
      if (both) step(std::integral_constant<int, 1>{}, std::integral_constant<int, 4>{}, group + 1, piece);
    }
    tiles.template store<0>(products, row_bytes);
    if (both) tiles.template store<1>(products + tile_bytes, row_bytes);
  }
}

}  // namespace tessera::cpu::TESSERA_CPU_ISA
