// The CPU forward kernel for AVX2 + FMA + F16C. Compiled with those flags: everything here lives in its own namespace.
#define TESSERA_CPU_ISA avx2
#include "vec_avx2.hpp"

#include "forward.hpp"

namespace tessera::cpu {
const ForwardKernel kForwardAvx2 = avx2::kForwardKernel;
}  // namespace tessera::cpu
