// Rearrangements between rows as they lie and what the tile products take and give, most of them decode's, each with
// its AVX-512 instructions and, for the emulation, as plain loops of the same result. Interleaving keeps to quarters of
// 16 bytes, which costs one instruction for 64 bytes; the products' columns come back in that order and are put right
// here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "cpu/amx/tiles.hpp"
#include "cpu/convert.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

inline constexpr int64_t kTileElements = amx::kTileBytes / 2;  // bf16 elements

// 1.5 * 2^23: a float of magnitude up to 2^22 added to it is rounded to a whole number in the low bits.
inline constexpr float kWhole = 0x1.8p23f;
// From the bits of such a sum to three bytes d2, d1, d0 with d2 2^16 + d1 2^8 + d0 the whole number and each of them
// signed: half a digit is added to the two lower ones and taken off again, so that they carry.
inline constexpr uint32_t kDigitsOffset = 0x8080u - 0x4B400000u, kDigitsSigns = 0x8080u;

// A float as a sum of kParts bf16, taken one after the other by take_part: each is cut off, but for those that are
// rounded. Of operands one part is the bf16 that they are, two keep the 11 bits of an f16 and three all 24 of a float;
// what rounding would make infinite is cut off. Of values computed here one part is rounded, two keep 16 bits and three
// all 24.
// Operands may hold infinities: these go into the last part alone, which of three meets but the first of the other
// operand, so that infinity times a number is infinite, not NaN from the number's other parts. NaN stays NaN.
template <int kParts, bool kOperand>
constexpr bool rounds_part(int part) {
  return kOperand ? part + 1 < kParts : part == (kParts == 1 ? 0 : 1) && kParts < 3;
}

#if defined(__AVX512BW__)

// Two rows of 32 elements of 16 bits as pairs (even, odd): low takes the first, high the last four of each quarter.
inline void interleave_pairs(const std::byte* even, const std::byte* odd, std::byte* low, std::byte* high) {
  const __m512i a = _mm512_loadu_si512(even), b = _mm512_loadu_si512(odd);
  _mm512_storeu_si512(low, _mm512_unpacklo_epi16(a, b));
  _mm512_storeu_si512(high, _mm512_unpackhi_epi16(a, b));
}
// Columns 0-15 and 16-31 or, where `paired`, the even and the odd ones from the sums of low's and high's columns.
template <class V>
inline void order_pairs(V low, V high, bool paired, V& first, V& second) {
  const __m512i whole = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i even = _mm512_setr_epi32(0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30);
  const __m512i from = paired ? even : whole;
  const __m512i rest = _mm512_add_epi32(from, _mm512_set1_epi32(paired ? 1 : 8));
  first.all = _mm512_permutex2var_ps(low.all, from, high.all);
  second.all = _mm512_permutex2var_ps(low.all, rest, high.all);
}

// Four rows of 64 bytes as quads: quad[t] takes the t-th four of each quarter.
inline void interleave_quads(const std::byte* const (&rows)[4], std::byte* const (&quad)[4]) {
  const __m512i a = _mm512_loadu_si512(rows[0]), b = _mm512_loadu_si512(rows[1]);
  const __m512i c = _mm512_loadu_si512(rows[2]), d = _mm512_loadu_si512(rows[3]);
  const __m512i ab_low = _mm512_unpacklo_epi8(a, b), ab_high = _mm512_unpackhi_epi8(a, b);
  const __m512i cd_low = _mm512_unpacklo_epi8(c, d), cd_high = _mm512_unpackhi_epi8(c, d);
  _mm512_storeu_si512(quad[0], _mm512_unpacklo_epi16(ab_low, cd_low));
  _mm512_storeu_si512(quad[1], _mm512_unpackhi_epi16(ab_low, cd_low));
  _mm512_storeu_si512(quad[2], _mm512_unpacklo_epi16(ab_high, cd_high));
  _mm512_storeu_si512(quad[3], _mm512_unpackhi_epi16(ab_high, cd_high));
}
// Columns 16 c to 16 c + 15 in sums[c] from the sums of quad[t]'s columns in sums[t].
template <class V>
inline void order_quads(V (&sums)[4]) {
  const __m512 low = _mm512_shuffle_f32x4(sums[0].all, sums[1].all, 0x44);
  const __m512 high = _mm512_shuffle_f32x4(sums[0].all, sums[1].all, 0xEE);
  const __m512 other_low = _mm512_shuffle_f32x4(sums[2].all, sums[3].all, 0x44);
  const __m512 other_high = _mm512_shuffle_f32x4(sums[2].all, sums[3].all, 0xEE);
  sums[0].all = _mm512_shuffle_f32x4(low, other_low, 0x88);
  sums[1].all = _mm512_shuffle_f32x4(low, other_low, 0xDD);
  sums[2].all = _mm512_shuffle_f32x4(high, other_high, 0x88);
  sums[3].all = _mm512_shuffle_f32x4(high, other_high, 0xDD);
}

