// The CPU forward kernel for AVX-512 F + BW + DQ + VL. Compiled with those flags: everything here lives in its own
// namespace.
#define TESSERA_CPU_ISA avx512
#include "vec_avx512.hpp"

#include "forward.hpp"

namespace tessera::cpu {
const ForwardKernel kForwardAvx512 = avx512::kForwardKernel;
}  // namespace tessera::cpu
