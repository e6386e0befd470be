// Additions and counters in global memory that several blocks share: one function an instruction. sm_80 and later.
// Source: PTX ISA, "Parallel Synchronization and Communication Instructions: red" and "ld".
#pragma once

#include <cstdint>

#ifdef TESSERA_EMULATED
#include "emulator/ptx/atomic.hpp"
#else

namespace tessera::cuda::ptx {

// *address += value, no order against anything. PTX ISA: red.relaxed.gpu.global.add.f32.
__device__ __forceinline__ void reduce_add(float* address, float value) {
  asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(address), "f"(value) : "memory");
}

// Whether reduce_add_v4() is there: the same in all code that a device can be given, which is compiled for sm_90 once
// more where it asks (src/CMakeLists.txt).
__device__ __forceinline__ constexpr bool has_reduce_add_v4() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  return true;
#else
  return false;
#endif
}

// Four neighbours, at a multiple of 16 bytes. sm_90. PTX ISA: red.relaxed.gpu.global.add.v4.f32.
__device__ __forceinline__ void reduce_add_v4(float* address, const float (&values)[4]) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address), "f"(values[0]),
               "f"(values[1]), "f"(values[2]), "f"(values[3])
               : "memory");
}

// *address += value after everything that this thread did before, and that others did before a barrier by which this
// thread knows of them (PTX ISA, "Causality Order"). PTX ISA: red.release.gpu.global.add.s32.
__device__ __forceinline__ void reduce_add_release(int32_t* address, int32_t value) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

// Reads a counter; what its writers did before is then seen. PTX ISA: ld.acquire.gpu.global.s32.
__device__ __forceinline__ int32_t load_acquire(const int32_t* address) {
  int32_t value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

// Reads a counter as it is, no order against anything. PTX ISA: ld.relaxed.gpu.global.u64.
__device__ __forceinline__ unsigned long long load_relaxed(const unsigned long long* address) {
  unsigned long long value;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}

__device__ __forceinline__ int32_t load_relaxed(const int32_t* address) {
  int32_t value;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

// Adds 1 and returns what was there, after everything that this thread did or saw before; what those did that added
// before is then seen. PTX ISA: atom.acq_rel.gpu.global.add.u64.
__device__ __forceinline__ unsigned long long arrive(unsigned long long* address) {
  unsigned long long value;
  asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], 1;" : "=l"(value) : "l"(address) : "memory");
  return value;
}

// Adds 1 and returns what was there. PTX ISA: atom.relaxed.gpu.global.add.u32.
__device__ __forceinline__ uint32_t fetch_increment(uint32_t* address) {
  uint32_t value;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;" : "=r"(value) : "l"(address) : "memory");
  return value;
}

}  // namespace tessera::cuda::ptx

#endif
