// Rows of the same kind as the library's, chosen only by name: cpu.reference, cpu.textbook, cpu.fa1*, and theirs on
// CUDA. Linked into CLI, tests and benches, never into the library.
#pragma once

#include "kernel_entry.hpp"

namespace tessera::baselines {

core::KernelList kernels();

}  // namespace tessera::baselines
