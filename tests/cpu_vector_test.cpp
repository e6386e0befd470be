// The vector types, exp, tanh, conversions, transposes and register blocks of every instruction set that this machine
// has, against double or long double arithmetic and, for 16-bit types, against a decoding of their own.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "cpu/convert.hpp"
#include "cpu_isa/functions.hpp"
#include "device_info.hpp"

namespace tessera::test {
namespace {

std::vector<const IsaFunctions*> machine_sets() {
  std::vector<const IsaFunctions*> sets = {&kPortableFunctions};
#if defined(__x86_64__)
  const core::Isa isa = core::cpu_info().isa;
  if (isa >= core::Isa::avx2) sets.push_back(&kAvx2Functions);
  if (isa >= core::Isa::avx512) sets.push_back(&kAvx512Functions);
#endif
  return sets;
}

template <class T>
const VectorFunctions<T>& functions(const IsaFunctions& set) {
  if constexpr (sizeof(T) == 8) {
    return set.f64;
  } else {
    return set.f32;
  }
}

template <class T>
T quiet_nan(uint64_t payload) {
  if constexpr (sizeof(T) == 8) {
    const uint64_t bits = 0x7FF8000000000000u | payload;
    T value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  } else {
    return cpu::float_from_bits(0x7FC00000u | static_cast<uint32_t>(payload));
  }
}

// Largest relative error of exp2 in units of epsilon over [-range, 0].
template <class T>
double exp2_error(const VectorFunctions<T>& f, double range) {
  constexpr int64_t kCount = 1 << 18;
  std::vector<T> x(kCount), y(kCount);
  for (int64_t i = 0; i < kCount; ++i) x[i] = T(-range * double(i) / double(kCount - 1));
  f.exp2(x.data(), y.data(), kCount);
  double worst = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    const long double exact = exp2l(static_cast<long double>(x[i]));
    worst = std::max(worst, double(fabsl((static_cast<long double>(y[i]) - exact) / exact)));
    EXPECT_LE(y[i], T(1)) << x[i];
  }
  return worst / std::numeric_limits<T>::epsilon();
}

template <class T>
void check_exp2(const IsaFunctions& set, T least) {
  const VectorFunctions<T>& f = functions<T>(set);
  // Half a unit for the last rounding, as much for the polynomial's sum.
  EXPECT_LE(exp2_error(f, 1.0), 1.0) << set.name;
  EXPECT_LE(exp2_error(f, -double(least)), 1.0) << set.name;
  constexpr T kInf = std::numeric_limits<T>::infinity();
  std::vector<T> x = {T(0),
                      T(-0.0),
                      -kInf,
                      least,
                      std::nextafter(least, -kInf),
                      T(-1e30),
                      std::numeric_limits<T>::lowest(),
                      T(-1),
                      quiet_nan<T>(0),
                      quiet_nan<T>(1),
                      quiet_nan<T>(511),
                      quiet_nan<T>(12345),
                      -quiet_nan<T>(7),
                      T(-64),
                      T(-0.5),
                      T(-1.5)};
  std::vector<T> y(16, T(7));
  f.exp2(x.data(), y.data(), 16);
  EXPECT_EQ(y[0], T(1)) << set.name;
  EXPECT_EQ(y[1], T(1)) << set.name;
  for (int i : {2, 4, 5, 6}) {
    EXPECT_EQ(y[i], T(0)) << set.name << ' ' << x[i];
    EXPECT_FALSE(std::signbit(y[i])) << set.name << ' ' << x[i];
  }
  EXPECT_EQ(y[3], std::numeric_limits<T>::min()) << set.name;
  EXPECT_EQ(y[7], T(0.5)) << set.name;
  for (int i = 8; i < 13; ++i) EXPECT_TRUE(std::isnan(y[i])) << set.name << ' ' << i;
  EXPECT_EQ(y[13], T(std::ldexp(1.0, -64))) << set.name;
}

template <class T>
void check_tanh(const IsaFunctions& set) {
  const VectorFunctions<T>& f = functions<T>(set);
  constexpr int64_t kCount = 1 << 16;
  std::vector<T> x(kCount), y(kCount);
  // Magnitudes from 1e-12 to 1e3, both signs.
  for (int64_t i = 0; i < kCount; ++i)
    x[i] = T(std::pow(10.0, -12.0 + 15.0 * double(i) / kCount) * (i % 2 == 0 ? 1 : -1));
  f.tanh(x.data(), y.data(), kCount);
  double worst = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    const long double exact = tanhl(static_cast<long double>(x[i]));
    worst = std::max(worst, double(fabsl((static_cast<long double>(y[i]) - exact) / exact)));
    EXPECT_LE(std::abs(y[i]), T(1));
  }
  EXPECT_LE(worst, 4 * std::numeric_limits<T>::epsilon()) << set.name;
  constexpr T kInf = std::numeric_limits<T>::infinity();
  std::vector<T> edge = {T(0), T(-0.0), kInf, -kInf, T(1e30), T(-1e30), quiet_nan<T>(3), std::numeric_limits<T>::max()};
  edge.resize(16, T(0));
  std::vector<T> out(16);
  f.tanh(edge.data(), out.data(), 16);
  const T expected[] = {T(0), T(-0.0), T(1), T(-1), T(1), T(-1), T(0), T(1)};
  for (int i : {0, 1, 2, 3, 4, 5, 7}) {
    EXPECT_EQ(out[i], expected[i]) << set.name << ' ' << edge[i];
    EXPECT_EQ(std::signbit(out[i]), std::signbit(expected[i])) << set.name << ' ' << edge[i];
  }
  EXPECT_TRUE(std::isnan(out[6])) << set.name;
}

