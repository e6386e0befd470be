#include "elements.hpp"

#include <bit>
#include <cmath>
#include <cstring>

#include "tessera/tessera.h"

namespace tessera::baselines {
namespace {

// A binary format with a sign, `exponent_bits`, `mantissa_bits` and subnormals. `finite_only` (E4M3): the all-ones
// exponent holds numbers too, all ones everywhere is NaN, and there is no infinity.
struct Format {
  int exponent_bits, mantissa_bits;
  bool finite_only;
};
constexpr Format kHalf{5, 10, false}, kBfloat16{8, 7, false}, kE4m3{4, 3, true};

template <Format f>
double decode(uint32_t bits) {
  constexpr int kBias = (1 << (f.exponent_bits - 1)) - 1;
  constexpr uint32_t kExponents = (1u << f.exponent_bits) - 1, kMantissas = (1u << f.mantissa_bits) - 1;
  const uint32_t mantissa = bits & kMantissas;
  const int exponent = static_cast<int>((bits >> f.mantissa_bits) & kExponents);
  const bool negative = ((bits >> (f.mantissa_bits + f.exponent_bits)) & 1u) != 0;
  double magnitude;
  if (exponent == static_cast<int>(kExponents) && (!f.finite_only || mantissa == kMantissas)) {
    magnitude = f.finite_only || mantissa != 0 ? NAN : INFINITY;
  } else if (exponent == 0) {
    magnitude = std::ldexp(static_cast<double>(mantissa), 1 - kBias - f.mantissa_bits);
  } else {
    // A normal number has the same fields in float64, with another bias and more mantissa bits.
    const uint64_t field = static_cast<uint64_t>(exponent - kBias + 1023) << 52;
    magnitude = std::bit_cast<double>(field | static_cast<uint64_t>(mantissa) << (52 - f.mantissa_bits));
  }
  return negative ? -magnitude : magnitude;
}

template <Format f>
uint32_t encode(double value) {
  constexpr int kBias = (1 << (f.exponent_bits - 1)) - 1;
  constexpr uint32_t kInfinity = ((1u << f.exponent_bits) - 1) << f.mantissa_bits;
  constexpr uint32_t kNan =
      f.finite_only ? kInfinity | ((1u << f.mantissa_bits) - 1) : kInfinity | (1u << (f.mantissa_bits - 1));
  const uint64_t bits = std::bit_cast<uint64_t>(value);
  const uint32_t sign = static_cast<uint32_t>(bits >> 63) << (f.exponent_bits + f.mantissa_bits);
  if (std::isnan(value)) return sign | kNan;
  constexpr uint32_t kLargest = f.finite_only ? kNan - 1 : kInfinity;
  const int exponent = static_cast<int>((bits >> 52) & 0x7ff) - 1023;
  if (exponent > kBias + 1) return sign | kLargest;
  if (exponent < 1 - kBias - f.mantissa_bits - 1) return sign;  // below half the smallest subnormal
  // Drop the low bits of the 53-bit significand; subnormals drop more. The rounding carry runs into the exponent.
  const bool subnormal = exponent < 1 - kBias;
  const int dropped = 52 - f.mantissa_bits + (subnormal ? 1 - kBias - exponent : 0);
  const uint64_t significand = (bits & ((uint64_t{1} << 52) - 1)) | uint64_t{1} << 52;
  uint64_t kept = significand >> dropped;
  const uint64_t rest = significand & ((uint64_t{1} << dropped) - 1), half = uint64_t{1} << (dropped - 1);
  if (rest > half || (rest == half && (kept & 1) != 0)) ++kept;
  const uint64_t base = subnormal ? 0 : static_cast<uint64_t>(exponent + kBias - 1) << f.mantissa_bits;
  const uint64_t magnitude = base + kept;
  return sign | (magnitude > kLargest ? kLargest : static_cast<uint32_t>(magnitude));
}

double clamp_integer(double value, double low, double high) {
  if (std::isnan(value)) return 0;
  return std::nearbyint(value < low ? low : value > high ? high : value);
}

// Calls visit(load, store) with the element functions of `dtype`; an unknown one reads as NaN and stores nothing.
template <class Visit>
void with_element(int32_t dtype, Visit visit) {
  const auto as = []<class T>(const void* base, int64_t i) {
    T value;
    std::memcpy(&value, static_cast<const std::byte*>(base) + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    return value;
  };
  const auto put = []<class T>(void* base, int64_t i, T value) {
    std::memcpy(static_cast<std::byte*>(base) + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
  };
  using In = const void*;
  switch (dtype) {
    case TESSERA_F64:
      return visit([=](In p, int64_t i) { return as.template operator()<double>(p, i); },
                   [=](void* p, int64_t i, double x) { put(p, i, x); });
    case TESSERA_F32:
      return visit([=](In p, int64_t i) { return double{as.template operator()<float>(p, i)}; },
                   [=](void* p, int64_t i, double x) { put(p, i, static_cast<float>(x)); });
    case TESSERA_F16:
      return visit([=](In p, int64_t i) { return decode<kHalf>(as.template operator()<uint16_t>(p, i)); },
                   [=](void* p, int64_t i, double x) { put(p, i, static_cast<uint16_t>(encode<kHalf>(x))); });
    case TESSERA_BF16:
      return visit([=](In p, int64_t i) { return decode<kBfloat16>(as.template operator()<uint16_t>(p, i)); },
                   [=](void* p, int64_t i, double x) { put(p, i, static_cast<uint16_t>(encode<kBfloat16>(x))); });
    case TESSERA_E4M3:
      return visit([=](In p, int64_t i) { return decode<kE4m3>(as.template operator()<uint8_t>(p, i)); },
                   [=](void* p, int64_t i, double x) { put(p, i, static_cast<uint8_t>(encode<kE4m3>(x))); });
    case TESSERA_INT8:
      return visit([=](In p, int64_t i) { return double(as.template operator()<int8_t>(p, i)); },
                   [=](void* p, int64_t i, double x) { put(p, i, static_cast<int8_t>(clamp_integer(x, -128, 127))); });
    case TESSERA_U8:
      return visit([=](In p, int64_t i) { return double(as.template operator()<uint8_t>(p, i)); },
                   [=](void* p, int64_t i, double x) { put(p, i, static_cast<uint8_t>(clamp_integer(x, 0, 255))); });
    default:
      return visit([](In, int64_t) { return double{NAN}; }, [](void*, int64_t, double) {});
  }
}

template <class T>
void load_row_as(int32_t dtype, const void* base, int64_t index, int64_t count, T* values) {
  with_element(dtype, [=](auto load, auto) {
    for (int64_t i = 0; i < count; ++i) values[i] = static_cast<T>(load(base, index + i));
  });
}

template <class T>
void round_row_as(int32_t dtype, T* values, int64_t count) {
  if (dtype == TESSERA_F64 || (dtype == TESSERA_F32 && sizeof(T) == sizeof(float))) return;
  with_element(dtype, [=](auto load, auto store) {
    uint64_t slot = 0;
    for (int64_t i = 0; i < count; ++i) {
      store(&slot, 0, static_cast<double>(values[i]));
      values[i] = static_cast<T>(load(&slot, 0));
    }
  });
}

}  // namespace

double load_element(int32_t dtype, const void* base, int64_t index) {
  double value = NAN;
  with_element(dtype, [&](auto load, auto) { value = load(base, index); });
  return value;
}

void store_element(int32_t dtype, void* base, int64_t index, double value) {
  with_element(dtype, [=](auto, auto store) { store(base, index, value); });
}

void load_row(int32_t dtype, const void* base, int64_t index, int64_t count, double* values) {
  load_row_as(dtype, base, index, count, values);
}

void load_row(int32_t dtype, const void* base, int64_t index, int64_t count, float* values) {
  load_row_as(dtype, base, index, count, values);
}

void store_row(int32_t dtype, void* base, int64_t index, int64_t count, const double* values) {
  with_element(dtype, [=](auto, auto store) {
    for (int64_t i = 0; i < count; ++i) store(base, index + i, values[i]);
  });
}

double round_to(int32_t dtype, double value) {
  round_row_as(dtype, &value, 1);
  return value;
}

void round_row(int32_t dtype, float* values, int64_t count) { round_row_as(dtype, values, count); }
void round_row(int32_t dtype, double* values, int64_t count) { round_row_as(dtype, values, count); }

}  // namespace tessera::baselines
