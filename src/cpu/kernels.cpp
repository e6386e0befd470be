// The ordered list of CPU kernels, fastest first.
#include "cpu/amx/rows.hpp"
#include "cpu/backward_plan.hpp"
#include "cpu/decode_plan.hpp"
#include "cpu/forward_plan.hpp"
#include "kernel_entry.hpp"

namespace tessera::cpu {
namespace {

using core::DeviceInfo;
using core::Isa;
using core::Launch;
using core::Problem;
using core::Refusal;

// Null, or why a build for `isa` does not serve: the machine lacks it, or isa= caps below it. A cap of another
// architecture or of a wider set than the machine's is no cap.
Refusal refuse_isa(const Problem& problem, const DeviceInfo& device, Isa isa) {
  const bool capped = problem.isa != TESSERA_ISA_AUTO && problem.isa < static_cast<int32_t>(isa);
  if (isa == Isa::avx512) {
    if (device.isa < Isa::avx512 || device.isa == Isa::neon) return {"this CPU has no AVX-512, or TESSERA_ISA caps it"};
    if (capped) return {"isa= caps the instruction set below avx512"};
  } else if (isa == Isa::avx2) {
    if (device.isa < Isa::avx2 || device.isa == Isa::neon) return {"this CPU has no AVX2, or TESSERA_ISA caps it"};
    if (!device.has_f16c) return {"this CPU has no F16C"};
    if (capped) return {"isa= caps the instruction set below avx2"};
  } else if (isa == Isa::neon) {
    if (device.isa != Isa::neon) return {"this CPU has no NEON, or TESSERA_ISA caps it"};
    if (problem.isa == TESSERA_ISA_PORTABLE) return {"isa= caps the instruction set below neon"};
  }
  return {};
}

constexpr const char* instructions_of(Isa isa) {
  return isa == Isa::avx512 ? "avx512f+bw+dq+vl"
         : isa == Isa::avx2 ? "avx2+fma, f16c"
         : isa == Isa::neon ? "neon"
                            : "compiler vectors of 16 bytes";
}

// What the three kinds of kernel have of their own.
struct Forward {
  using Kernel = ForwardKernel;
  static constexpr auto kRefuse = refuse_forward;
  static constexpr auto kConfigure = configure_forward;
  static constexpr auto kRun = run_forward;
};
struct Decode {
  using Kernel = DecodeKernel;
  static constexpr auto kRefuse = refuse_decode;
  static constexpr auto kConfigure = configure_decode;
  static constexpr auto kRun = run_decode;
};
struct Backward {
  using Kernel = BackwardKernel;
  static constexpr auto kRefuse = refuse_backward;
  static constexpr auto kConfigure = configure_backward;
  static constexpr auto kRun = run_backward;
};

// The row of one kind and instruction set. kPercent is the measured share, of the FMA peak for forward and backward and
// of the memory bandwidth for decode.
template <class Kind, Isa kIsa, const typename Kind::Kernel& kKernel, int kPercent>
struct Row {
  static Refusal refuse(const Problem& problem, const DeviceInfo& device) {
    const Refusal refusal = refuse_isa(problem, device, kIsa);
    return refusal ? refusal : Kind::kRefuse(problem);
  }
  static Launch configure(const Problem& problem, const DeviceInfo& device) {
    Launch launch = Kind::kConfigure(problem, device, kKernel, kPercent / 100.0);
    launch.instructions = instructions_of(kIsa);
    return launch;
  }
  static int run(const core::Plan& plan, const core::RunContext& context) { return Kind::kRun(plan, context, kKernel); }
};

template <class AnyRow>
constexpr core::KernelEntry entry(const char* name) {
  return {.name = name, .refuse = AnyRow::refuse, .configure = AnyRow::configure, .run = AnyRow::run};
}

constexpr core::KernelEntry kKernels[] = {
#if defined(__x86_64__)
    amx::kDecode,
    entry<Row<Decode, Isa::avx512, kDecodeAvx512, 65>>("cpu.avx512.decode"),
    entry<Row<Decode, Isa::avx2, kDecodeAvx2, 60>>("cpu.avx2.decode"),
#elif defined(__aarch64__)
    entry<Row<Decode, Isa::neon, kDecodeNeon, 80>>("cpu.neon.decode"),
#endif
    entry<Row<Decode, Isa::portable, kDecodePortable, 30>>("cpu.portable.decode"),
#if defined(__x86_64__)
    amx::kForward,
    entry<Row<Forward, Isa::avx512, kForwardAvx512, 65>>("cpu.avx512.forward"),
    entry<Row<Forward, Isa::avx2, kForwardAvx2, 60>>("cpu.avx2.forward"),
#elif defined(__aarch64__)
    entry<Row<Forward, Isa::neon, kForwardNeon, 60>>("cpu.neon.forward"),
#endif
    entry<Row<Forward, Isa::portable, kForwardPortable, 10>>("cpu.portable.forward"),
    amx::kForwardEmulated,
    amx::kDecodeEmulated,
#if defined(__x86_64__)
    amx::kBackward,
    entry<Row<Backward, Isa::avx512, kBackwardAvx512, 60>>("cpu.avx512.backward"),
    entry<Row<Backward, Isa::avx2, kBackwardAvx2, 60>>("cpu.avx2.backward"),
#elif defined(__aarch64__)
    entry<Row<Backward, Isa::neon, kBackwardNeon, 60>>("cpu.neon.backward"),
#endif
    entry<Row<Backward, Isa::portable, kBackwardPortable, 10>>("cpu.portable.backward"),
    amx::kBackwardEmulated,
};

}  // namespace
}  // namespace tessera::cpu

namespace tessera::core {

KernelList cpu_kernels() { return cpu::kKernels; }

}  // namespace tessera::core
