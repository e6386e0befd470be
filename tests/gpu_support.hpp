// What the GPU tests share: whether there is a device, and host operands mirrored to it. Only where CUDA is built.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "baselines/device_memory.hpp"
#include "baselines/kernels.hpp"
#include "judged_run.hpp"
#include "support.hpp"
#include "tessera/tessera.h"

namespace tessera::tests {

using baselines::Mirror;
using test::no_gpu;

// An operand set with its device twin: canaries travel along.
struct GpuCase {
  explicit GpuCase(const std::string& text, int32_t device = 0) : GpuCase(operands_of(text), device) {}
  explicit GpuCase(baselines::OperandSet operands, int32_t device = 0);
  // Plans with `kernel` ("" chooses), poisons the outputs, runs, and brings everything back.
  int run(const std::string& kernel, tessera_status* status);

  baselines::OperandSet set;
  Mirror mirror;
  core::Plan plan{};
  cudaStream_t stream = nullptr;
  core::KernelList baseline_rows = baselines::kernels();  // beside the library's
  // False: left as it was allocated, for a checker of uninitialised reads; but for the counters of a decode row and the
  // tickets of Hopper's forward rows, which they look at whatever they hold.
  bool poison_workspace = true;
};

// The names of the library's CUDA rows and of the baselines'.
std::vector<std::string> gpu_rows();
// Whether `row` takes plain forward problems on device 0.
bool runs_here(const std::string& row);
// The row that takes forward problems which every row of the device takes.
std::string first_forward_row();

// Runs the operands on every CUDA row that takes them and judges what it wrote; a refusal needs a reason. `name` is for
// messages. Returns how many of the library's rows ran.
int check_on_gpu(baselines::OperandSet operands, const std::string& name);
inline int check_on_gpu(const std::string& text) { return check_on_gpu(operands_of(text), text); }

// Runs `text` with one entry of each of its metadata arrays set to `wild`: nothing outside of the outputs is written.
void expect_wild_metadata_stays_inside(const char* text, int32_t wild);

// Whether the device is tests/emulator, which takes milliseconds for what a GPU does in a microsecond.
#ifdef TESSERA_EMULATED
inline constexpr bool kEmulated = true;
#else
inline constexpr bool kEmulated = false;
#endif
// How often a test repeats what a GPU does `on_gpu` times.
constexpr int repeats(int on_gpu) { return !kEmulated ? on_gpu : (on_gpu < 20 ? 2 : on_gpu / 10); }

}  // namespace tessera::tests

// First line of a GPU test: skips with the reason where there is no device.
#define TESSERA_NEEDS_GPU() \
  if (const char* reason = ::tessera::tests::no_gpu()) GTEST_SKIP() << "no GPU test here: " << reason
// Second line of one that is about the number of blocks.
#define TESSERA_NEEDS_MANY_BLOCKS() \
  if (::tessera::tests::kEmulated) GTEST_SKIP() << "no emulated test: its blocks would run for minutes"
