// The CPU decode kernel for any machine.
#define TESSERA_CPU_ISA portable
#include "vec_portable.hpp"

#include "decode.hpp"

namespace tessera::cpu {
const DecodeKernel kDecodePortable = portable::kDecodeKernel;
}  // namespace tessera::cpu
