// cpu.fa1 for any machine.
#define TESSERA_CPU_ISA fa1_portable
#include "cpu/vec_portable.hpp"

#include "cpu_fa1.inl"

namespace tessera::baselines {
const CpuFa1Kernel kCpuFa1Portable = cpu::fa1_portable::kFa1Kernel;
}  // namespace tessera::baselines