// Quarter l of the result: the four dwords at row 4 l + key of a stored tile.
inline __m512 quarter_rows(const float* tile, int64_t stride, int key) {
  __m512 all = _mm512_castps128_ps512(_mm_loadu_ps(tile + key * stride));
  all = _mm512_insertf32x4(all, _mm_loadu_ps(tile + (4 + key) * stride), 1);
  all = _mm512_insertf32x4(all, _mm_loadu_ps(tile + (8 + key) * stride), 2);
  return _mm512_insertf32x4(all, _mm_loadu_ps(tile + (12 + key) * stride), 3);
}
template <class V>
inline void transpose_quarters(const __m512 (&keys)[4], V (&columns)[4]) {
  const __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(keys[0], keys[1]));
  const __m512d b = _mm512_castps_pd(_mm512_unpacklo_ps(keys[2], keys[3]));
  const __m512d c = _mm512_castps_pd(_mm512_unpackhi_ps(keys[0], keys[1]));
  const __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(keys[2], keys[3]));
  columns[0].all = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
  columns[1].all = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
  columns[2].all = _mm512_castpd_ps(_mm512_unpacklo_pd(c, d));
  columns[3].all = _mm512_castpd_ps(_mm512_unpackhi_pd(c, d));
}
// columns[i] = column i of the 16 rows, `stride` floats apart, of a stored tile, for the four columns at `tile`.
template <class V>
inline void take_columns(const float* tile, int64_t stride, V (&columns)[4]) {
  __m512 keys[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) keys[i] = quarter_rows(tile, stride, i);
  transpose_quarters<V>(keys, columns);
}
// The same of int32 tiles whose columns i, 4 + i and 8 + i are digits of column i: 2^16, 2^8 and 1.
template <class V>
inline void take_digit_columns(const float* tile, int64_t stride, V (&columns)[4]) {
  __m512 keys[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512 high = _mm512_cvtepi32_ps(_mm512_castps_si512(quarter_rows(tile, stride, i)));
    const __m512 middle = _mm512_cvtepi32_ps(_mm512_castps_si512(quarter_rows(tile + 4, stride, i)));
    const __m512 low = _mm512_cvtepi32_ps(_mm512_castps_si512(quarter_rows(tile + 8, stride, i)));
    keys[i] = _mm512_fmadd_ps(high, _mm512_set1_ps(0x1p16f), _mm512_fmadd_ps(middle, _mm512_set1_ps(0x1p8f), low));
  }
  transpose_quarters<V>(keys, columns);
}
template <class V>
inline V load_whole(const float* p) {
  return {_mm512_cvtepi32_ps(_mm512_loadu_si512(p))};
}

