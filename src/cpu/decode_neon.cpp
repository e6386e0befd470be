// The CPU decode kernel for NEON, part of every aarch64 CPU.
#define TESSERA_CPU_ISA neon
#include "vec_neon.hpp"

#include "decode.hpp"

namespace tessera::cpu {
const DecodeKernel kDecodeNeon = neon::kDecodeKernel;
}  // namespace tessera::cpu
