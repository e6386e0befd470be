// The CPU backward kernel for NEON, part of every aarch64 CPU.
#define TESSERA_CPU_ISA neon
#include "vec_neon.hpp"

#include "backward_build.hpp"

namespace tessera::cpu {
const BackwardKernel kBackwardNeon = neon::kBackwardKernel;
}  // namespace tessera::cpu
