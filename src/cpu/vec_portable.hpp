// The kernels' vector types for any machine: sixteen floats or eight doubles in four 16-byte vectors of the compiler's
// own vector extension, which becomes SSE2, NEON or plain scalars. Same members as vec_avx2.hpp.
// fma here is a product and a sum: without an instruction for it, a correct one costs a library call a lane.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "convert.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

// What both types share: T lanes in four quarters Q, with I the integer vector that comparisons of Q give.
template <class Self, class T, class Q, class I>
struct PortableVector {
  using Scalar = T;
  static constexpr int kQuarter = sizeof(Q) / sizeof(T), kLanes = 4 * kQuarter;
  static constexpr int kRows = 3, kVecs = 1;  // 12 accumulators of SSE2's 16 registers

  Q quarter[4];

  template <class F>
  static Self map(F&& f) {
    Self result;
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) result.quarter[i] = f(i);
    return result;
  }
  static Self load(const void* p) {
    Self result;
    std::memcpy(result.quarter, p, sizeof result.quarter);
    return result;
  }
  void store(void* p) const { std::memcpy(p, quarter, sizeof quarter); }
  static Self broadcast(T x) {
    Q all;
    for (int i = 0; i < kQuarter; ++i) all[i] = x;  // not Q{} + x, which would lose the sign of -0
    return map([all](int) { return all; });
  }
  static Self zero() { return broadcast(T(0)); }
  static Self iota() {
    T lane[kLanes];
    for (int i = 0; i < kLanes; ++i) lane[i] = T(i);
    return load(lane);
  }

  friend Self operator+(Self a, Self b) {
    return map([&](int i) { return a.quarter[i] + b.quarter[i]; });
  }
  friend Self operator-(Self a, Self b) {
    return map([&](int i) { return a.quarter[i] - b.quarter[i]; });
  }
  friend Self operator*(Self a, Self b) {
    return map([&](int i) { return a.quarter[i] * b.quarter[i]; });
  }
  friend Self operator/(Self a, Self b) {
    return map([&](int i) { return a.quarter[i] / b.quarter[i]; });
  }
  static Self fma(Self a, Self b, Self c) {
    return map([&](int i) { return a.quarter[i] * b.quarter[i] + c.quarter[i]; });
  }
  static Q select(I mask, Q x, Q y) { return Q((mask & I(x)) | (~mask & I(y))); }
  static Self max(Self a, Self b) {
    return map([&](int i) { return select(I(a.quarter[i] > b.quarter[i]), a.quarter[i], b.quarter[i]); });
  }
  static Self where_less(Self a, Self b, Self x, Self y) {
    return map([&](int i) { return select(I(a.quarter[i] < b.quarter[i]), x.quarter[i], y.quarter[i]); });
  }
  static Self zero_where_less(Self x, Self bound, Self value) {
    return map([&](int i) { return Q(~I(x.quarter[i] < bound.quarter[i]) & I(value.quarter[i])); });
  }
  static Self abs(Self a) {
    return map([&](int i) { return Q(I(a.quarter[i]) & ~I(-Q{})); });
  }
  static Self with_sign_of(Self a, Self b) {
    return map([&](int i) { return Q(I(a.quarter[i]) | (I(b.quarter[i]) & I(-Q{}))); });
  }
  static T reduce_max(Self a) {
    T lane[kLanes];
    a.store(lane);
    T result = lane[0];
    for (int i = 1; i < kLanes; ++i) result = result > lane[i] ? result : lane[i];
    return result;
  }
  static T reduce_sum(Self a) {
    T lane[kLanes];
    a.store(lane);
    for (int width = kLanes / 2; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
    }
    return lane[0];
  }
  static void store_transposed(const Self (&rows)[kLanes], T* to, int64_t stride, int64_t columns) {
    T lane[kLanes][kLanes];
    for (int r = 0; r < kLanes; ++r) rows[r].store(lane[r]);
    for (int64_t c = 0; c < columns && c < kLanes; ++c) {
      for (int r = 0; r < kLanes; ++r) to[c * stride + r] = lane[r][c];
    }
  }
};