// x - floor(x), 0 for infinities; p * 2^floor(x).
template <class V>
inline V above_floor(V x) {
  return {_mm512_reduce_ps(x.all, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
}
template <class V>
inline V scale_by_floor(V p, V x) {
  return V::scale_exponent(p, x);
}

// The bf16 of x that comes next, as the upper half of each dword, and in x what it lost.
template <int kParts, bool kOperand, class V>
inline V take_part(V& x, int part) {
  constexpr int kInfinities = 0x18;
  const __m512i cut = _mm512_castps_si512(x.all);
  __m512i bits = cut;
  if (rounds_part<kParts, kOperand>(part)) bits = _mm512_add_epi32(cut, _mm512_set1_epi32(0x8000));
  if (part + 1 == kParts) return {_mm512_castsi512_ps(bits)};
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
  if constexpr (kOperand) {
    const __m512 rounded = _mm512_castsi512_ps(_mm512_and_si512(bits, upper));
    bits = _mm512_mask_mov_epi32(bits, _mm512_fpclass_ps_mask(rounded, kInfinities), cut);
    bits = _mm512_maskz_mov_epi32(_knot_mask16(_mm512_fpclass_ps_mask(x.all, kInfinities)), bits);
  }
  x.all = _mm512_sub_ps(x.all, _mm512_castsi512_ps(_mm512_and_si512(bits, upper)));
  return {_mm512_castsi512_ps(bits)};
}
// Of dwords' upper halves: dwords (low, high).
template <class V>
inline V pair_halves(V low, V high) {
  return {_mm512_castsi512_ps(_mm512_mask_blend_epi16(0xAAAAAAAAu, _mm512_srli_epi32(_mm512_castps_si512(low.all), 16),
                                                      _mm512_castps_si512(high.all)))};
}
// ... first's, then second's.
template <class V>
inline V join_halves(V first, V second) {
  // Words 1, 3, 5, ... of both.
  const __m512i fours = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60);
  const __m512i upper =
      _mm512_add_epi32(_mm512_or_si512(fours, _mm512_slli_epi32(fours, 16)), _mm512_set1_epi32(0x30001));
  return {_mm512_castsi512_ps(
      _mm512_permutex2var_epi16(_mm512_castps_si512(first.all), upper, _mm512_castps_si512(second.all)))};
}
// Whole numbers x[i] * factor as three signed digits: quads (x[0], x[1], x[2], x[3]) of each at to, to + part and
// to + 2 part bytes, the highest first.
template <class V>
inline void split_quads(const V (&x)[4], V factor, std::byte* to, int64_t part) {
  const __m512i byte = _mm512_set1_epi32(255);
  __m512i digits[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i bits = _mm512_castps_si512(_mm512_fmadd_ps(x[i].all, factor.all, _mm512_set1_ps(kWhole)));
    digits[i] = _mm512_xor_si512(_mm512_add_epi32(bits, _mm512_set1_epi32(static_cast<int>(kDigitsOffset))),
                                 _mm512_set1_epi32(static_cast<int>(kDigitsSigns)));
  }
#pragma GCC unroll 3
  for (int d = 0; d < 3; ++d) {
    __m512i quad = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512i digit = _mm512_and_si512(_mm512_srli_epi32(digits[i], 16 - 8 * d), byte);
      quad = _mm512_or_si512(quad, _mm512_slli_epi32(digit, 8 * i));
    }
    _mm512_storeu_si512(to + d * part, quad);
  }
}

#else

inline void interleave_pairs(const std::byte* even, const std::byte* odd, std::byte* low, std::byte* high) {
  for (int i = 0; i < 16; ++i) {
    const int at = i / 4 * 16 + i % 4 * 2;
    for (int byte = 0; byte < 2; ++byte) {
      low[4 * i + byte] = even[at + byte];
      low[4 * i + 2 + byte] = odd[at + byte];
      high[4 * i + byte] = even[at + 8 + byte];
      high[4 * i + 2 + byte] = odd[at + 8 + byte];
    }
  }
}
template <class V>
inline void order_pairs(V low, V high, bool paired, V& first, V& second) {
  float from[2][16], to[32];
  low.store(from[0]);
  high.store(from[1]);
  for (int i = 0; i < 32; ++i) {
    const int column = paired ? i % 16 * 2 + i / 16 : i;
    to[i] = from[column / 4 % 2][column / 8 * 4 + column % 4];
  }
  first = V::load(to);
  second = V::load(to + 16);
}

inline void interleave_quads(const std::byte* const (&rows)[4], std::byte* const (&quad)[4]) {
  for (int t = 0; t < 4; ++t)
    for (int i = 0; i < 16; ++i)
      for (int r = 0; r < 4; ++r) quad[t][4 * i + r] = rows[r][i / 4 * 16 + 4 * t + i % 4];
}
template <class V>
inline void order_quads(V (&sums)[4]) {
  float from[4][16], to[64];
  for (int t = 0; t < 4; ++t) sums[t].store(from[t]);
  for (int i = 0; i < 64; ++i) to[i] = from[i / 4 % 4][i / 16 * 4 + i % 4];
  for (int t = 0; t < 4; ++t) sums[t] = V::load(to + 16 * t);
}

