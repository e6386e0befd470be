// The CPU backward kernel for AVX-512 F + BW + DQ + VL. Compiled with those flags: everything here lives in its own
// namespace.
#define TESSERA_CPU_ISA avx512
#include "vec_avx512.hpp"

#include "backward_build.hpp"

namespace tessera::cpu {
const BackwardKernel kBackwardAvx512 = avx512::kBackwardKernel;
}  // namespace tessera::cpu