TEST(CpuVector, Exp2IsExactAtZeroAndWithinOneUnit) {
  for (const IsaFunctions* set : machine_sets()) {
    check_exp2<float>(*set, -126.0f);
    check_exp2<double>(*set, -1022.0);
  }
}

TEST(CpuVector, TanhKeepsItsRelativeAccuracyAndSaturates) {
  for (const IsaFunctions* set : machine_sets()) {
    check_tanh<float>(*set);
    check_tanh<double>(*set);
  }
}

// binary16 and bfloat16 by their definition, without a table of cases shared with the library.
double decode(uint16_t bits, int exponent_bits) {
  const int fraction_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits & 0x7FFF) >> fraction_bits, fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) return fraction != 0 ? std::nan("") : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(double(fraction), 1 - bias - fraction_bits);
  return sign * std::ldexp(double(fraction + (1 << fraction_bits)), exponent - bias - fraction_bits);
}

// The nearest pattern to `value`, ties to even, by bisection over the magnitudes.
uint16_t encode(double value, int exponent_bits) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0,
                 infinity = static_cast<uint16_t>(((1 << exponent_bits) - 1) << (15 - exponent_bits));
  const double magnitude = std::abs(value);
  uint16_t low = 0, high = infinity;  // decode(low) <= magnitude < decode(high), but for infinity
  if (std::isinf(magnitude)) return sign | infinity;
  while (high - low > 1) {
    const uint16_t middle = static_cast<uint16_t>((low + high) / 2);
    (decode(middle, exponent_bits) <= magnitude ? low : high) = middle;
  }
  const double below = decode(low, exponent_bits);
  // Above the largest finite value the next one would be a power of two: the tie lies half way to it.
  const double above = high == infinity
                           ? 2 * decode(static_cast<uint16_t>(infinity - (1 << (15 - exponent_bits))), exponent_bits)
                           : decode(high, exponent_bits);
  const double down = magnitude - below, up = above - magnitude;
  return sign | (down < up || (down == up && low % 2 == 0) ? low : high);
}

struct HalfFormat {
  const char* name;
  int exponent_bits;
  void (*load)(const uint16_t*, float*, int64_t);
  void (*store)(const float*, uint16_t*, int64_t);
};

