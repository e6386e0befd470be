// Eight neighbouring elements of a row as one access where they are aligned: what kernels that memory bounds load.
#pragma once

#include <cstdint>

#include "append_params.hpp"
#include "element_io.cuh"

namespace tessera::cuda {

// Up to 8 neighbouring elements.
struct Unit {
  float x[kAppendUnit];
};

__device__ __forceinline__ Unit load_unit(const char* row, int32_t dtype, int first, int count, bool aligned) {
  Unit unit{};
  const char* from = row + static_cast<int64_t>(first) * (dtype == TESSERA_F32 ? 4 : 2);
  if (!aligned || count < kAppendUnit) {
#pragma unroll
    for (int i = 0; i < kAppendUnit; ++i) {
      if (i < count) unit.x[i] = load_number<float>(from, dtype, i);
    }
    return unit;
  }
  if (dtype == TESSERA_F32) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float4 four = reinterpret_cast<const float4*>(from)[i];
      unit.x[4 * i] = four.x, unit.x[4 * i + 1] = four.y, unit.x[4 * i + 2] = four.z, unit.x[4 * i + 3] = four.w;
    }
    return unit;
  }
  const uint4 eight = *reinterpret_cast<const uint4*>(from);
  const uint32_t pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool f16 = dtype == TESSERA_F16;
    unit.x[2 * i] = f16 ? ptx::unpack_f16(static_cast<uint16_t>(pairs[i])) : __uint_as_float(pairs[i] << 16);
    unit.x[2 * i + 1] =
        f16 ? ptx::unpack_f16(static_cast<uint16_t>(pairs[i] >> 16)) : __uint_as_float(pairs[i] & 0xffff0000u);
  }
  return unit;
}

}  // namespace tessera::cuda
