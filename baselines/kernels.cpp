// The baselines as rows of the same kind as the library's kernels.
#include "kernels.hpp"

#include <algorithm>
#include <new>

#include "cpu_fa1.hpp"
#include "outputs.hpp"
#include "status.hpp"
#include "textbook.hpp"

#if TESSERA_HAS_CUDA
#include "cuda_fa1.hpp"
#include "cuda_textbook.hpp"
#endif

namespace tessera::baselines {
namespace {

core::Refusal refuse_reference(const core::Problem&, const core::DeviceInfo& device) {
  if (!device.is_cpu) return {"runs on the CPU only"};
  return {};
}

core::Launch configure_reference(const core::Problem& problem, const core::DeviceInfo& device) {
  core::Launch launch;
  launch.threads = problem.threads > 0 ? problem.threads : std::max(1, device.units);
  launch.schedule = "float64, plain loops";
  // Plain float64 loops reach about 2 GFLOP/s a thread on any x86-64.
  launch.seconds = core::count_work(problem).flops / (2e9 * launch.threads);
  return launch;
}

int run_reference(const core::Plan& plan, const core::RunContext& context) {
  try {
    const Results results = reference(plan.problem, *context.tensors, Precision::exact, plan.launch.threads);
    store_results(plan.problem, results, *context.tensors);
    return core::succeed(context.status);
  } catch (const std::bad_alloc&) {
    return core::fail(context.status, TESSERA_OUT_OF_MEMORY, "cpu.reference: not enough memory for float64 copies");
  }
}

}  // namespace

core::KernelList kernels() {
  static const core::KernelEntry kKernels[] = {
    {"cpu.reference", refuse_reference, configure_reference, run_reference, true},
    {"cpu.textbook", refuse_textbook, configure_textbook, run_textbook, true},
    kCpuFa1[0],
    kCpuFa1[1],
    kCpuFa1[2],
    kCpuFa1[3],
#if TESSERA_HAS_CUDA
    kCudaTextbook,
    kCudaFa1[0],
    kCudaFa1[1],
    kCudaFa1[2],
    kCudaFa1[3],
#endif
  };
  return kKernels;
}

}  // namespace tessera::baselines
