// cpu.fa1 for AVX-512 F + BW + DQ + VL.
#if defined(__x86_64__)
#define TESSERA_CPU_ISA fa1_avx512
#include "cpu/vec_avx512.hpp"

#include "cpu_fa1.inl"

namespace tessera::baselines {
const CpuFa1Kernel kCpuFa1Avx512 = cpu::fa1_avx512::kFa1Kernel;
}  // namespace tessera::baselines
#endif