void check_every_pattern(const char* set, const HalfFormat& format) {
  std::vector<uint16_t> bits(65536), back(65536);
  std::vector<float> wide(65536);
  for (int i = 0; i < 65536; ++i) bits[i] = static_cast<uint16_t>(i);
  format.load(bits.data(), wide.data(), 65536);
  format.store(wide.data(), back.data(), 65536);
  for (int i = 0; i < 65536; ++i) {
    const double exact = decode(bits[i], format.exponent_bits);
    if (std::isnan(exact)) {
      EXPECT_TRUE(std::isnan(wide[i])) << set << ' ' << format.name << ' ' << i;
      EXPECT_TRUE(std::isnan(decode(back[i], format.exponent_bits))) << set << ' ' << format.name << ' ' << i;
    } else {
      EXPECT_EQ(double(wide[i]), exact) << set << ' ' << format.name << ' ' << i;
      EXPECT_EQ(back[i], bits[i]) << set << ' ' << format.name << ' ' << i;
    }
  }
}

// Half-way points between neighbours and the floats next to them, where rounding goes wrong first.
void check_rounding(const char* set, const HalfFormat& format) {
  std::vector<float> values;
  for (uint32_t i = 0; i < 0x8000; i += 3) {
    const double low = decode(static_cast<uint16_t>(i), format.exponent_bits),
                 high = decode(static_cast<uint16_t>(i + 1), format.exponent_bits);
    if (!std::isfinite(low) || !std::isfinite(high)) continue;
    const float tie = static_cast<float>((low + high) / 2);
    for (float value : {tie, std::nextafter(tie, 0.0f), std::nextafter(tie, INFINITY)})
      values.push_back(i % 2 == 0 ? value : -value);
  }
  for (float value :
       {65504.0f, 65519.996f, 65520.0f, 65536.0f, 3.4e38f, 3.3961e38f, INFINITY, -INFINITY, 1e-45f, 2.98e-8f, 2.99e-8f})
    values.push_back(value);
  values.resize((values.size() + 15) / 16 * 16, 0.0f);
  std::vector<uint16_t> bits(values.size());
  format.store(values.data(), bits.data(), static_cast<int64_t>(values.size()));
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(bits[i], encode(values[i], format.exponent_bits)) << set << ' ' << format.name << ' ' << values[i];
  }
}

TEST(CpuVector, SixteenBitConversionsAreExactForEveryPattern) {
  for (const IsaFunctions* set : machine_sets()) {
    for (const HalfFormat& format : {HalfFormat{"f16", 5, set->load_f16, set->store_f16},
                                     HalfFormat{"bf16", 8, set->load_bf16, set->store_bf16}}) {
      check_every_pattern(set->name, format);
      check_rounding(set->name, format);
    }
  }
}

template <class T>
void check_lanes(const IsaFunctions& set) {
  const VectorFunctions<T>& f = functions<T>(set);
  const int n = f.lanes;
  std::vector<T> matrix(static_cast<size_t>(n) * n);
  for (int i = 0; i < n * n; ++i) matrix[i] = T(i + 1);
  EXPECT_EQ(f.sum(matrix.data()), T(n * (n + 1) / 2)) << set.name;
  for (int at = 0; at < n; ++at) {
    std::vector<T> lanes(n, T(-3));
    lanes[at] = T(-2);
    EXPECT_EQ(f.largest(lanes.data()), T(-2)) << set.name << ' ' << at;
  }
  for (int columns = 1; columns <= n; ++columns) {
    const int stride = n + 5;
    std::vector<T> out(static_cast<size_t>(n) * stride, T(-1));
    f.transpose(matrix.data(), out.data(), stride, columns);
    for (int c = 0; c < n; ++c) {
      for (int r = 0; r < stride; ++r) {
        const T expected = c < columns && r < n ? matrix[r * n + c] : T(-1);
        EXPECT_EQ(out[c * stride + r], expected) << set.name << ' ' << columns << ' ' << r << ' ' << c;
      }
    }
  }
}

TEST(CpuVector, ReductionsAndTransposes) {
  for (const IsaFunctions* set : machine_sets()) {
    check_lanes<float>(*set);
    check_lanes<double>(*set);
  }
}

