// The kernels' vector types on AVX2 + FMA + F16C: sixteen floats or eight doubles in two ymm registers each.
// Every vec_*.hpp defines the same two types with the same members; `first op second` rules for NaN are stated at max.
// Source: Intel Intrinsics Guide; the 8 x 8 and 4 x 4 register transposes are unpack, shuffle, permute2f128.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace tessera::cpu::TESSERA_CPU_ISA {

struct F32x16 {
  using Scalar = float;
  static constexpr int kLanes = 16;
  // 6 rows x 1 vector: 12 accumulators, 2 registers for the panel and 1-2 for broadcasts are the 16 of AVX2.
  static constexpr int kRows = 6, kVecs = 1;

  __m256 lo, hi;

  static F32x16 load(const void* p) {
    const float* f = static_cast<const float*>(p);
    return {_mm256_loadu_ps(f), _mm256_loadu_ps(f + 8)};
  }
  static F32x16 load_f16(const void* p) {
    const __m128i* h = static_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(h)), _mm256_cvtph_ps(_mm_loadu_si128(h + 1))};
  }
  static constexpr bool kBf16Interleaved = false;  // see load_pair
  static F32x16 load_bf16(const void* p) {
    const __m128i* h = static_cast<const __m128i*>(p);
    return {widen_bf16(_mm_loadu_si128(h)), widen_bf16(_mm_loadu_si128(h + 1))};
  }
  static F32x16 broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static F32x16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static F32x16 iota() {
    return {_mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_ps(8, 9, 10, 11, 12, 13, 14, 15)};
  }

  void store(void* p) const {
    float* f = static_cast<float*>(p);
    _mm256_storeu_ps(f, lo);
    _mm256_storeu_ps(f + 8, hi);
  }
  void store_f16(void* p) const {
    __m128i* h = static_cast<__m128i*>(p);
    _mm_storeu_si128(h, _mm256_cvtps_ph(lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(h + 1, _mm256_cvtps_ph(hi, _MM_FROUND_TO_NEAREST_INT));
  }
  void store_bf16(void* p) const {
    const __m256i pairs = _mm256_packus_epi32(narrow_bf16(lo), narrow_bf16(hi));
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm256_permute4x64_epi64(pairs, 0xD8));
  }

  friend F32x16 operator+(F32x16 a, F32x16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
  friend F32x16 operator-(F32x16 a, F32x16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
  friend F32x16 operator*(F32x16 a, F32x16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
  friend F32x16 operator/(F32x16 a, F32x16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
  // a * b + c, rounded once.
  static F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
  }
  // The larger; `b` where either is NaN.
  static F32x16 max(F32x16 a, F32x16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
  // a < b ? x : y; y where a or b is NaN.
  static F32x16 where_less(F32x16 a, F32x16 b, F32x16 x, F32x16 y) {
    return {_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
            _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
  }
  // |a|, and `a` with the sign of `b` put over its own (a >= 0).
  static F32x16 abs(F32x16 a) { return {_mm256_andnot_ps(sign(), a.lo), _mm256_andnot_ps(sign(), a.hi)}; }
  static F32x16 with_sign_of(F32x16 a, F32x16 b) {
    return {_mm256_or_ps(a.lo, _mm256_and_ps(sign(), b.lo)), _mm256_or_ps(a.hi, _mm256_and_ps(sign(), b.hi))};
  }
  static F32x16 nearest(F32x16 a) {
    constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(a.lo, kMode), _mm256_round_ps(a.hi, kMode)};
  }
  // p * 2^n for whole n; p and the result are normal. NaN in p stays.
  static F32x16 scale_exponent(F32x16 p, F32x16 n) { return {scale_exponent(p.lo, n.lo), scale_exponent(p.hi, n.hi)}; }
  // value, +0 where x < bound.
  static F32x16 zero_where_less(F32x16 x, F32x16 bound, F32x16 value) {
    return {_mm256_andnot_ps(_mm256_cmp_ps(x.lo, bound.lo, _CMP_LT_OQ), value.lo),
            _mm256_andnot_ps(_mm256_cmp_ps(x.hi, bound.hi, _CMP_LT_OQ), value.hi)};
  }
  static float reduce_max(F32x16 a) {
    const __m256 m = _mm256_max_ps(a.lo, a.hi);
    __m128 h = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
    h = _mm_max_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_max_ss(h, _mm_movehdup_ps(h)));
  }
  static float reduce_sum(F32x16 a) {
    const __m256 s = _mm256_add_ps(a.lo, a.hi);
    __m128 h = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    h = _mm_add_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_add_ss(h, _mm_movehdup_ps(h)));
  }
  static F32x16 load_i8(const void* p) {
    const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(p));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
  }
  // Lane l of the result is the sum of rows[l].
  static F32x16 sum_lanes(const F32x16 (&rows)[16]) {
    __m256 part[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m256 a = _mm256_add_ps(rows[4 * i].lo, rows[4 * i].hi);
      const __m256 b = _mm256_add_ps(rows[4 * i + 1].lo, rows[4 * i + 1].hi);
      const __m256 c = _mm256_add_ps(rows[4 * i + 2].lo, rows[4 * i + 2].hi);
      const __m256 d = _mm256_add_ps(rows[4 * i + 3].lo, rows[4 * i + 3].hi);
      const __m256 ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
      const __m256 cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
      part[i] = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xEE));
    }
    return {
        _mm256_add_ps(_mm256_permute2f128_ps(part[0], part[1], 0x20), _mm256_permute2f128_ps(part[0], part[1], 0x31)),
        _mm256_add_ps(_mm256_permute2f128_ps(part[2], part[3], 0x20), _mm256_permute2f128_ps(part[2], part[3], 0x31))};
  }
  // to[c * stride + r] = rows[r][c] for c < columns.
  static void store_transposed(const F32x16 (&rows)[16], float* to, int64_t stride, int64_t columns) {
    for (int half = 0; half < 2; ++half) {
      const F32x16* r = rows + 8 * half;
      store_transposed_8x8(r[0].lo, r[1].lo, r[2].lo, r[3].lo, r[4].lo, r[5].lo, r[6].lo, r[7].lo, to + 8 * half,
                           stride, columns);
      if (columns <= 8) continue;
      store_transposed_8x8(r[0].hi, r[1].hi, r[2].hi, r[3].hi, r[4].hi, r[5].hi, r[6].hi, r[7].hi,
                           to + 8 * stride + 8 * half, stride, columns - 8);
    }
  }

 private:
  static __m256 sign() { return _mm256_set1_ps(-0.0f); }
  static __m256 widen_bf16(__m128i h) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)); }
  // Round to nearest even by adding half a unit of the last place that stays, less one for an even result; NaN stays
  // quiet NaN, which the carry of that sum could turn into infinity.
  static __m256i narrow_bf16(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i even = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, even), _mm256_set1_epi32(0x7FFF));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
  }
  // cvtps gives 0x80000000 for NaN, which the shift turns into 0: NaN plus nothing.
  static __m256 scale_exponent(__m256 p, __m256 n) {
    const __m256i shifted = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), shifted));
  }
  static void store_transposed_8x8(__m256 r0, __m256 r1, __m256 r2, __m256 r3, __m256 r4, __m256 r5, __m256 r6,
                                   __m256 r7, float* to, int64_t stride, int64_t columns) {
    const __m256 a0 = _mm256_unpacklo_ps(r0, r1), a1 = _mm256_unpackhi_ps(r0, r1);
    const __m256 a2 = _mm256_unpacklo_ps(r2, r3), a3 = _mm256_unpackhi_ps(r2, r3);
    const __m256 a4 = _mm256_unpacklo_ps(r4, r5), a5 = _mm256_unpackhi_ps(r4, r5);
    const __m256 a6 = _mm256_unpacklo_ps(r6, r7), a7 = _mm256_unpackhi_ps(r6, r7);
    const __m256 b0 = _mm256_shuffle_ps(a0, a2, 0x44), b1 = _mm256_shuffle_ps(a0, a2, 0xEE);
    const __m256 b2 = _mm256_shuffle_ps(a1, a3, 0x44), b3 = _mm256_shuffle_ps(a1, a3, 0xEE);
    const __m256 b4 = _mm256_shuffle_ps(a4, a6, 0x44), b5 = _mm256_shuffle_ps(a4, a6, 0xEE);
    const __m256 b6 = _mm256_shuffle_ps(a5, a7, 0x44), b7 = _mm256_shuffle_ps(a5, a7, 0xEE);
    const __m256 columns_of[8] = {_mm256_permute2f128_ps(b0, b4, 0x20), _mm256_permute2f128_ps(b1, b5, 0x20),
                                  _mm256_permute2f128_ps(b2, b6, 0x20), _mm256_permute2f128_ps(b3, b7, 0x20),
                                  _mm256_permute2f128_ps(b0, b4, 0x31), _mm256_permute2f128_ps(b1, b5, 0x31),
                                  _mm256_permute2f128_ps(b2, b6, 0x31), _mm256_permute2f128_ps(b3, b7, 0x31)};
    for (int c = 0; c < 8 && c < columns; ++c) _mm256_storeu_ps(to + c * stride, columns_of[c]);
  }
};