typedef float FloatQuarter __attribute__((vector_size(16)));
typedef int32_t IntQuarter __attribute__((vector_size(16)));
typedef double DoubleQuarter __attribute__((vector_size(16)));
typedef int64_t LongQuarter __attribute__((vector_size(16)));
// Exponents are added as unsigned bits: for a score far below the maximum the sum wraps, and the lane is zeroed later.
typedef uint32_t IntBits __attribute__((vector_size(16)));
typedef uint64_t LongBits __attribute__((vector_size(16)));

struct F32x16 : PortableVector<F32x16, float, FloatQuarter, IntQuarter> {
  // 1.5 * 2^23 + x has its last place at 1, so the sum rounds to nearest even; beyond 2^22 x is kept within reach.
  static F32x16 nearest(F32x16 a) {
    const F32x16 bounded = where_less(a, broadcast(-0x1p22f), broadcast(-0x1p22f), a);
    const F32x16 magic = broadcast(0x1.8p23f);
    return (bounded + magic) - magic;
  }
  static F32x16 scale_exponent(F32x16 p, F32x16 n) {
    return map([&](int i) {
      const FloatQuarter whole = n.quarter[i] + 0x1.8p23f;
      const FloatQuarter scaled = FloatQuarter(IntBits(p.quarter[i]) + (IntBits(whole) << 23));
      return select(IntQuarter(p.quarter[i] == p.quarter[i]), scaled, p.quarter[i]);
    });
  }
  static F32x16 load_i8(const void* p) {
    const auto* stored = static_cast<const int8_t*>(p);
    float lane[16];
    for (int i = 0; i < 16; ++i) lane[i] = stored[i];
    return load(lane);
  }
  // Lane l of the result is the sum of rows[l].
  static F32x16 sum_lanes(const F32x16 (&rows)[16]) {
    float lane[16];
    for (int i = 0; i < 16; ++i) lane[i] = reduce_sum(rows[i]);
    return load(lane);
  }
  static F32x16 load_f16(const void* p) {
    return load_16bit(p, [](uint16_t h) { return float_from_f16(h); });
  }
  static constexpr bool kBf16Interleaved = false;  // see load_pair
  static F32x16 load_bf16(const void* p) {
    return load_16bit(p, [](uint16_t h) { return float_from_bf16(h); });
  }
  void store_f16(void* p) const {
    store_16bit(p, [](float x) { return f16_from_float(x); });
  }
  void store_bf16(void* p) const {
    store_16bit(p, [](float x) { return bf16_from_float(x); });
  }

 private:
  template <class F>
  static F32x16 load_16bit(const void* p, F&& widen) {
    uint16_t half[16];
    float lane[16];
    std::memcpy(half, p, sizeof half);
    for (int i = 0; i < 16; ++i) lane[i] = widen(half[i]);
    return load(lane);
  }
  template <class F>
  void store_16bit(void* p, F&& narrow) const {
    uint16_t half[16];
    float lane[16];
    store(lane);
    for (int i = 0; i < 16; ++i) half[i] = narrow(lane[i]);
    std::memcpy(p, half, sizeof half);
  }
};

struct F64x8 : PortableVector<F64x8, double, DoubleQuarter, LongQuarter> {
  static F64x8 nearest(F64x8 a) {
    const F64x8 bounded = where_less(a, broadcast(-0x1p50), broadcast(-0x1p50), a);
    const F64x8 magic = broadcast(0x1.8p52);
    return (bounded + magic) - magic;
  }
  static F64x8 scale_exponent(F64x8 p, F64x8 n) {
    return map([&](int i) {
      const DoubleQuarter whole = n.quarter[i] + 0x1.8p52;
      const DoubleQuarter scaled = DoubleQuarter(LongBits(p.quarter[i]) + (LongBits(whole) << 52));
      return select(LongQuarter(p.quarter[i] == p.quarter[i]), scaled, p.quarter[i]);
    });
  }
};

}  // namespace tessera::cpu::TESSERA_CPU_ISA
