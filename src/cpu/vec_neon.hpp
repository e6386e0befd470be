// The kernels' vector types on NEON (aarch64): sixteen floats or eight doubles in four registers. Same members as
// vec_avx2.hpp. Source: Arm C Language Extensions, Advanced SIMD.
#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace tessera::cpu::TESSERA_CPU_ISA {

// Applies f to each of the four registers.
template <class Self, class F>
[[gnu::always_inline]] inline Self map_quarters(F&& f) {
  return Self{{f(0), f(1), f(2), f(3)}};
}

struct F32x16 {
  using Scalar = float;
  static constexpr int kLanes = 16;
  // 6 rows x 1 vector: 24 accumulators, 4 registers for the panel and 4 for broadcasts are the 32 of NEON.
  static constexpr int kRows = 6, kVecs = 1;

  float32x4_t quarter[4];

  static F32x16 load(const void* p) {
    const float* f = static_cast<const float*>(p);
    return map_quarters<F32x16>([&](int i) { return vld1q_f32(f + 4 * i); });
  }
  static F32x16 load_f16(const void* p) {
    const auto* h = static_cast<const uint16_t*>(p);
    return map_quarters<F32x16>([&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(h + 4 * i))); });
  }
  static constexpr bool kBf16Interleaved = false;  // see load_pair
  static F32x16 load_bf16(const void* p) {
    const auto* h = static_cast<const uint16_t*>(p);
    return map_quarters<F32x16>([&](int i) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(h + 4 * i), 16)); });
  }
  static F32x16 broadcast(float x) {
    return map_quarters<F32x16>([&](int) { return vdupq_n_f32(x); });
  }
  static F32x16 zero() { return broadcast(0.0f); }
  static F32x16 iota() {
    static constexpr float kLane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return load(kLane);
  }

  void store(void* p) const {
    for (int i = 0; i < 4; ++i) vst1q_f32(static_cast<float*>(p) + 4 * i, quarter[i]);
  }
  void store_f16(void* p) const {
    for (int i = 0; i < 4; ++i)
      vst1_u16(static_cast<uint16_t*>(p) + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(quarter[i])));
  }
  // As vec_avx2.hpp's: nearest even by integers, NaN stays NaN.
  void store_bf16(void* p) const {
    for (int i = 0; i < 4; ++i) {
      const uint32x4_t bits = vreinterpretq_u32_f32(quarter[i]);
      const uint32x4_t even = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
      const uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, even), vdupq_n_u32(0x7FFF));
      const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x00400000));
      const uint32x4_t ordered = vceqq_f32(quarter[i], quarter[i]);
      vst1_u16(static_cast<uint16_t*>(p) + 4 * i, vshrn_n_u32(vbslq_u32(ordered, rounded, quiet), 16));
    }
  }

  friend F32x16 operator+(F32x16 a, F32x16 b) {
    return map_quarters<F32x16>([&](int i) { return vaddq_f32(a.quarter[i], b.quarter[i]); });
  }
  friend F32x16 operator-(F32x16 a, F32x16 b) {
    return map_quarters<F32x16>([&](int i) { return vsubq_f32(a.quarter[i], b.quarter[i]); });
  }
  friend F32x16 operator*(F32x16 a, F32x16 b) {
    return map_quarters<F32x16>([&](int i) { return vmulq_f32(a.quarter[i], b.quarter[i]); });
  }
  friend F32x16 operator/(F32x16 a, F32x16 b) {
    return map_quarters<F32x16>([&](int i) { return vdivq_f32(a.quarter[i], b.quarter[i]); });
  }
  static F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
    return map_quarters<F32x16>([&](int i) { return vfmaq_f32(c.quarter[i], a.quarter[i], b.quarter[i]); });
  }
  static F32x16 max(F32x16 a, F32x16 b) {
    return map_quarters<F32x16>(
        [&](int i) { return vbslq_f32(vcgtq_f32(a.quarter[i], b.quarter[i]), a.quarter[i], b.quarter[i]); });
  }
  static F32x16 where_less(F32x16 a, F32x16 b, F32x16 x, F32x16 y) {
    return map_quarters<F32x16>(
        [&](int i) { return vbslq_f32(vcltq_f32(a.quarter[i], b.quarter[i]), x.quarter[i], y.quarter[i]); });
  }
  static F32x16 abs(F32x16 a) {
    return map_quarters<F32x16>([&](int i) { return vabsq_f32(a.quarter[i]); });
  }
  static F32x16 with_sign_of(F32x16 a, F32x16 b) {
    return map_quarters<F32x16>([&](int i) { return vbslq_f32(vdupq_n_u32(0x80000000u), b.quarter[i], a.quarter[i]); });
  }
  static F32x16 nearest(F32x16 a) {
    return map_quarters<F32x16>([&](int i) { return vrndnq_f32(a.quarter[i]); });
  }
  // vcvtn gives 0 for NaN: NaN plus nothing.
  static F32x16 scale_exponent(F32x16 p, F32x16 n) {
    return map_quarters<F32x16>([&](int i) {
      const int32x4_t shift = vshlq_n_s32(vcvtnq_s32_f32(n.quarter[i]), 23);
      return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(p.quarter[i]), shift));
    });
  }
  static F32x16 zero_where_less(F32x16 x, F32x16 bound, F32x16 value) {
    return map_quarters<F32x16>([&](int i) {
      return vreinterpretq_f32_u32(
          vbicq_u32(vreinterpretq_u32_f32(value.quarter[i]), vcltq_f32(x.quarter[i], bound.quarter[i])));
    });
  }
  static float reduce_max(F32x16 a) {
    float lane[16], result;
    a.store(lane);
    result = lane[0];
    for (int i = 1; i < 16; ++i) result = result > lane[i] ? result : lane[i];
    return result;
  }
  static float reduce_sum(F32x16 a) {
    const float32x4_t sum = vaddq_f32(vaddq_f32(a.quarter[0], a.quarter[2]), vaddq_f32(a.quarter[1], a.quarter[3]));
    return vaddvq_f32(sum);
  }
  static F32x16 load_i8(const void* p) {
    const int8x16_t bytes = vld1q_s8(static_cast<const int8_t*>(p));
    const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_s8(vget_high_s8(bytes));
    return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
             vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
  }
  // Lane l of the result is the sum of rows[l].
  static F32x16 sum_lanes(const F32x16 (&rows)[16]) {
    float32x4_t folded[16];
    for (int i = 0; i < 16; ++i) {
      const float32x4_t(&q)[4] = rows[i].quarter;
      folded[i] = vaddq_f32(vaddq_f32(q[0], q[2]), vaddq_f32(q[1], q[3]));
    }
    return map_quarters<F32x16>([&](int i) {
      return vpaddq_f32(vpaddq_f32(folded[4 * i], folded[4 * i + 1]), vpaddq_f32(folded[4 * i + 2], folded[4 * i + 3]));
    });
  }
  static void store_transposed(const F32x16 (&rows)[16], float* to, int64_t stride, int64_t columns) {
    for (int r = 0; r < 16; r += 4) {
      for (int q = 0; q < 4 && 4 * q < columns; ++q) {
        const float32x4x2_t low = vzipq_f32(rows[r].quarter[q], rows[r + 2].quarter[q]);
        const float32x4x2_t high = vzipq_f32(rows[r + 1].quarter[q], rows[r + 3].quarter[q]);
        const float32x4x2_t first = vzipq_f32(low.val[0], high.val[0]), second = vzipq_f32(low.val[1], high.val[1]);
        const float32x4_t column[4] = {first.val[0], first.val[1], second.val[0], second.val[1]};
        for (int c = 0; c < 4 && 4 * q + c < columns; ++c) vst1q_f32(to + (4 * q + c) * stride + r, column[c]);
      }
    }
  }
};

