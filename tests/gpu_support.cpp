// Host operands mirrored to the device, and the comparison of what a CUDA row wrote with the judge.
#include "gpu_support.hpp"

#include <cstdio>
#include <cstring>

#include "baselines/kernels.hpp"

namespace tessera::tests {
namespace {

constexpr size_t kCanaryBytes = 4096;  // what baselines::Buffer keeps on either side

void expect_success(cudaError_t error, const char* what) {
  ASSERT_EQ(error, cudaSuccess) << what << ": " << cudaGetErrorString(error);
}

}  // namespace

const char* no_gpu() {
  const char* reason = nullptr;
  return core::cuda_info(0, &reason) != nullptr ? nullptr : reason;
}

Mirror::~Mirror() {
  for (const Range& range : ranges_) cudaFree(range.device);
}

void Mirror::add(const void* host, size_t bytes) {
  void* device = nullptr;
  expect_success(cudaMalloc(&device, bytes), "cudaMalloc");
  ranges_.push_back({static_cast<std::byte*>(const_cast<void*>(host)), static_cast<std::byte*>(device), bytes});
}

void Mirror::upload() const {
  for (const Range& range : ranges_)
    expect_success(cudaMemcpy(range.device, range.host, range.bytes, cudaMemcpyHostToDevice), "upload");
}

void Mirror::download() const {
  for (const Range& range : ranges_)
    expect_success(cudaMemcpy(range.host, range.device, range.bytes, cudaMemcpyDeviceToHost), "download");
}

void* Mirror::device(const void* host) const {
  const auto* at = static_cast<const std::byte*>(host);
  for (const Range& range : ranges_) {
    if (at >= range.host && at < range.host + range.bytes) return range.device + (at - range.host);
  }
  EXPECT_EQ(host, nullptr) << "a pointer outside every mirrored range";
  return nullptr;
}

tessera_tensors Mirror::device(const tessera_tensors& host) const {
  tessera_tensors out = host;
  // Behind `size` the struct is nothing but pointers.
  constexpr size_t kPointers = (sizeof(tessera_tensors) - sizeof(size_t)) / sizeof(void*);
  void* pointers[kPointers];
  std::memcpy(pointers, reinterpret_cast<const std::byte*>(&host) + sizeof(size_t), sizeof pointers);
  for (void*& pointer : pointers) pointer = device(pointer);
  std::memcpy(reinterpret_cast<std::byte*>(&out) + sizeof(size_t), pointers, sizeof pointers);
  return out;
}

GpuCase::GpuCase(baselines::OperandSet operands) : set(std::move(operands)) {
  set.problem.device = 0;
  for (const baselines::Buffer& buffer : set.buffers)
    mirror.add(buffer.data() - kCanaryBytes, buffer.bytes() + 2 * kCanaryBytes);
}

int GpuCase::run(const std::string& kernel, tessera_status* status) {
  std::snprintf(set.problem.kernel, sizeof set.problem.kernel, "%s", kernel.c_str());
  if (const int code = core::make_plan(set.problem, baselines::kernels(), &plan, status)) return code;
  set.poison_outputs();
  mirror.upload();
  const auto bytes = static_cast<size_t>(plan.launch.workspace_bytes);
  void* workspace = nullptr;
  if (bytes > 0) {
    expect_success(cudaMalloc(&workspace, bytes), "cudaMalloc");
    expect_success(cudaMemset(workspace, 0xff, bytes), "cudaMemset");
  }
  const tessera_tensors tensors = mirror.device(set.tensors);
  const tessera_exec exec{sizeof(tessera_exec), stream, nullptr};
  const int code = core::run_plan(plan, &tensors, workspace, bytes, &exec, status);
  expect_success(cudaDeviceSynchronize(), "the kernel");
  cudaFree(workspace);
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

}  // namespace tessera::tests
