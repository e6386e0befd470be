// Loads that say what becomes of the line: one function an instruction. Source: PTX ISA, "Cache Operators".
#pragma once

#include <cstdint>

#ifdef TESSERA_EMULATED
#include "emulator/ptx/load.hpp"
#else

namespace tessera::cuda::ptx {

// 16 bytes that will not be read again: their line is the first to go. PTX ISA: ld.global.cs.
__device__ __forceinline__ uint4 load_last(const uint4* from) { return __ldcs(from); }

// Brings the line to L2. Reads nothing, so it may stand before a wait for those who write there. PTX ISA: prefetch.
__device__ __forceinline__ void prefetch(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(from)));
}

}  // namespace tessera::cuda::ptx

#endif
