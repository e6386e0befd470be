// The CPU decode kernel for AVX-512. Compiled with those flags: everything here lives in its own namespace.
#define TESSERA_CPU_ISA avx512
#include "vec_avx512.hpp"

#include "decode.hpp"

namespace tessera::cpu {
const DecodeKernel kDecodeAvx512 = avx512::kDecodeKernel;
}  // namespace tessera::cpu