template <class T>
std::vector<T> random_values(std::mt19937_64& random, size_t count) {
  std::normal_distribution<double> normal;
  std::vector<T> values(count);
  for (T& value : values) value = T(normal(random));
  return values;
}

template <class T>
void check_score_block(const IsaFunctions& set, int rows, int vecs, int64_t depth, std::mt19937_64& random) {
  const VectorFunctions<T>& f = functions<T>(set);
  const int width = vecs * f.lanes;
  const auto q = random_values<T>(random, static_cast<size_t>(depth * f.rows)),
             panel = random_values<T>(random, static_cast<size_t>(depth * width));
  std::vector<T> scores(static_cast<size_t>(f.rows * f.score_stride), T(99));
  f.score(rows, vecs, q.data(), panel.data(), depth, T(-0.25), scores.data());
  const double bound = 4 * std::numeric_limits<T>::epsilon() * double(depth);
  for (int r = 0; r < f.rows; ++r) {
    for (int c = 0; c < f.score_stride; ++c) {
      const T got = scores[r * f.score_stride + c];
      if (r >= rows || c >= width) {
        ASSERT_EQ(got, T(99)) << set.name << " wrote outside of its block at " << r << ", " << c;
        continue;
      }
      double exact = 0;
      for (int64_t k = 0; k < depth; ++k) exact += double(q[k * f.rows + r]) * double(panel[k * width + c]);
      ASSERT_NEAR(double(got), -0.25 * exact, bound) << set.name << ' ' << rows << 'x' << vecs << ' ' << depth;
    }
  }
}

template <class T>
void check_value_block(const IsaFunctions& set, int rows, int vecs, int64_t depth, std::mt19937_64& random) {
  const VectorFunctions<T>& f = functions<T>(set);
  const int width = vecs * f.lanes, stride = width + 3;
  const auto probs = random_values<T>(random, static_cast<size_t>(f.rows * f.score_stride)),
             panel = random_values<T>(random, static_cast<size_t>(depth * width));
  const auto alpha = random_values<T>(random, static_cast<size_t>(f.rows)),
             before = random_values<T>(random, static_cast<size_t>(f.rows * stride));
  std::vector<T> o = before;
  f.value(rows, vecs, probs.data(), panel.data(), depth, alpha.data(), o.data(), stride);
  const double bound = 4 * std::numeric_limits<T>::epsilon() * double(depth + 4);
  for (int r = 0; r < f.rows; ++r) {
    for (int c = 0; c < stride; ++c) {
      const size_t at = static_cast<size_t>(r * stride + c);
      if (r >= rows || c >= width) {
        ASSERT_EQ(o[at], before[at]) << set.name << " wrote outside of its block at " << r << ", " << c;
        continue;
      }
      double exact = double(before[at]) * double(alpha[r]);
      for (int64_t k = 0; k < depth; ++k) exact += double(probs[r * f.score_stride + k]) * double(panel[k * width + c]);
      ASSERT_NEAR(double(o[at]), exact, bound) << set.name << ' ' << rows << 'x' << vecs << ' ' << depth;
    }
  }
}

template <class T>
void check_blocks(const IsaFunctions& set) {
  std::mt19937_64 random(7);
  const VectorFunctions<T>& f = functions<T>(set);
  for (int rows = 1; rows <= f.rows; ++rows) {
    for (int vecs = 1; vecs <= f.vecs; ++vecs) {
      for (int64_t depth : {1, 2, 63, 128, 129, 576}) check_score_block<T>(set, rows, vecs, depth, random);
      for (int64_t depth : {0, 1, 7, 256}) check_value_block<T>(set, rows, vecs, depth, random);
    }
  }
}

TEST(CpuVector, ProductBlocksMatchLoopsAndStayInside) {
  for (const IsaFunctions* set : machine_sets()) {
    check_blocks<float>(*set);
    check_blocks<double>(*set);
  }
}

}  // namespace
}  // namespace tessera::test
