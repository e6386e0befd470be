// The products of decode with a bf16 cache on matrix tiles. Scores are S^T = K Q^T with keys as they lie, 16 at a time:
// bf16 products are exact and summed in float32. Values are O = P V, with P as two bf16 one above the other in a tile,
// which keep 16 bits of it, and with V's rows interleaved in pairs (j, j + 16).
// A block of 64 keys at d = 64 takes 8 tile products of 16 cycles for the scores, and 8 and 256 instructions of
// interleaving for the values (docs/notes/cpu.md).
#pragma once

#include "cpu/amx/decode_rows.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

template <class Tiles, class V>
class Bf16Products {
  static constexpr int64_t kRows = 16;                // of q that a tile takes
  static constexpr int64_t kHalf = kDecodeBlock / 2;  // keys of a tile of P

 public:
  Bf16Products(const DecodeCall& call, std::byte* task)
      : q_(task + call.tiles.tile_q_at),
        q_bytes_(call.tiles.tile_q_bytes),
        keys_(task + call.tiles.tile_k_at),
        p_(task + call.tiles.tile_p_at),
        values_(task + call.tiles.tile_v_at),
        products_(reinterpret_cast<float*>(task + call.tiles.tile_product_at)),
        dim_(call.problem->head_dim_qk),
        stride_(call.tiles.head_dim_qk_padded),
        columns_(call.tiles.rows < kRows ? (call.tiles.rows + 3) / 4 * 4 : kRows),
        weights_(columns_ < 8 ? columns_ : 8) {
    std::memset(p_, 0, 2 * amx::kTileBytes);
    tiles_.begin(decode_shapes(columns_, 2 * weights_));
  }
  ~Bf16Products() { Tiles::end(); }
  Bf16Products(const Bf16Products&) = delete;
  Bf16Products& operator=(const Bf16Products&) = delete;

  // Tiles [columns_ rows of q][depth]: row k, column n the elements 2 k and 2 k + 1 of the piece of row n.
  void begin_head(int64_t head, const float* q, int64_t rows) {
    const int64_t depth = pieces(dim_ * 2), whole = dim_ / kPair * kPair;
    std::memset(q_ + head * q_bytes_, 0, static_cast<size_t>(q_bytes_));
    for (int64_t r = 0; r < rows; ++r) {
      auto* to = reinterpret_cast<uint32_t*>(q_ + head * q_bytes_) + r / kRows * depth * 16 * columns_ + r % kRows;
      for (int64_t d = 0; d < stride_; d += 2) {
        const auto at = [&](int64_t c) { return query_place(r, paired_place<Bf16Element>(c, whole), stride_); };
        const uint32_t even = bits_from_float(q[at(d)]), odd = bits_from_float(q[at(d + 1)]);
        to[d / 2 * columns_] = even >> 16 | (odd & 0xFFFF0000u);
      }
    }
  }

  void scores(const ScoreBlock& block, RowsAhead ahead) {
    const KeyTiles<Tiles> keys(block.keys, 2, keys_);
    const V factor = V::broadcast(block.factor);
    for (int64_t r = 0; r < block.rows; r += kRows) {
      const std::byte* q = q_ + block.head * q_bytes_ + r / kRows * keys.depth() * 64 * columns_;
      multiply_key_tiles(
          tiles_, keys, q, 4 * columns_, reinterpret_cast<std::byte*>(products_),
          []<int C, int A>(Tiles& tiles, std::integral_constant<int, C>, std::integral_constant<int, A>) {
            tiles.template dp_bf16<C, A, 2>();
          },
          ahead);
      const int64_t end = block.rows - r < kRows ? block.rows - r : kRows;
      for (int64_t group = 0; group < keys.groups(); ++group)
        for (int64_t at = 0; at < end; at += 4) {
          V columns[4];
          take_columns<V>(products_ + group * 16 * columns_ + at, columns_, columns);
          for (int64_t i = 0; i < 4; ++i)
            (columns[i] * factor).store(block.scores + (r + at + i) * kDecodeStride + group * 16);
        }
    }
  }

