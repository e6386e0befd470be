// The elementwise half of the textbook method on one row of scores, compiled once an instruction set.
#pragma once

#include <cstdint>

#include "device_info.hpp"

namespace tessera::baselines {

// A row may be written up to the next multiple of this many elements.
inline constexpr int64_t kRowPadding = 16;

template <class T>
struct RowFunctions {
  // In place: row[j] becomes exp(row[j] - m) on [begin, end) and 0 elsewhere on [0, count), m the largest of the row
  // and `sink`. *lse is the logarithm of the sum with the sink, the result the factor that normalises the row: 0 for a
  // row that is -inf throughout.
  T (*softmax)(T* row, int64_t begin, int64_t end, int64_t count, T sink, T* lse);
  // row[j] = cap * tanh(row[j] / cap) on [begin, end).
  void (*softcap)(T* row, int64_t begin, int64_t end, T cap);
  // row[j] -= slope * |diagonal - j| on [begin, end).
  void (*alibi)(T* row, int64_t begin, int64_t end, T slope, int64_t diagonal);
  // f16 and bf16 bits to numbers.
  void (*from_half)(const uint16_t* bits, int64_t count, T* values);
  void (*from_bfloat)(const uint16_t* bits, int64_t count, T* values);
};

// One set of functions an instruction set: portable, avx2 and avx512.
template <core::Isa isa, class T>
const RowFunctions<T>& row_functions();
template <>
const RowFunctions<float>& row_functions<core::Isa::portable, float>();
template <>
const RowFunctions<double>& row_functions<core::Isa::portable, double>();
template <>
const RowFunctions<float>& row_functions<core::Isa::avx2, float>();
template <>
const RowFunctions<double>& row_functions<core::Isa::avx2, double>();
template <>
const RowFunctions<float>& row_functions<core::Isa::avx512, float>();
template <>
const RowFunctions<double>& row_functions<core::Isa::avx512, double>();

}  // namespace tessera::baselines
