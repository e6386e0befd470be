// Copies from global to shared memory that pass by the registers: one function an instruction. sm_80 and later.
// Each thread waits for its own groups, then a barrier makes the bytes visible to the block; no proxy fence is needed.
// Source: PTX ISA, "Data Movement and Conversion Instructions: Non-bulk copy".
#pragma once

#include <cstdint>

#ifdef TESSERA_EMULATED
#include "emulator/ptx/copy_async.hpp"
#else

namespace tessera::cuda::ptx {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Copies `bytes` (0 or 16) to 16 bytes of shared memory, the rest zero; with 0 the source is not read.
// Both addresses are multiples of 16. PTX ISA: cp.async.cg.shared.global (src-size form), cached in L2 only.
__device__ __forceinline__ void copy_async_16(uint32_t shared, const void* global, uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes)
               : "memory");
}

// Closes the group of the thread's copies so far. PTX ISA: cp.async.commit_group.
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most kPending of the thread's latest groups are open. PTX ISA: cp.async.wait_group.
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace tessera::cuda::ptx

#endif
