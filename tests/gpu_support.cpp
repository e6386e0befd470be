// Host operands mirrored to the device, and the comparison of what a CUDA row wrote with the judge.
#include "gpu_support.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "cuda/device.hpp"

namespace tessera::tests {
namespace {

void expect_success(cudaError_t error, const char* what) {
  ASSERT_EQ(error, cudaSuccess) << what << ": " << cudaGetErrorString(error);
}

}  // namespace

GpuCase::GpuCase(baselines::OperandSet operands, int32_t device) : set(std::move(operands)), mirror(device) {
  set.problem.device = device;
  set.add_to(&mirror);
}

int GpuCase::run(const std::string& kernel, tessera_status* status) {
  std::snprintf(set.problem.kernel, sizeof set.problem.kernel, "%s", kernel.c_str());
  if (const int code = core::make_plan(set.problem, baseline_rows, &plan, status)) return code;
  set.poison_outputs();
  mirror.upload();
  const auto bytes = static_cast<size_t>(plan.launch.workspace_bytes);
  const baselines::DeviceBuffer workspace(set.problem.device, bytes);
  constexpr size_t kCounterBytes = 256;
  const std::string_view row = plan.entry->name;
  const bool last = row.ends_with(".decode"), first = row.starts_with("cuda.sm90.forward");  // where counters lie
  const size_t poisoned = poison_workspace ? bytes : last || first ? std::min(bytes, kCounterBytes) : 0;
  if (poisoned > 0) {
    const cuda::DeviceScope scope(set.problem.device);
    auto* begin = static_cast<std::byte*>(workspace.data()) + (last ? bytes - poisoned : 0);
    expect_success(cudaMemset(begin, 0xff, poisoned), "cudaMemset");
    expect_success(cudaDeviceSynchronize(), "cudaMemset");  // the run's stream may be another device's
  }
  const tessera_tensors tensors = mirror.translate(set.tensors);
  const tessera_exec exec{sizeof(tessera_exec), stream, nullptr};
  const int code = core::run_plan(plan, &tensors, workspace.data(), bytes, &exec, status);
  mirror.download();
  return code;
}

std::vector<std::string> gpu_rows() {
  std::vector<std::string> rows;
  for (const core::KernelList list : {core::cuda_kernels(), baselines::kernels()}) {
    for (const core::KernelEntry& entry : list) {
      if (std::strncmp(entry.name, "cuda.", 5) == 0) rows.push_back(entry.name);
    }
  }
  return rows;
}

bool runs_here(const std::string& row) {
  return !row.starts_with("cuda.sm90.") || core::cuda_info(0, nullptr)->arch == 90;
}
std::string first_forward_row() { return runs_here("cuda.sm90.forward") ? "cuda.sm90.forward" : "cuda.sm80.forward"; }

int check_on_gpu(baselines::OperandSet operands, const std::string& name) {
  const Judged judged = judge(operands);
  GpuCase gpu(std::move(operands));
  int ran = 0;
  for (const std::string& row : gpu_rows()) {
    SCOPED_TRACE(name + " on " + row);
    tessera_status status{};
    const int code = gpu.run(row, &status);
    if (code == TESSERA_UNSUPPORTED) {
      EXPECT_NE(status.message[0], '\0');
      continue;
    }
    EXPECT_EQ(code, TESSERA_OK) << status.message;
    ran += gpu.plan.entry != nullptr && !gpu.plan.entry->pinned_only;
    const auto comparisons = baselines::compare(gpu.plan.problem, gpu.set.tensors, &judged.exact, &judged.naive);
    const baselines::Comparison& worst = baselines::worst(comparisons);
    EXPECT_TRUE(worst.passed) << worst.tensor << " errs by " << worst.max_abs_error << ", allowed " << worst.tolerance;
    EXPECT_TRUE(gpu.set.canaries_intact()) << "wrote outside a buffer";
    EXPECT_TRUE(gpu.set.gaps_intact(gpu.plan.problem)) << "wrote between the rows of an output";
  }
  return ran;
}

void expect_wild_metadata_stays_inside(const char* text, int32_t wild) {
  GpuCase gpu(text);
  const tessera_tensors& t = gpu.set.tensors;
  for (const int32_t* array : {t.cu_seqlens_q, t.cu_seqlens_k, t.seqused_k, t.page_table}) {
    if (array != nullptr) const_cast<int32_t*>(array)[1] = wild;
  }
  tessera_status status{};
  ASSERT_EQ(gpu.run("", &status), TESSERA_OK) << status.message;
  EXPECT_TRUE(gpu.set.canaries_intact());
}

}  // namespace tessera::tests