  void values(const ValueBlock& block, RowsAhead ahead) {
    const int64_t halves = (block.values.count + kHalf - 1) / kHalf, columns = pieces(block.values.dim * 2);
    for (int64_t c = 0; c < columns; ++c)
      for (int64_t half = 0; half < halves; ++half) interleave(block.values, half, c, ahead);
    for (int64_t r = 0; r < block.rows; r += weights_) {
      const int64_t rows = block.rows - r < weights_ ? block.rows - r : weights_;
      split_probabilities(block, r, rows, halves);
      for (int64_t c = 0; c < columns; ++c) {
        multiply(c, halves);
        for (int64_t i = 0; i < rows; ++i) add_row(block, r + i, i, c);
      }
    }
  }

 private:
  // Piece c of the values of 32 keys as tiles [c][half][low, high]: row k holds the pairs of keys k and k + 16.
  void interleave(const BlockRows& values, int64_t half, int64_t c, RowsAhead ahead) {
    std::byte* low = values_ + (c * 2 + half) * 2 * amx::kTileBytes;
    for (int64_t k = 0; k < 16; ++k, low += kRowBytes) {
      for (int64_t key = half * kHalf + k; key < values.count && key < (half + 1) * kHalf; key += 16)
        ahead.ask(key, c * kRowBytes);
      alignas(64) std::byte copy[2][kRowBytes];
      const std::byte* even = row_piece(row(values, half * kHalf + k), c, values.dim * 2, copy[0]);
      const std::byte* odd = row_piece(row(values, half * kHalf + 16 + k), c, values.dim * 2, copy[1]);
      interleave_pairs(even, odd, low, low + amx::kTileBytes);
    }
  }
  static const std::byte* row(const BlockRows& values, int64_t key) {
    return key < values.count ? values.rows[key] + values.head : nullptr;
  }

  // P of some rows as tiles [half]: what the first bf16 keeps in rows 0 to weights_ - 1, the rest in those behind. Keys
  // past the columns of scores weigh nothing.
  void split_probabilities(const ValueBlock& block, int64_t r, int64_t rows, int64_t halves) {
    const int64_t columns = (block.values.count + 15) / 16 * 16;
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t half = 0; half < halves; ++half) {
        const float* p = block.p + (r + i) * kDecodeStride + half * kHalf;
        const V even = V::load(p), odd = half * kHalf + 16 < columns ? V::load(p + 16) : V::zero();
        std::byte* to = p_ + half * amx::kTileBytes + i * kRowBytes;
        split_pairs<2, false>(even, odd, reinterpret_cast<uint16_t*>(to), weights_ * kRowBytes / 2);
      }
  }

  // The products of piece c, two tiles, to products_.
  void multiply(int64_t c, int64_t halves) {
    tiles_.template zero<6>();
    tiles_.template zero<7>();
    for (int64_t half = 0; half < halves; ++half) {
      const std::byte* v = values_ + (c * 2 + half) * 2 * amx::kTileBytes;
      tiles_.template load<5>(p_ + half * amx::kTileBytes, kRowBytes);
      tiles_.template load<3>(v, kRowBytes);
      tiles_.template dp_bf16<6, 5, 3>();
      tiles_.template load<4>(v + amx::kTileBytes, kRowBytes);
      tiles_.template dp_bf16<7, 5, 4>();
    }
    tiles_.template store<6>(products_, kRowBytes);
    tiles_.template store<7>(products_ + 32 * weights_, kRowBytes);
  }

  // o of one row and piece = o * alpha + both parts' product.
  void add_row(const ValueBlock& block, int64_t row, int64_t in_tile, int64_t c) {
    const float* low = products_ + in_tile * 16;
    const float* high = low + 32 * weights_;
    const int64_t rest = 16 * weights_;
    V first, second;
    order_pairs<V>(V::load(low) + V::load(low + rest), V::load(high) + V::load(high + rest),
                   Bf16Element::kInterleaved && (c + 1) * kPair <= block.values.dim, first, second);
    const V alpha = V::broadcast(block.alpha[row]);
    float* o = block.o + row * block.stride + c * kPair;
    V::fma(V::load(o), alpha, first).store(o);
    if (c * kPair + 16 < block.stride) V::fma(V::load(o + 16), alpha, second).store(o + 16);
  }

  std::byte* q_;
  const int64_t q_bytes_;
  std::byte *keys_, *p_, *values_;
  float* products_;
  const int64_t dim_, stride_, columns_, weights_;
  Tiles tiles_;
};

}  // namespace tessera::cpu::TESSERA_CPU_ISA