template <class V>
inline void take_columns(const float* tile, int64_t stride, V (&columns)[4]) {
  for (int i = 0; i < 4; ++i) {
    float column[16];
    for (int r = 0; r < 16; ++r) column[r] = tile[r * stride + i];
    columns[i] = V::load(column);
  }
}
template <class V>
inline V load_whole(const float* p) {
  int32_t whole[16];
  float value[16];
  std::memcpy(whole, p, sizeof whole);
  for (int i = 0; i < 16; ++i) value[i] = static_cast<float>(whole[i]);
  return V::load(value);
}
template <class V>
inline void take_digit_columns(const float* tile, int64_t stride, V (&columns)[4]) {
  for (int i = 0; i < 4; ++i) {
    V digits[3];
    for (int d = 0; d < 3; ++d) {
      float column[16];
      for (int r = 0; r < 16; ++r) std::memcpy(column + r, tile + r * stride + 4 * d + i, sizeof column[r]);
      digits[d] = load_whole<V>(column);
    }
    columns[i] = digits[0] * V::broadcast(0x1p16f) + (digits[1] * V::broadcast(0x1p8f) + digits[2]);
  }
}

template <class V>
inline V floor(V x) {
  const V whole = V::nearest(x);
  return V::where_less(x, whole, whole - V::broadcast(1.0f), whole);
}
template <class V>
inline V above_floor(V x) {
  return x - floor(x);
}
template <class V>
inline V scale_by_floor(V p, V x) {
  const V scaled = V::zero_where_less(x, V::broadcast(-126.0f), V::scale_exponent(p, floor(x)));
  return V::where_less(V::broadcast(128.0f), x, V::broadcast(std::numeric_limits<float>::infinity()), scaled);
}

template <int kParts, bool kOperand, class V>
inline V take_part(V& x, int part) {
  float lanes[16], upper[16];
  x.store(lanes);
  for (int i = 0; i < 16; ++i) {
    const auto is_infinite = [](uint32_t bits) { return (bits & 0x7FFF0000u) == 0x7F800000u; };
    const uint32_t cut = bits_from_float(lanes[i]);
    uint32_t bits = rounds_part<kParts, kOperand>(part) ? cut + 0x8000u : cut;
    if (kOperand && part + 1 < kParts) {
      if (is_infinite(bits)) bits = cut;
      if ((cut & 0x7FFFFFFFu) == 0x7F800000u) bits = 0;
    }
    upper[i] = float_from_bits(bits & 0xFFFF0000u);
    lanes[i] -= upper[i];
  }
  x = V::load(lanes);
  return V::load(upper);
}
template <class V>
inline V pair_halves(V low, V high) {
  uint32_t below[16], above[16];
  low.store(below);
  high.store(above);
  for (int i = 0; i < 16; ++i) above[i] = below[i] >> 16 | (above[i] & 0xFFFF0000u);
  return V::load(above);
}
template <class V>
inline V join_halves(V first, V second) {
  uint32_t from[32], to[16];
  first.store(from);
  second.store(from + 16);
  for (int i = 0; i < 16; ++i) to[i] = from[2 * i] >> 16 | (from[2 * i + 1] & 0xFFFF0000u);
  return V::load(to);
}
template <class V>
inline void split_quads(const V (&x)[4], V factor, std::byte* to, int64_t part) {
  for (int r = 0; r < 4; ++r) {
    float value[16];
    (x[r] * factor + V::broadcast(kWhole)).store(value);
    for (int i = 0; i < 16; ++i) {
      const uint32_t digits = (bits_from_float(value[i]) + kDigitsOffset) ^ kDigitsSigns;
      for (int d = 0; d < 3; ++d) to[d * part + 4 * i + r] = static_cast<std::byte>(digits >> (16 - 8 * d) & 255u);
    }
  }
}

#endif

// Both values' parts in pairs (even, odd), `part_stride` elements apart.
template <int kParts, bool kOperand, class V>
inline void split_pairs(V even, V odd, uint16_t* to, int64_t part_stride) {
#pragma GCC unroll 3
  for (int part = 0; part < kParts; ++part) {
    const V low = take_part<kParts, kOperand>(even, part), high = take_part<kParts, kOperand>(odd, part);
    pair_halves(low, high).store(to + part * part_stride);
  }
}
// Operands' parts, `first` before `second`.
template <int kParts, class V>
inline void split_row(V first, V second, uint16_t* to, int64_t part_stride) {
#pragma GCC unroll 3
  for (int part = 0; part < kParts; ++part) {
    const V before = take_part<kParts, true>(first, part), behind = take_part<kParts, true>(second, part);
    join_halves(before, behind).store(to + part * part_stride);
  }
}

}  // namespace tessera::cpu::TESSERA_CPU_ISA
