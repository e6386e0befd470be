// Barriers among some of a block's warps, by number. sm_80 and later; every thread of the named warps takes part.
// Source: PTX ISA, "Parallel Synchronization and Communication Instructions: barrier".
#pragma once

#include <cstdint>

#ifdef TESSERA_EMULATED
#include "emulator/ptx/barrier.hpp"
#else

namespace tessera::cuda::ptx {

// Waits until `threads` have arrived at barrier `id` (1 to 15), by sync or arrive. PTX ISA: barrier.sync.
__device__ __forceinline__ void barrier_sync(uint32_t id, uint32_t threads) {
  asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Arrives without waiting. PTX ISA: barrier.arrive.
__device__ __forceinline__ void barrier_arrive(uint32_t id, uint32_t threads) {
  asm volatile("barrier.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace tessera::cuda::ptx

#endif
