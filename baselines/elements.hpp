// Element types for host code that is not a kernel: exact decoding to float64 and correctly rounded encoding, written
// from the formats' definitions (IEEE 754 binary16, bfloat16, OCP 8-bit E4M3) so that no kernel's conversion judges
// itself.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::baselines {

// One value at an address. Storing rounds to nearest even; e4m3, int8 and u8 saturate, NaN becomes 0 in the integers.
double load_element(int32_t dtype, const void* base, int64_t index);
void store_element(int32_t dtype, void* base, int64_t index, double value);

// `count` neighbours at once, for the loops that copy whole rows.
void load_row(int32_t dtype, const void* base, int64_t index, int64_t count, double* values);
void load_row(int32_t dtype, const void* base, int64_t index, int64_t count, float* values);
void store_row(int32_t dtype, void* base, int64_t index, int64_t count, const double* values);

// `value` as it comes back from storage as `dtype`.
double round_to(int32_t dtype, double value);
void round_row(int32_t dtype, float* values, int64_t count);
void round_row(int32_t dtype, double* values, int64_t count);

}  // namespace tessera::baselines
