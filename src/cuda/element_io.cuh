// One element of an array whose dtype is known at run time, for kernels that memory bounds.
#pragma once

#include <cstdint>

#include "ptx/math.cuh"
#include "tessera/tessera.h"

namespace tessera::cuda {

// Number is double where dtype is f64, float for f32, f16 and bf16.
template <class Number>
__device__ __forceinline__ Number load_number(const void* base, int32_t dtype, int64_t index) {
  if constexpr (sizeof(Number) == 8) {
    return static_cast<const double*>(base)[index];
  } else {
    if (dtype == TESSERA_F32) return static_cast<const float*>(base)[index];
    const uint16_t bits = static_cast<const uint16_t*>(base)[index];
    return dtype == TESSERA_F16 ? ptx::unpack_f16(bits) : __uint_as_float(uint32_t{bits} << 16);
  }
}

__device__ __forceinline__ void store_number(void* base, int32_t, int64_t index, double value) {
  static_cast<double*>(base)[index] = value;
}
__device__ __forceinline__ void store_number(void* base, int32_t dtype, int64_t index, float value) {
  if (dtype == TESSERA_F32) {
    static_cast<float*>(base)[index] = value;
  } else {
    const uint32_t pair = dtype == TESSERA_F16 ? ptx::pack_f16(value, 0.0f) : ptx::pack_bf16(value, 0.0f);
    static_cast<uint16_t*>(base)[index] = static_cast<uint16_t>(pair);
  }
}

}  // namespace tessera::cuda
