// The ordered list of CPU kernels, fastest first.
#include "cpu/forward_plan.hpp"
#include "kernel_entry.hpp"

namespace tessera::cpu {
namespace {

using core::DeviceInfo;
using core::Isa;
using core::Launch;
using core::Problem;
using core::Refusal;

// A cap of TESSERA_ISA_NEON or of a wider set than the machine's is no cap on x86.
bool capped_below(const Problem& problem, Isa isa) {
  return problem.isa != TESSERA_ISA_AUTO && problem.isa < static_cast<int32_t>(isa);
}

#if defined(__x86_64__)
Refusal refuse_avx512(const Problem& problem, const DeviceInfo& device) {
  if (device.isa < Isa::avx512 || device.isa == Isa::neon) return {"this CPU has no AVX-512", nullptr, 0};
  if (capped_below(problem, Isa::avx512)) return {"isa= caps the instruction set below avx512", nullptr, 0};
  return refuse_forward(problem);
}
Launch configure_avx512(const Problem& problem, const DeviceInfo& device) {
  Launch launch = configure_forward(problem, device, kForwardAvx512, 0.65);
  launch.instructions = "avx512f+bw+dq+vl";
  return launch;
}
int run_avx512(const core::Plan& plan, const core::RunContext& context) { return run_forward(plan, context, kForwardAvx512); }

Refusal refuse_avx2(const Problem& problem, const DeviceInfo& device) {
  if (device.isa < Isa::avx2 || device.isa == Isa::neon) return {"this CPU has no AVX2", nullptr, 0};
  if (!device.has_f16c) return {"this CPU has no F16C", nullptr, 0};
  if (capped_below(problem, Isa::avx2)) return {"isa= caps the instruction set below avx2", nullptr, 0};
  return refuse_forward(problem);
}
Launch configure_avx2(const Problem& problem, const DeviceInfo& device) {
  Launch launch = configure_forward(problem, device, kForwardAvx2, 0.6);
  launch.instructions = "avx2+fma, f16c";
  return launch;
}
int run_avx2(const core::Plan& plan, const core::RunContext& context) { return run_forward(plan, context, kForwardAvx2); }
#endif

Refusal refuse_portable(const Problem& problem, const DeviceInfo&) { return refuse_forward(problem); }
Launch configure_portable(const Problem& problem, const DeviceInfo& device) {
  Launch launch = configure_forward(problem, device, kForwardPortable, 0.1);
  launch.instructions = "compiler vectors of 16 bytes";
  return launch;
}
int run_portable(const core::Plan& plan, const core::RunContext& context) { return run_forward(plan, context, kForwardPortable); }

constexpr core::KernelEntry kKernels[] = {
#if defined(__x86_64__)
    {"cpu.avx512.forward", refuse_avx512, configure_avx512, run_avx512},
    {"cpu.avx2.forward", refuse_avx2, configure_avx2, run_avx2},
#endif
    {"cpu.portable.forward", refuse_portable, configure_portable, run_portable},
};

}  // namespace
}  // namespace tessera::cpu

namespace tessera::core {

KernelList cpu_kernels() { return cpu::kKernels; }

}  // namespace tessera::core
