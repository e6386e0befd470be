// The kernels' vector types on AVX-512 F + BW + DQ + VL: sixteen floats or eight doubles in one zmm register. Same
// members as vec_avx2.hpp.
// bfloat16 is rounded by integer instructions: vcvtneps2bf16 flushes subnormals. Source: Intel SDM; the 16 x 16
// transpose is two unpack and two 128-bit shuffle stages, the 8 x 8 one unpack and two shuffle stages.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace tessera::cpu::TESSERA_CPU_ISA {

struct F32x16 {
  using Scalar = float;
  static constexpr int kLanes = 16;
  // 14 rows x 2 vectors: 28 accumulators, 2 registers for the panel and 2 for broadcasts are the 32 of AVX-512.
  static constexpr int kRows = 14, kVecs = 2;

  __m512 all;

  static F32x16 load(const void* p) { return {_mm512_loadu_ps(p)}; }
  static F32x16 load_f16(const void* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
  }
  static F32x16 load_bf16(const void* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
  }
  // A bfloat16 is the upper half of its float: one shift or one mask for 16 of them, half the instructions of widening.
  static constexpr bool kBf16Interleaved = true;
  static void load_bf16_even_odd(const void* p, F32x16& even, F32x16& odd) {
    const __m512i both = _mm512_loadu_si512(p);
    even.all = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
    odd.all = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))));
  }
  static F32x16 broadcast(float x) { return {_mm512_set1_ps(x)}; }
  static F32x16 zero() { return {_mm512_setzero_ps()}; }
  static F32x16 iota() { return {_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)}; }

  void store(void* p) const { _mm512_storeu_ps(p, all); }
  void store_f16(void* p) const {
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtps_ph(all, _MM_FROUND_TO_NEAREST_INT));
  }
  // As vec_avx2.hpp's.
  void store_bf16(void* p) const {
    const __m512i bits = _mm512_castps_si512(all);
    const __m512i even = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, even), _mm512_set1_epi32(0x7FFF));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x00400000));
    const __m512i kept = _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(all, all, _CMP_UNORD_Q), rounded, quiet);
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16)));
  }

  friend F32x16 operator+(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.all, b.all)}; }
  friend F32x16 operator-(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.all, b.all)}; }
  friend F32x16 operator*(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.all, b.all)}; }
  friend F32x16 operator/(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.all, b.all)}; }
  static F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.all, b.all, c.all)}; }
  static F32x16 max(F32x16 a, F32x16 b) { return {_mm512_max_ps(a.all, b.all)}; }
  static F32x16 where_less(F32x16 a, F32x16 b, F32x16 x, F32x16 y) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.all, b.all, _CMP_LT_OQ), y.all, x.all)};
  }
  static F32x16 abs(F32x16 a) { return {_mm512_andnot_ps(_mm512_set1_ps(-0.0f), a.all)}; }
  static F32x16 with_sign_of(F32x16 a, F32x16 b) {
    return {_mm512_or_ps(a.all, _mm512_and_ps(_mm512_set1_ps(-0.0f), b.all))};
  }
  static F32x16 nearest(F32x16 a) {
    return {_mm512_roundscale_ps(a.all, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  }
  static F32x16 scale_exponent(F32x16 p, F32x16 n) { return {_mm512_scalef_ps(p.all, n.all)}; }
  static F32x16 zero_where_less(F32x16 x, F32x16 bound, F32x16 value) {
    return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.all, bound.all, _CMP_NLT_UQ), value.all)};
  }
  static float reduce_max(F32x16 a) {
    const __m256 m = _mm256_max_ps(_mm512_castps512_ps256(a.all), _mm512_extractf32x8_ps(a.all, 1));
    __m128 h = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
    h = _mm_max_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_max_ss(h, _mm_movehdup_ps(h)));
  }
  static float reduce_sum(F32x16 a) {
    const __m256 s = _mm256_add_ps(_mm512_castps512_ps256(a.all), _mm512_extractf32x8_ps(a.all, 1));
    __m128 h = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    h = _mm_add_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_add_ss(h, _mm_movehdup_ps(h)));
  }
  // 128-bit quarters: a0 + a2, a1 + a3, b0 + b2, b1 + b3.
  static __m512 add_halves(__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
  }
  static F32x16 load_i8(const void* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))))};
  }
  // Lane l of the result is the sum of rows[l]: a tree whose every step halves the registers, 45 instructions.
  static F32x16 sum_lanes(const F32x16 (&rows)[16]) {
    __m512 part[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512 a = rows[4 * i].all, b = rows[4 * i + 1].all, c = rows[4 * i + 2].all, d = rows[4 * i + 3].all;
      const __m512d ab = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
      const __m512d cd = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d)));
      part[i] =
          _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)), _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
    }
    const __m512 low = add_halves(part[0], part[1]), high = add_halves(part[2], part[3]);
    return {_mm512_add_ps(_mm512_shuffle_f32x4(low, high, 0x88), _mm512_shuffle_f32x4(low, high, 0xDD))};
  }
  // to[c * stride + r] = rows[r][c] for c < columns.
  static void store_transposed(const F32x16 (&rows)[16], float* to, int64_t stride, int64_t columns) {
    __m512 a[16], b[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
      a[i] = _mm512_unpacklo_ps(rows[i].all, rows[i + 1].all);
      a[i + 1] = _mm512_unpackhi_ps(rows[i].all, rows[i + 1].all);
    }
    // b[4 g + c]: columns c, c + 4, c + 8, c + 12 of rows 4 g to 4 g + 3, one in each 128-bit quarter.
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
      b[i] = _mm512_shuffle_ps(a[i], a[i + 2], 0x44);
      b[i + 1] = _mm512_shuffle_ps(a[i], a[i + 2], 0xEE);
      b[i + 2] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0x44);
      b[i + 3] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0xEE);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const __m512 low_even = _mm512_shuffle_f32x4(b[c], b[4 + c], 0x88),
                   low_odd = _mm512_shuffle_f32x4(b[c], b[4 + c], 0xDD);
      const __m512 high_even = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], 0x88);
      const __m512 high_odd = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], 0xDD);
      a[c] = _mm512_shuffle_f32x4(low_even, high_even, 0x88);
      a[c + 8] = _mm512_shuffle_f32x4(low_even, high_even, 0xDD);
      a[c + 4] = _mm512_shuffle_f32x4(low_odd, high_odd, 0x88);
      a[c + 12] = _mm512_shuffle_f32x4(low_odd, high_odd, 0xDD);
    }
