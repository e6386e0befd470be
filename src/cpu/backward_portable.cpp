// The CPU backward kernel for any machine.
#define TESSERA_CPU_ISA portable
#include "vec_portable.hpp"

#include "backward_build.hpp"

namespace tessera::cpu {
const BackwardKernel kBackwardPortable = portable::kBackwardKernel;
}  // namespace tessera::cpu