struct F64x8 {
  using Scalar = double;
  static constexpr int kLanes = 8;
  static constexpr int kRows = 6, kVecs = 1;

  float64x2_t quarter[4];

  static F64x8 load(const void* p) {
    const double* f = static_cast<const double*>(p);
    return map_quarters<F64x8>([&](int i) { return vld1q_f64(f + 2 * i); });
  }
  static F64x8 broadcast(double x) {
    return map_quarters<F64x8>([&](int) { return vdupq_n_f64(x); });
  }
  static F64x8 zero() { return broadcast(0.0); }
  static F64x8 iota() {
    static constexpr double kLane[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    return load(kLane);
  }

  void store(void* p) const {
    for (int i = 0; i < 4; ++i) vst1q_f64(static_cast<double*>(p) + 2 * i, quarter[i]);
  }

  friend F64x8 operator+(F64x8 a, F64x8 b) {
    return map_quarters<F64x8>([&](int i) { return vaddq_f64(a.quarter[i], b.quarter[i]); });
  }
  friend F64x8 operator-(F64x8 a, F64x8 b) {
    return map_quarters<F64x8>([&](int i) { return vsubq_f64(a.quarter[i], b.quarter[i]); });
  }
  friend F64x8 operator*(F64x8 a, F64x8 b) {
    return map_quarters<F64x8>([&](int i) { return vmulq_f64(a.quarter[i], b.quarter[i]); });
  }
  friend F64x8 operator/(F64x8 a, F64x8 b) {
    return map_quarters<F64x8>([&](int i) { return vdivq_f64(a.quarter[i], b.quarter[i]); });
  }
  static F64x8 fma(F64x8 a, F64x8 b, F64x8 c) {
    return map_quarters<F64x8>([&](int i) { return vfmaq_f64(c.quarter[i], a.quarter[i], b.quarter[i]); });
  }
  static F64x8 max(F64x8 a, F64x8 b) {
    return map_quarters<F64x8>(
        [&](int i) { return vbslq_f64(vcgtq_f64(a.quarter[i], b.quarter[i]), a.quarter[i], b.quarter[i]); });
  }
  static F64x8 where_less(F64x8 a, F64x8 b, F64x8 x, F64x8 y) {
    return map_quarters<F64x8>(
        [&](int i) { return vbslq_f64(vcltq_f64(a.quarter[i], b.quarter[i]), x.quarter[i], y.quarter[i]); });
  }
  static F64x8 abs(F64x8 a) {
    return map_quarters<F64x8>([&](int i) { return vabsq_f64(a.quarter[i]); });
  }
  static F64x8 with_sign_of(F64x8 a, F64x8 b) {
    return map_quarters<F64x8>(
        [&](int i) { return vbslq_f64(vdupq_n_u64(uint64_t{1} << 63), b.quarter[i], a.quarter[i]); });
  }
  static F64x8 nearest(F64x8 a) {
    return map_quarters<F64x8>([&](int i) { return vrndnq_f64(a.quarter[i]); });
  }
  static F64x8 scale_exponent(F64x8 p, F64x8 n) {
    return map_quarters<F64x8>([&](int i) {
      const int64x2_t shift = vshlq_n_s64(vcvtnq_s64_f64(n.quarter[i]), 52);
      return vreinterpretq_f64_s64(vaddq_s64(vreinterpretq_s64_f64(p.quarter[i]), shift));
    });
  }
  static F64x8 zero_where_less(F64x8 x, F64x8 bound, F64x8 value) {
    return map_quarters<F64x8>([&](int i) {
      return vreinterpretq_f64_u64(
          vbicq_u64(vreinterpretq_u64_f64(value.quarter[i]), vcltq_f64(x.quarter[i], bound.quarter[i])));
    });
  }
  static double reduce_max(F64x8 a) {
    double lane[8], result;
    a.store(lane);
    result = lane[0];
    for (int i = 1; i < 8; ++i) result = result > lane[i] ? result : lane[i];
    return result;
  }
  static double reduce_sum(F64x8 a) {
    return vaddvq_f64(vaddq_f64(vaddq_f64(a.quarter[0], a.quarter[2]), vaddq_f64(a.quarter[1], a.quarter[3])));
  }
  static void store_transposed(const F64x8 (&rows)[8], double* to, int64_t stride, int64_t columns) {
    for (int r = 0; r < 8; r += 2) {
      for (int q = 0; q < 4 && 2 * q < columns; ++q) {
        vst1q_f64(to + 2 * q * stride + r, vzip1q_f64(rows[r].quarter[q], rows[r + 1].quarter[q]));
        if (2 * q + 1 < columns)
          vst1q_f64(to + (2 * q + 1) * stride + r, vzip2q_f64(rows[r].quarter[q], rows[r + 1].quarter[q]));
      }
    }
  }
};

}  // namespace tessera::cpu::TESSERA_CPU_ISA
