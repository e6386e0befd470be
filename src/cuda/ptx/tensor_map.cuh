// Tensor maps as instructions see them: one function an instruction. sm_90.
// Source: PTX ISA, "Data Movement and Conversion Instructions: prefetch".
#pragma once

#ifdef TESSERA_EMULATED
#include "emulator/ptx/tensor_map.hpp"
#else

namespace tessera::cuda::ptx {

// Fetches a tensor map of the kernel's parameters before the first copy needs it. PTX ISA: prefetch.tensormap.
__device__ __forceinline__ void prefetch_tensor_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

}  // namespace tessera::cuda::ptx

#endif
