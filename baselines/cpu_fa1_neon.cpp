// cpu.fa1 for NEON, part of every aarch64 CPU.
#if defined(__aarch64__)
#define TESSERA_CPU_ISA fa1_neon
#include "cpu/vec_neon.hpp"

#include "cpu_fa1.inl"

namespace tessera::baselines {
const CpuFa1Kernel kCpuFa1Neon = cpu::fa1_neon::kFa1Kernel;
}  // namespace tessera::baselines
#endif
