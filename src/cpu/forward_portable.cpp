// The CPU forward kernel for any machine.
#define TESSERA_CPU_ISA portable
#include "vec_portable.hpp"

#include "forward.hpp"

namespace tessera::cpu {
const ForwardKernel kForwardPortable = portable::kForwardKernel;
}  // namespace tessera::cpu
