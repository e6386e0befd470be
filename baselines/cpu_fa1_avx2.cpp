// cpu.fa1 for AVX2.
#if defined(__x86_64__)
#define TESSERA_CPU_ISA fa1_avx2
#include "cpu/vec_avx2.hpp"

#include "cpu_fa1.inl"

namespace tessera::baselines {
const CpuFa1Kernel kCpuFa1Avx2 = cpu::fa1_avx2::kFa1Kernel;
}  // namespace tessera::baselines
#endif
