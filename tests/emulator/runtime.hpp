// What the runtime says of a launch before it runs.
#pragma once

#include "launch.hpp"

namespace tessera::emulator {

// Sizes of grid and block, and the shared memory that cudaFuncSetAttribute allowed the kernel.
cudaError_t check_launch(const void* kernel, const Launch& launch);

}  // namespace tessera::emulator
