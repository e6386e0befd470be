// The products of decode with an int8 cache on matrix tiles, in whole numbers. q and, block by block, the probabilities
// with the scales of their keys become whole numbers of 22 bits and a sign, a unit for each row, in three signed digits
// of 8 bits. So a score is exact but for the last digit of q's largest element, and a value's sum for that of the
// block's largest probability. Keys are read as they lie, 16 at a time; V's rows are interleaved in fours (j, j + 16,
// j + 32, j + 48). Rows that are not finite go to the vectors, and so do the values of few rows.
// A block of 64 keys at d = 64: 4 tile products for the scores, 4 for the values (docs/notes/cpu.md).
#pragma once

#include "cpu/amx/decode_rows.hpp"
#include "cpu/softmax.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

// What a row's whole numbers count: 2^22 for the largest magnitude. Rows below 2^-100 keep fewer digits.
struct DigitUnit {
  float factor;  // from the row to whole numbers
  float step;    // back
  explicit DigitUnit(float largest) {
    const float bound = largest < 0x1p-100f ? 0x1p-100f : largest;
    factor = 0x1p22f / bound;
    step = bound * 0x1p-22f;
  }
};

template <class Tiles, class V>
class Int8Products {
  static constexpr int64_t kRows = 4;  // of q, and of P, that a tile takes: three digits each
  static constexpr int64_t kColumns = 3 * kRows;
  // Fewer rows multiply values on vectors: interleaving V for the tiles costs more than their multiply-adds.
  static constexpr int64_t kLeastValueRows = 8;
  static constexpr int64_t kSums = kColumns * 16;                       // floats of a tile of values' sums
  static constexpr int64_t kQueryTile = amx::kTileRows * 4 * kColumns;  // bytes

 public:
  Int8Products(const DecodeCall& call, std::byte* task)
      : vectors_(call, task),
        q_(task + call.tiles.tile_q_at),
        q_bytes_(call.tiles.tile_q_bytes),
        steps_(reinterpret_cast<float*>(task + call.tiles.tile_steps_at)),
        keys_(task + call.tiles.tile_k_at),
        p_(task + call.tiles.tile_p_at),
        values_(task + call.tiles.tile_v_at),
        products_(reinterpret_cast<float*>(task + call.tiles.tile_product_at)),
        dim_(call.problem->head_dim_qk),
        stride_(call.tiles.head_dim_qk_padded) {
    std::memset(p_, 0, amx::kTileBytes);
    tiles_.begin(decode_shapes(kColumns, kColumns));
  }
  ~Int8Products() { Tiles::end(); }
  Int8Products(const Int8Products&) = delete;
  Int8Products& operator=(const Int8Products&) = delete;

  // Tiles [4 rows of q][depth]: row k, column 4 digit + n the elements 4 k to 4 k + 3 of the piece of row n. A row that
  // is not finite leaves infinity for its unit.
  void begin_head(int64_t head, const float* q, int64_t rows) {
    const int64_t depth = pieces(dim_);
    std::memset(q_ + head * q_bytes_, 0, static_cast<size_t>(q_bytes_));
    for (int64_t r = 0; r < rows; ++r) {
      alignas(64) float row[576];
      for (int64_t d = 0; d < stride_; d += 16) V::load(q + query_place(r, d, stride_)).store(row + d);
      V largest = V::zero(), bad = V::zero();
      for (int64_t d = 0; d < stride_; d += 16) {
        const V magnitude = V::abs(V::load(row + d));
        largest = V::max(largest, magnitude);
        bad = V::fma(magnitude, V::zero(), bad);  // NaN where the row is not finite
      }
      const float marked = V::reduce_sum(bad);
      const DigitUnit unit(V::reduce_max(largest));
      steps_[head * kDecodeStrip + r] = marked == 0 ? unit.step : kInfinity<float>;
      if (marked == 0) pack_query(row, unit.factor, q_ + head * q_bytes_ + r / kRows * depth * kQueryTile, r % kRows);
    }
  }

  void scores(const ScoreBlock& block, RowsAhead ahead) {
    const float* steps = steps_ + block.head * kDecodeStrip;
    for (int64_t r = 0; r < block.rows; ++r)
      if (steps[r] == kInfinity<float>) return vectors_.scores(block, ahead);
    const KeyTiles<Tiles> keys(block.keys, 1, keys_);
    for (int64_t r = 0; r < block.rows; r += kRows) {
      const std::byte* q = q_ + block.head * q_bytes_ + r / kRows * keys.depth() * kQueryTile;
      multiply_key_tiles(
          tiles_, keys, q, 4 * kColumns, reinterpret_cast<std::byte*>(products_),
          []<int C, int A>(Tiles& tiles, std::integral_constant<int, C>, std::integral_constant<int, A>) {
            tiles.template dp_int8<C, A, 2>();
          },
          ahead);
      for (int64_t group = 0; group < keys.groups(); ++group) {
        V columns[4];
        take_digit_columns<V>(products_ + group * 16 * kColumns, kColumns, columns);
        for (int64_t i = 0; i < 4 && r + i < block.rows; ++i)
          (columns[i] * V::broadcast(block.factor * steps[r + i]))
              .store(block.scores + (r + i) * kDecodeStride + group * 16);
      }
    }
  }

