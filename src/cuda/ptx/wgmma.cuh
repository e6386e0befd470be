// What surrounds wgmma.mma_async: fences, groups, operand descriptors and the registers of a warp's role. sm_90a.
// Executed by the 128 threads of a warpgroup, converged. Source: PTX ISA, "Asynchronous Warpgroup Level Matrix
// Instructions" and "Miscellaneous Instructions: setmaxnreg".
#pragma once

#include <cstdint>

#include "half_type.hpp"

#ifdef TESSERA_EMULATED
#include "emulator/ptx/wgmma.hpp"
#else

#include "wgmma_bytes.cuh"
#include "wgmma_products.cuh"

namespace tessera::cuda::ptx {

// Orders register accesses before the wgmma that follow. PTX ISA: wgmma.fence.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Closes the group of the wgmma so far. PTX ISA: wgmma.commit_group.
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most kPending of the latest groups are open. PTX ISA: wgmma.wait_group.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// No instruction: keeps the compiler from moving accesses to accumulators across the wait before it.
template <int kColumns>
__device__ __forceinline__ void pin(float (&d)[kColumns][4]) {
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(d[n][e])::"memory");
  }
}

// Registers a thread of this warpgroup from here on. PTX ISA: setmaxnreg, executed by all warps of the warpgroup.
template <int kRegisters>
__device__ __forceinline__ void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace tessera::cuda::ptx

#endif

namespace tessera::cuda::ptx {

// Shared-memory operand of wgmma: swizzled rows of kSpan bytes (128, 64 or 32), as TMA writes them. `leading`: bytes to
// the next kSpan bytes of columns, used by MN-major operands only. PTX ISA: "Matrix Descriptor Format".
template <int kSpan>
__device__ __forceinline__ uint64_t matrix_descriptor(uint32_t shared_address, uint32_t leading) {
  static_assert(kSpan == 128 || kSpan == 64 || kSpan == 32);
  constexpr uint64_t kMode = kSpan == 128 ? 1 : kSpan == 64 ? 2 : 3, kEightRows = 8 * kSpan;
  return uint64_t{(shared_address & 0x3ffff) >> 4} | uint64_t{leading >> 4} << 16 | (kEightRows >> 4) << 32 |
         kMode << 62;
}

}  // namespace tessera::cuda::ptx
