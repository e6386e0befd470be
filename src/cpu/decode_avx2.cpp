// The CPU decode kernel for AVX2 + FMA + F16C. Compiled with those flags: everything here lives in its own namespace.
#define TESSERA_CPU_ISA avx2
#include "vec_avx2.hpp"

#include "decode.hpp"

namespace tessera::cpu {
const DecodeKernel kDecodeAvx2 = avx2::kDecodeKernel;
}  // namespace tessera::cpu