  void values(const ValueBlock& block, RowsAhead ahead) {
    if (block.rows < kLeastValueRows) return vectors_.values(block, ahead);
    float largest[kDecodeStrip];
    for (int64_t r = 0; r < block.rows; ++r) {
      largest[r] = largest_weight(block, r);
      if (!(largest[r] < kInfinity<float>)) return vectors_.values(block, ahead);
    }
    const int64_t columns = pieces(block.values.dim);
    for (int64_t c = 0; c < columns; ++c) interleave(block.values, c, ahead);
    for (int64_t r = 0; r < block.rows; r += kRows) {
      float steps[kRows];
      const int64_t rows = block.rows - r < kRows ? block.rows - r : kRows;
      for (int64_t i = 0; i < rows; ++i) steps[i] = split_row(block, r + i, i, largest[r + i]);
      for (int64_t c = 0; c < columns; ++c) {
        multiply(c);
        for (int64_t i = 0; i < rows; ++i) add_row(block, r + i, i, c, steps[i]);
      }
    }
  }

 private:
  void pack_query(const float* row, float factor, std::byte* tiles, int64_t column) const {
    for (int64_t d = 0; d < stride_; d += 16) {
      alignas(64) uint32_t digits[16];
      V::fma(V::load(row + d), V::broadcast(factor), V::broadcast(kWhole)).store(digits);
      std::byte* to = tiles + d / 64 * kQueryTile + d % 64 / 4 * 4 * kColumns + column * 4;
      for (int64_t digit = 0; digit < 3; ++digit) {
        alignas(16) uint8_t bytes[16];
        for (int64_t i = 0; i < 16; ++i)
          bytes[i] = static_cast<uint8_t>(((digits[i] + kDigitsOffset) ^ kDigitsSigns) >> (16 - 8 * digit));
        for (int64_t quad = 0; quad < 4; ++quad)
          std::memcpy(to + quad * 4 * kColumns + digit * 4 * kRows, bytes + 4 * quad, 4);
      }
    }
  }

  // The largest magnitude of a row's probabilities; infinite or NaN where one is infinite.
  static float largest_weight(const ValueBlock& block, int64_t r) {
    const float* p = block.p + r * kDecodeStride;
    V largest = V::zero();
    for (int64_t j = 0; j < block.values.count; j += 16) largest = V::max(V::abs(V::load(p + j)), largest);
    return V::reduce_max(largest);
  }

  // Piece c of the values of the block as tiles [c][four of each quarter]: row k holds the fours of keys k, k + 16,
  // k + 32 and k + 48.
  void interleave(const BlockRows& values, int64_t c, RowsAhead ahead) {
    std::byte* quad = values_ + c * 4 * amx::kTileBytes;
    for (int64_t k = 0; k < 16; ++k, quad += kRowBytes) {
      alignas(64) std::byte copy[4][kRowBytes];
      const std::byte* rows[4];
      for (int64_t i = 0; i < 4; ++i) {
        const int64_t key = k + 16 * i;
        if (key < values.count) ahead.ask(key, c * kRowBytes);
        rows[i] = row_piece(key < values.count ? values.rows[key] + values.head : nullptr, c, values.dim, copy[i]);
      }
      std::byte* const quads[4] = {quad, quad + amx::kTileBytes, quad + 2 * amx::kTileBytes,
                                   quad + 3 * amx::kTileBytes};
      interleave_quads(rows, quads);
    }
  }

  // A row's probabilities as digits in rows i, 4 + i and 8 + i of the tile; returns what the last digit counts.
  float split_row(const ValueBlock& block, int64_t r, int64_t i, float largest) {
    const DigitUnit unit(largest);
    const float* p = block.p + r * kDecodeStride;
    V x[4];
    for (int64_t group = 0; group < 4; ++group)
      x[group] = group * 16 < block.values.count ? V::load(p + group * 16) : V::zero();
    split_quads<V>(x, V::broadcast(unit.factor), p_ + i * kRowBytes, kRows * kRowBytes);
    return unit.step;
  }

  // The products of piece c, four tiles, to products_.
  void multiply(int64_t c) {
    const std::byte* v = values_ + c * 4 * amx::kTileBytes;
    tiles_.template load<5>(p_, kRowBytes);
    for (int64_t pair = 0; pair < 2; ++pair, v += 2 * amx::kTileBytes) {
      float* to = products_ + 2 * pair * kSums;
      tiles_.template zero<6>();
      tiles_.template load<3>(v, kRowBytes);
      tiles_.template dp_int8<6, 5, 3>();
      tiles_.template zero<7>();
      tiles_.template load<4>(v + amx::kTileBytes, kRowBytes);
      tiles_.template dp_int8<7, 5, 4>();
      tiles_.template store<6>(to, kRowBytes);
      tiles_.template store<7>(to + kSums, kRowBytes);
    }
  }

  // o of one row and 64 columns = o * alpha + the digits' product.
  void add_row(const ValueBlock& block, int64_t row, int64_t in_tile, int64_t c, float step) {
    V sums[4];
    for (int64_t t = 0; t < 4; ++t) {
      const float* at = products_ + t * kSums + in_tile * 16;
      const V lower = V::fma(load_whole<V>(at + kRows * 16), V::broadcast(0x1p8f), load_whole<V>(at + 2 * kRows * 16));
      sums[t] = V::fma(load_whole<V>(at), V::broadcast(0x1p16f), lower) * V::broadcast(step);
    }
    order_quads<V>(sums);
    const V alpha = V::broadcast(block.alpha[row]);
    float* o = block.o + row * block.stride + c * 64;
    for (int64_t t = 0; t < 4 && c * 64 + 16 * t < block.stride; ++t)
      V::fma(V::load(o + 16 * t), alpha, sums[t]).store(o + 16 * t);
  }

  VectorProducts<V, Int8Element> vectors_;
  std::byte* q_;
  const int64_t q_bytes_;
  float* steps_;
  std::byte *keys_, *p_, *values_;
  float* products_;
  const int64_t dim_, stride_;
  Tiles tiles_;
};

}  // namespace tessera::cpu::TESSERA_CPU_ISA
