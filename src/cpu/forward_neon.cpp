// The CPU forward kernel for NEON, part of every aarch64 CPU.
#define TESSERA_CPU_ISA neon
#include "vec_neon.hpp"

#include "forward.hpp"

namespace tessera::cpu {
const ForwardKernel kForwardNeon = neon::kForwardKernel;
}  // namespace tessera::cpu
