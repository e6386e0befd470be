// libtessera_baselines.so: the baselines' rows behind a C interface, so that a process without our C++ (a benchmark in
// Python) times them on the operands and in the process of everything else. Never installed.
#if TESSERA_HAS_CUDA
#include <cuda_runtime_api.h>
#endif

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <new>
#include <string>

#include "baselines/kernels.hpp"
#include "status.hpp"
#include "tessera/tessera.h"
#if TESSERA_HAS_CUDA
#include "baselines/cuda_bandwidth.hpp"
#include "baselines/cuda_textbook.hpp"
#endif

#define BASELINE_API extern "C" __attribute__((visibility("default")))

namespace {

using tessera::core::KernelList;
using tessera::core::Plan;

// The baselines' rows and, by its name alone, the step of both passes.
KernelList rows_for(const tessera_problem& problem) {
#if TESSERA_HAS_CUDA
  const auto& step = tessera::baselines::kTextbookStep;
  if (std::strncmp(problem.kernel, step.name, sizeof problem.kernel) == 0) return KernelList(&step, 1);
#else
  static_cast<void>(problem);
#endif
  return tessera::baselines::kernels();
}

void wait_for(const tessera_exec& exec) {
#if TESSERA_HAS_CUDA
  cudaStreamSynchronize(static_cast<cudaStream_t>(exec.cuda_stream));
#else
  static_cast<void>(exec);
#endif
}

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
    const int code = tessera::core::make_plan(*problem, rows_for(*problem), &made, status);
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

// As tessera_plan_explain, one JSON object.
BASELINE_API size_t tessera_baseline_explain(const void* plan, char* text, size_t capacity) {
  try {
    const std::string words =
        tessera::core::explain(*static_cast<const Plan*>(plan), tessera::baselines::kernels(), true);
    if (capacity > 0) {
      const size_t count = std::min(words.size(), capacity - 1);
      std::memcpy(text, words.data(), count);
      text[count] = 0;
    }
    return words.size();
  } catch (...) {
    return 0;
  }
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
    if (i % kQueued == 0) wait_for(*exec);
    const auto begin = now();
    if (run(plan, tensors, workspace, bytes, exec, nullptr) != TESSERA_OK) return -1;
    seconds[static_cast<size_t>(i)] = std::chrono::duration<double>(now() - begin).count();
  }
  wait_for(*exec);
  std::nth_element(seconds.begin(), seconds.begin() + kRuns / 2, seconds.end());
  return seconds[kRuns / 2];
}

// Bytes a second that the current CUDA device reads of its shared and of its device memory.
BASELINE_API int tessera_baseline_bandwidth(double* shared, double* device, tessera_status* status) {
#if TESSERA_HAS_CUDA
  tessera::baselines::Bandwidth bandwidth{};
  const cudaError_t error = tessera::baselines::measure_bandwidth(&bandwidth);
  if (error != cudaSuccess)
    return tessera::core::fail(status, TESSERA_DEVICE_ERROR, "reading memories: %s", cudaGetErrorString(error));
  *shared = bandwidth.shared;
  *device = bandwidth.device;
  return tessera::core::succeed(status);
#else
  *shared = *device = 0;
  return tessera::core::fail(status, TESSERA_NO_DEVICE, "reading memories: this build has no CUDA");
#endif
}
