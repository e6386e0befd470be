// What the emulated encoder keeps in the bytes of a CUtensorMap.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "where.hpp"

namespace tessera::emulator {

struct TensorMap {
  uint64_t magic;
  const char* data;
  uint64_t stride[4];  // bytes, of dimensions 1 and later
  uint32_t extent[5];  // minus 1
  uint16_t box[5];
  uint8_t rank, element_bytes;
  uint16_t span;  // bytes of the swizzled span; 0: none
};
static_assert(sizeof(TensorMap) <= sizeof(CUtensorMap));

// The map that an instruction was given; ends the run where it is none.
TensorMap read_tensor_map(const void* map, Where where);

}  // namespace tessera::emulator