struct F64x8 {
  using Scalar = double;
  static constexpr int kLanes = 8;
  static constexpr int kRows = 6, kVecs = 1;

  __m256d lo, hi;

  static F64x8 load(const void* p) {
    const double* f = static_cast<const double*>(p);
    return {_mm256_loadu_pd(f), _mm256_loadu_pd(f + 4)};
  }
  static F64x8 broadcast(double x) { return {_mm256_set1_pd(x), _mm256_set1_pd(x)}; }
  static F64x8 zero() { return {_mm256_setzero_pd(), _mm256_setzero_pd()}; }
  static F64x8 iota() { return {_mm256_setr_pd(0, 1, 2, 3), _mm256_setr_pd(4, 5, 6, 7)}; }

  void store(void* p) const {
    double* f = static_cast<double*>(p);
    _mm256_storeu_pd(f, lo);
    _mm256_storeu_pd(f + 4, hi);
  }

  friend F64x8 operator+(F64x8 a, F64x8 b) { return {_mm256_add_pd(a.lo, b.lo), _mm256_add_pd(a.hi, b.hi)}; }
  friend F64x8 operator-(F64x8 a, F64x8 b) { return {_mm256_sub_pd(a.lo, b.lo), _mm256_sub_pd(a.hi, b.hi)}; }
  friend F64x8 operator*(F64x8 a, F64x8 b) { return {_mm256_mul_pd(a.lo, b.lo), _mm256_mul_pd(a.hi, b.hi)}; }
  friend F64x8 operator/(F64x8 a, F64x8 b) { return {_mm256_div_pd(a.lo, b.lo), _mm256_div_pd(a.hi, b.hi)}; }
  static F64x8 fma(F64x8 a, F64x8 b, F64x8 c) {
    return {_mm256_fmadd_pd(a.lo, b.lo, c.lo), _mm256_fmadd_pd(a.hi, b.hi, c.hi)};
  }
  static F64x8 max(F64x8 a, F64x8 b) { return {_mm256_max_pd(a.lo, b.lo), _mm256_max_pd(a.hi, b.hi)}; }
  static F64x8 where_less(F64x8 a, F64x8 b, F64x8 x, F64x8 y) {
    return {_mm256_blendv_pd(y.lo, x.lo, _mm256_cmp_pd(a.lo, b.lo, _CMP_LT_OQ)),
            _mm256_blendv_pd(y.hi, x.hi, _mm256_cmp_pd(a.hi, b.hi, _CMP_LT_OQ))};
  }
  static F64x8 abs(F64x8 a) { return {_mm256_andnot_pd(sign(), a.lo), _mm256_andnot_pd(sign(), a.hi)}; }
  static F64x8 with_sign_of(F64x8 a, F64x8 b) {
    return {_mm256_or_pd(a.lo, _mm256_and_pd(sign(), b.lo)), _mm256_or_pd(a.hi, _mm256_and_pd(sign(), b.hi))};
  }
  static F64x8 nearest(F64x8 a) {
    constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_pd(a.lo, kMode), _mm256_round_pd(a.hi, kMode)};
  }
  static F64x8 scale_exponent(F64x8 p, F64x8 n) { return {scale_exponent(p.lo, n.lo), scale_exponent(p.hi, n.hi)}; }
  static F64x8 zero_where_less(F64x8 x, F64x8 bound, F64x8 value) {
    return {_mm256_andnot_pd(_mm256_cmp_pd(x.lo, bound.lo, _CMP_LT_OQ), value.lo),
            _mm256_andnot_pd(_mm256_cmp_pd(x.hi, bound.hi, _CMP_LT_OQ), value.hi)};
  }
  static double reduce_max(F64x8 a) {
    const __m256d m = _mm256_max_pd(a.lo, a.hi);
    const __m128d h = _mm_max_pd(_mm256_castpd256_pd128(m), _mm256_extractf128_pd(m, 1));
    return _mm_cvtsd_f64(_mm_max_sd(h, _mm_unpackhi_pd(h, h)));
  }
  static double reduce_sum(F64x8 a) {
    const __m256d s = _mm256_add_pd(a.lo, a.hi);
    const __m128d h = _mm_add_pd(_mm256_castpd256_pd128(s), _mm256_extractf128_pd(s, 1));
    return _mm_cvtsd_f64(_mm_add_sd(h, _mm_unpackhi_pd(h, h)));
  }
  static void store_transposed(const F64x8 (&rows)[8], double* to, int64_t stride, int64_t columns) {
    for (int half = 0; half < 2; ++half) {
      const F64x8* r = rows + 4 * half;
      store_transposed_4x4(r[0].lo, r[1].lo, r[2].lo, r[3].lo, to + 4 * half, stride, columns);
      if (columns <= 4) continue;
      store_transposed_4x4(r[0].hi, r[1].hi, r[2].hi, r[3].hi, to + 4 * stride + 4 * half, stride, columns - 4);
    }
  }

 private:
  static __m256d sign() { return _mm256_set1_pd(-0.0); }
  // 2^52 + 2^51 + n holds n in its low bits (|n| < 2^51), and its low 12 bits are those of n: enough for the exponent.
  // NaN is passed through: its payload must not reach the exponent.
  static __m256d scale_exponent(__m256d p, __m256d n) {
    const __m256i whole = _mm256_castpd_si256(_mm256_add_pd(n, _mm256_set1_pd(6755399441055744.0)));
    const __m256d scaled = _mm256_castsi256_pd(_mm256_add_epi64(_mm256_castpd_si256(p), _mm256_slli_epi64(whole, 52)));
    return _mm256_blendv_pd(scaled, p, _mm256_cmp_pd(p, p, _CMP_UNORD_Q));
  }
  static void store_transposed_4x4(__m256d r0, __m256d r1, __m256d r2, __m256d r3, double* to, int64_t stride,
                                   int64_t columns) {
    const __m256d a0 = _mm256_unpacklo_pd(r0, r1), a1 = _mm256_unpackhi_pd(r0, r1);
    const __m256d a2 = _mm256_unpacklo_pd(r2, r3), a3 = _mm256_unpackhi_pd(r2, r3);
    const __m256d columns_of[4] = {_mm256_permute2f128_pd(a0, a2, 0x20), _mm256_permute2f128_pd(a1, a3, 0x20),
                                   _mm256_permute2f128_pd(a0, a2, 0x31), _mm256_permute2f128_pd(a1, a3, 0x31)};
    for (int c = 0; c < 4 && c < columns; ++c) _mm256_storeu_pd(to + c * stride, columns_of[c]);
  }
};

}  // namespace tessera::cpu::TESSERA_CPU_ISA
