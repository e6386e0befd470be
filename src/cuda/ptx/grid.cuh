// Launches of a stream that overlap: one function an instruction. sm_90 and later; before, a launch waits for all that
// came before it, and these do nothing.
// Source: PTX ISA, "Parallel Synchronization and Communication Instructions: griddepcontrol".
#pragma once

#ifdef TESSERA_EMULATED
#include "emulator/ptx/grid.hpp"
#else

namespace tessera::cuda::ptx {

// Waits until the launches before have ended and what they wrote is seen. A kernel that overlaps them touches before it
// what they do not write or it reads again, and no block ends without it: who waits for this one waits for those too.
// PTX ISA: griddepcontrol.wait.
__device__ __forceinline__ void wait_for_grids_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next launch begin, if it is one that overlaps, once every block is here or has ended.
// PTX ISA: griddepcontrol.launch_dependents.
__device__ __forceinline__ void let_next_grid_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace tessera::cuda::ptx

#endif
