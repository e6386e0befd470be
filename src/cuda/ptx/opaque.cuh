// No instruction: a value whose origin the compiler no longer knows.
#pragma once

#ifdef TESSERA_EMULATED
#include "emulator/ptx/opaque.hpp"
#else

namespace tessera::cuda::ptx {

// The same number, made where it is used: what is computed from it is neither kept in registers over a loop nor
// computed in front of it.
__device__ __forceinline__ int opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}
__device__ __forceinline__ float opaque(float value) {
  asm volatile("" : "+f"(value));
  return value;
}
__device__ __forceinline__ unsigned long long opaque(unsigned long long value) {
  asm volatile("" : "+l"(value));
  return value;
}

}  // namespace tessera::cuda::ptx

#endif
