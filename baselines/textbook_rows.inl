// Included by one thin source for each instruction set; the vectors are as wide as its registers. Everything stands in
// an unnamed namespace and uses no library template, so that no wider instruction reaches another source by way of the
// linker. exp(x) = 2^n * 2^f by rounding x log2(e) to n and a polynomial in f, |f| <= 1/2.

#include <cmath>
#include <cstring>

#include "textbook_rows.hpp"

namespace tessera::baselines {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

template <class T>
struct Traits;
template <>
struct Traits<float> {
  typedef float Vector __attribute__((vector_size(kVectorBytes)));
  typedef uint32_t Bits __attribute__((vector_size(kVectorBytes)));
  static constexpr int kMantissaBits = 23, kLowestExponent = -126;
  static constexpr float kRounder = 0x1.8p23f;  // adding it leaves the nearest integer in the low bits
  // 2^f interpolated in seven Chebyshev nodes on [-1/2, 1/2]: relative error 2.6e-9.
  static constexpr int kTerms = 7;
  static constexpr float kPower[kTerms] = {
      1.0f, 6.931472067e-1f, 2.402265092e-1f, 5.550327227e-2f, 9.618056779e-3f, 1.340042818e-3f, 1.546144470e-4f};
};
template <>
struct Traits<double> {
  typedef double Vector __attribute__((vector_size(kVectorBytes)));
  typedef uint64_t Bits __attribute__((vector_size(kVectorBytes)));
  static constexpr int kMantissaBits = 52, kLowestExponent = -1022;
  static constexpr double kRounder = 0x1.8p52;
  // Taylor's (ln 2)^k / k!: the first term left out is below 5e-18 on [-1/2, 1/2].
  static constexpr int kTerms = 14;
  static constexpr double kPower[kTerms] = {1.0,
                                            6.93147180559945309e-1,
                                            2.40226506959100712e-1,
                                            5.55041086648215800e-2,
                                            9.61812910762847716e-3,
                                            1.33335581464284434e-3,
                                            1.54035303933816099e-4,
                                            1.52527338040598403e-5,
                                            1.32154867901443095e-6,
                                            1.01780860092396997e-7,
                                            7.05491162080112333e-9,
                                            4.44553827187081150e-10,
                                            2.56784359934882051e-11,
                                            1.36914888539041289e-12};
};

template <class T>
using Vector = typename Traits<T>::Vector;
template <class T>
constexpr int64_t kLanes = kVectorBytes / static_cast<int64_t>(sizeof(T));

template <class T>
inline Vector<T> load(const T* from) {
  Vector<T> value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
inline void store(T* to, Vector<T> value) {
  std::memcpy(to, &value, sizeof value);
}

// exp(x) for x <= 0, 0 where the result would be subnormal; NaN stays NaN.
template <class T>
inline Vector<T> exp_negative(Vector<T> x) {
  using Info = Traits<T>;
  const Vector<T> power = x * static_cast<T>(1.4426950408889634074);
  const Vector<T> rounded = power + Info::kRounder;
  const Vector<T> fraction = power - (rounded - Info::kRounder);
  Vector<T> sum = Vector<T>{} + Info::kPower[Info::kTerms - 1];
  for (int term = Info::kTerms - 2; term >= 0; --term) sum = sum * fraction + Info::kPower[term];
  using Bits = typename Info::Bits;
  const Bits exponent = reinterpret_cast<Bits>(rounded) << Info::kMantissaBits;
  const Bits one = reinterpret_cast<Bits>(Vector<T>{} + T(1));
  const Vector<T> result = sum * reinterpret_cast<Vector<T>>(exponent + one);
  return power < static_cast<T>(Info::kLowestExponent) ? Vector<T>{} : result;
}

template <class T>
T largest(const T* row, int64_t begin, int64_t end) {
  // Four running maxima hide the latency of one.
  Vector<T> high[4];
  for (auto& one : high) one = Vector<T>{} - T(INFINITY);
  int64_t j = begin;
  for (; j + 4 * kLanes<T> <= end; j += 4 * kLanes<T>) {
    for (int part = 0; part < 4; ++part) {
      const Vector<T> x = load(row + j + part * kLanes<T>);
      high[part] = x > high[part] ? x : high[part];
    }
  }
  for (; j < end; j += kLanes<T>) {
    const Vector<T> x = load(row + j);
    high[0] = x > high[0] ? x : high[0];
  }
  T result = -T(INFINITY);
  for (const auto& one : high) {
    for (int64_t lane = 0; lane < kLanes<T>; ++lane) result = one[lane] > result ? one[lane] : result;
  }
  return result;
}

template <class T>
T softmax(T* row, int64_t begin, int64_t end, int64_t count, T sink, T* lse) {
  const int64_t first = begin / kLanes<T> * kLanes<T>, last = (end + kLanes<T> - 1) / kLanes<T> * kLanes<T>;
  for (int64_t j = 0; j < first; ++j) row[j] = 0;
  for (int64_t j = first; j < begin; ++j) row[j] = -T(INFINITY);
  for (int64_t j = end; j < last; ++j) row[j] = -T(INFINITY);
  for (int64_t j = last; j < count; ++j) row[j] = 0;
  const T own = largest(row, first, last), high = sink > own ? sink : own;
  // Subtracting 0 from a row of -inf and NaN keeps both.
  const T shift = high == -T(INFINITY) ? T(0) : high;
  Vector<T> sums = {};
  for (int64_t j = first; j < last; j += kLanes<T>) {
    const Vector<T> e = exp_negative<T>(load(row + j) - shift);
    store(row + j, e);
    sums += e;
  }
  T sum = 0;
  for (int64_t lane = 0; lane < kLanes<T>; ++lane) sum += sums[lane];
  if (own == -T(INFINITY) && sum == 0) {
    *lse = sink;
    return 0;
  }
  if (sink != -T(INFINITY)) sum += std::exp(sink - shift);
  *lse = shift + std::log(sum);
  return 1 / sum;
}

// tanh(y): near 0 the [7/6] Padé fraction (error below 1e-10 for |y| < 0.7), else from exp(-2|y|).
inline Vector<float> tanh_vector(Vector<float> y) {
  const Vector<float> magnitude = y < 0.0f ? -y : y, square = y * y;
  const Vector<float> over = y * (135135.0f + square * (17325.0f + square * (378.0f + square)));
  const Vector<float> under = 135135.0f + square * (62370.0f + square * (3150.0f + square * 28.0f));
  const Vector<float> e = exp_negative<float>(-2.0f * magnitude);
  const Vector<float> far = (1.0f - e) / (1.0f + e);
  return magnitude < 0.7f ? over / under : (y < 0.0f ? -far : far);
}

void softcap_f32(float* row, int64_t begin, int64_t end, float cap) {
  const float inverse = 1 / cap;
  int64_t j = begin;
  for (; j + kLanes<float> <= end; j += kLanes<float>) store(row + j, cap * tanh_vector(load(row + j) * inverse));
  for (; j < end; ++j) row[j] = cap * std::tanh(row[j] * inverse);
}

void softcap_f64(double* row, int64_t begin, int64_t end, double cap) {
  for (int64_t j = begin; j < end; ++j) row[j] = cap * std::tanh(row[j] / cap);
}

template <class T>
void alibi(T* row, int64_t begin, int64_t end, T slope, int64_t diagonal) {
  for (int64_t j = begin; j < end; ++j) {
    const int64_t distance = diagonal > j ? diagonal - j : j - diagonal;
    row[j] -= slope * static_cast<T>(distance);
  }
}

// A half is a float with 10 mantissa bits and another bias: shifted into place it is 2^112 too small, which also makes
// its subnormals right; infinities and NaN get the float's exponent.
template <class T>
void from_half(const uint16_t* bits, int64_t count, T* values) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t magnitude = (bits[i] & 0x7fffu) << 13, sign = (bits[i] & 0x8000u) << 16;
    float scaled;
    std::memcpy(&scaled, &magnitude, sizeof scaled);
    scaled *= 0x1p112f;
    uint32_t word;
    std::memcpy(&word, &scaled, sizeof word);
    word |= sign | (magnitude >= 0x0f800000u ? 0x7f800000u : 0u);
    float value;
    std::memcpy(&value, &word, sizeof value);
    values[i] = value;
  }
}

template <class T>
void from_bfloat(const uint16_t* bits, int64_t count, T* values) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t word = static_cast<uint32_t>(bits[i]) << 16;
    float value;
    std::memcpy(&value, &word, sizeof value);
    values[i] = value;
  }
}

constexpr RowFunctions<float> kFunctionsF32{softmax<float>, softcap_f32, alibi<float>, from_half<float>,
                                            from_bfloat<float>};
constexpr RowFunctions<double> kFunctionsF64{softmax<double>, softcap_f64, alibi<double>, from_half<double>,
                                             from_bfloat<double>};

}  // namespace
}  // namespace tessera::baselines
