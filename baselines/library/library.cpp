// libtessera_baselines.so: the baselines' rows behind a C interface, so that a process without our C++ (a benchmark in
// Python) times them on the operands and in the process of everything else. Never installed.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <new>

#include "baselines/cuda_textbook.hpp"
#include "baselines/kernels.hpp"
#include "status.hpp"
#include "tessera/tessera.h"

#define BASELINE_API extern "C" __attribute__((visibility("default")))

namespace {

using tessera::core::Plan;

template <class Body>
int guarded(tessera_status* status, Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return tessera::core::fail(status, TESSERA_OUT_OF_MEMORY, "out of host memory");
  } catch (...) {
    return tessera::core::fail(status, TESSERA_INTERNAL, "internal error: an unexpected exception");
  }
}

}  // namespace

// As tessera_plan_create, with the baselines among the rows that problem->kernel may name ("cuda.textbook"), and beside
// them "cuda.textbook.step", whose runs write o and lse too.
// *plan: to be destroyed by tessera_baseline_destroy, NULL on failure. *workspace: bytes that a run needs.
BASELINE_API int tessera_baseline_create(const tessera_problem* problem, void** plan, size_t* workspace,
                                         tessera_status* status) {
  *plan = nullptr;
  return guarded(status, [&] {
    Plan made{};
    const auto& step = tessera::baselines::kTextbookStep;
    const bool wants_step = std::strncmp(problem->kernel, step.name, sizeof problem->kernel) == 0;
    const tessera::core::KernelList rows =
        wants_step ? tessera::core::KernelList(&step, 1) : tessera::baselines::kernels();
    const int code = tessera::core::make_plan(*problem, rows, &made, status);
    if (code != TESSERA_OK) return code;
    *workspace = static_cast<size_t>(made.launch.workspace_bytes);
    *plan = new Plan(made);
    return code;
  });
}

// As tessera_plan_run.
BASELINE_API int tessera_baseline_run(const void* plan, const tessera_tensors* tensors, void* workspace, size_t bytes,
                                      const tessera_exec* exec, tessera_status* status) {
  return guarded(status, [&] {
    return tessera::core::run_plan(*static_cast<const Plan*>(plan), tensors, workspace, bytes, exec, status);
  });
}

BASELINE_API void tessera_baseline_destroy(void* plan) { delete static_cast<Plan*>(plan); }

// Median seconds that `run` (tessera_plan_run) takes of the host on exec's stream, which has room for every call that
// is timed: it is waited for once in kQueued calls. Negative where a call fails.
BASELINE_API double tessera_baseline_host_seconds(decltype(&tessera_plan_run) run, const tessera_plan* plan,
                                                  const tessera_tensors* tensors, void* workspace, size_t bytes,
                                                  const tessera_exec* exec) {
  constexpr int kRuns = 97, kQueued = 16;
  const auto now = [] { return std::chrono::steady_clock::now(); };
  std::array<double, kRuns> seconds{};
  for (int i = 0; i < kRuns; ++i) {
    if (i % kQueued == 0) cudaStreamSynchronize(static_cast<cudaStream_t>(exec->cuda_stream));
    const auto begin = now();
    if (run(plan, tensors, workspace, bytes, exec, nullptr) != TESSERA_OK) return -1;
    seconds[static_cast<size_t>(i)] = std::chrono::duration<double>(now() - begin).count();
  }
  cudaStreamSynchronize(static_cast<cudaStream_t>(exec->cuda_stream));
  std::nth_element(seconds.begin(), seconds.begin() + kRuns / 2, seconds.end());
  return seconds[kRuns / 2];
}