#pragma GCC unroll 16
    for (int c = 0; c < 16; ++c) {
      if (c < columns) _mm512_storeu_ps(to + c * stride, a[c]);
    }
  }
};

struct F64x8 {
  using Scalar = double;
  static constexpr int kLanes = 8;
  static constexpr int kRows = 14, kVecs = 2;

  __m512d all;

  static F64x8 load(const void* p) { return {_mm512_loadu_pd(p)}; }
  static F64x8 broadcast(double x) { return {_mm512_set1_pd(x)}; }
  static F64x8 zero() { return {_mm512_setzero_pd()}; }
  static F64x8 iota() { return {_mm512_setr_pd(0, 1, 2, 3, 4, 5, 6, 7)}; }
  void store(void* p) const { _mm512_storeu_pd(p, all); }

  friend F64x8 operator+(F64x8 a, F64x8 b) { return {_mm512_add_pd(a.all, b.all)}; }
  friend F64x8 operator-(F64x8 a, F64x8 b) { return {_mm512_sub_pd(a.all, b.all)}; }
  friend F64x8 operator*(F64x8 a, F64x8 b) { return {_mm512_mul_pd(a.all, b.all)}; }
  friend F64x8 operator/(F64x8 a, F64x8 b) { return {_mm512_div_pd(a.all, b.all)}; }
  static F64x8 fma(F64x8 a, F64x8 b, F64x8 c) { return {_mm512_fmadd_pd(a.all, b.all, c.all)}; }
  static F64x8 max(F64x8 a, F64x8 b) { return {_mm512_max_pd(a.all, b.all)}; }
  static F64x8 where_less(F64x8 a, F64x8 b, F64x8 x, F64x8 y) {
    return {_mm512_mask_blend_pd(_mm512_cmp_pd_mask(a.all, b.all, _CMP_LT_OQ), y.all, x.all)};
  }
  static F64x8 abs(F64x8 a) { return {_mm512_andnot_pd(_mm512_set1_pd(-0.0), a.all)}; }
  static F64x8 with_sign_of(F64x8 a, F64x8 b) {
    return {_mm512_or_pd(a.all, _mm512_and_pd(_mm512_set1_pd(-0.0), b.all))};
  }
  static F64x8 nearest(F64x8 a) { return {_mm512_roundscale_pd(a.all, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
  static F64x8 scale_exponent(F64x8 p, F64x8 n) { return {_mm512_scalef_pd(p.all, n.all)}; }
  static F64x8 zero_where_less(F64x8 x, F64x8 bound, F64x8 value) {
    return {_mm512_maskz_mov_pd(_mm512_cmp_pd_mask(x.all, bound.all, _CMP_NLT_UQ), value.all)};
  }
  static double reduce_max(F64x8 a) {
    const __m256d m = _mm256_max_pd(_mm512_castpd512_pd256(a.all), _mm512_extractf64x4_pd(a.all, 1));
    const __m128d h = _mm_max_pd(_mm256_castpd256_pd128(m), _mm256_extractf128_pd(m, 1));
    return _mm_cvtsd_f64(_mm_max_sd(h, _mm_unpackhi_pd(h, h)));
  }
  static double reduce_sum(F64x8 a) {
    const __m256d s = _mm256_add_pd(_mm512_castpd512_pd256(a.all), _mm512_extractf64x4_pd(a.all, 1));
    const __m128d h = _mm_add_pd(_mm256_castpd256_pd128(s), _mm256_extractf128_pd(s, 1));
    return _mm_cvtsd_f64(_mm_add_sd(h, _mm_unpackhi_pd(h, h)));
  }
  static void store_transposed(const F64x8 (&rows)[8], double* to, int64_t stride, int64_t columns) {
    __m512d a[8], out[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
      a[i] = _mm512_unpacklo_pd(rows[i].all, rows[i + 1].all);
      a[i + 1] = _mm512_unpackhi_pd(rows[i].all, rows[i + 1].all);
    }
    // a[2 g + c]: columns c, c + 2, c + 4, c + 6 of rows 2 g and 2 g + 1, one in each 128-bit quarter.
#pragma GCC unroll 2
    for (int c = 0; c < 2; ++c) {
      const __m512d low_even = _mm512_shuffle_f64x2(a[c], a[2 + c], 0x88),
                    low_odd = _mm512_shuffle_f64x2(a[c], a[2 + c], 0xDD);
      const __m512d high_even = _mm512_shuffle_f64x2(a[4 + c], a[6 + c], 0x88);
      const __m512d high_odd = _mm512_shuffle_f64x2(a[4 + c], a[6 + c], 0xDD);
      out[c] = _mm512_shuffle_f64x2(low_even, high_even, 0x88);
      out[c + 4] = _mm512_shuffle_f64x2(low_even, high_even, 0xDD);
      out[c + 2] = _mm512_shuffle_f64x2(low_odd, high_odd, 0x88);
      out[c + 6] = _mm512_shuffle_f64x2(low_odd, high_odd, 0xDD);
    }
#pragma GCC unroll 8
    for (int c = 0; c < 8; ++c) {
      if (c < columns) _mm512_storeu_pd(to + c * stride, out[c]);
    }
  }
};

}  // namespace tessera::cpu::TESSERA_CPU_ISA
