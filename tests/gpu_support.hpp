// What the GPU tests share: whether there is a device, and host operands mirrored to it. Only where CUDA is built.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "judged_run.hpp"
#include "tessera/tessera.h"

namespace tessera::tests {

// Null, or why GPU tests cannot run here.
const char* no_gpu();

// Device copies of host ranges. A host pointer into a range translates to the same place of its copy.
class Mirror {
 public:
  Mirror() = default;
  ~Mirror();
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  void add(const void* host, size_t bytes);
  void upload() const;
  void download() const;                 // after the device is idle
  void* device(const void* host) const;  // null stays null
  tessera_tensors device(const tessera_tensors& host) const;

 private:
  struct Range {
    std::byte *host, *device;
    size_t bytes;
  };
  std::vector<Range> ranges_;
};

// An operand set with its device twin: canaries travel along.
struct GpuCase {
  explicit GpuCase(const std::string& text) : GpuCase(operands_of(text)) {}
  explicit GpuCase(baselines::OperandSet operands);
  // Plans with `kernel` ("" chooses), poisons the outputs, runs, and brings everything back.
  int run(const std::string& kernel, tessera_status* status);

  baselines::OperandSet set;
  Mirror mirror;
  core::Plan plan{};
  cudaStream_t stream = nullptr;
};

// The names of the library's CUDA rows and of the baselines'.
std::vector<std::string> gpu_rows();
// Runs the operands on every CUDA row that takes them and judges what it wrote; a refusal needs a reason. `name` is for
// messages. Returns how many of the library's rows ran.
int check_on_gpu(baselines::OperandSet operands, const std::string& name);
inline int check_on_gpu(const std::string& text) { return check_on_gpu(operands_of(text), text); }

}  // namespace tessera::tests

// First line of a GPU test: skips with the reason where there is no device.
#define TESSERA_NEEDS_GPU() \
  if (const char* reason = ::tessera::tests::no_gpu()) GTEST_SKIP() << "no GPU test here: " << reason
