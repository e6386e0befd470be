// The CPU backward kernel for AVX2 + FMA + F16C. Compiled with those flags: everything here lives in its own namespace.
#define TESSERA_CPU_ISA avx2
#include "vec_avx2.hpp"

#include "backward_build.hpp"

namespace tessera::cpu {
const BackwardKernel kBackwardAvx2 = avx2::kBackwardKernel;
}  // namespace tessera::cpu
