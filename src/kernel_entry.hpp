// One row of the ordered list of kernels, and the plan that choosing one makes. Tests, CLI, benchmarks and explain read
// the same lists, so what they say cannot drift from what is compiled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "device_info.hpp"
#include "problem.hpp"
#include "tessera/tessera.h"

namespace tessera::core {

// Why a row does not take a problem. `text` is a static sentence; explain adds "(argument=value)" where `argument` is
// set.
struct Refusal {
  const char* text = nullptr;
  const char* argument = nullptr;
  int64_t value = 0;
  explicit operator bool() const { return text != nullptr; }
};

// How a row would run a problem. Zeros are "does not apply"; explain prints what is set.
struct Launch {
  int32_t tile_m = 0, tile_n = 0, stages = 0, num_splits = 1;
  int32_t threads = 1;  // CPU tasks at most
  int32_t registers = 0;
  int64_t shared_bytes = 0;
  int64_t workspace_bytes = 0;  // the whole workspace, a multiple of 256
  double seconds = 0;           // estimate
  double schedule_bytes = 0;    // device memory traffic, where the row's schedule moves more than every operand once
  const char* schedule = nullptr;
  const char* instructions = nullptr;  // "avx2+fma, f16c", "amx emulated", "wgmma, tma"
  int32_t variant = 0;                 // a number of the row's own: a code path, heads a group of blocks
  int32_t ahead = 0;                   // rows of memory that are asked for before their use, where a row counts them
};

struct Plan;

// What a run gets besides its plan. Everything was checked.
struct RunContext {
  const tessera_tensors* tensors;
  std::byte* workspace;
  void* cuda_stream;
  const tessera_executor* executor;  // never null on the CPU
  tessera_status* status;
};

struct KernelEntry {
  const char* name;  // "cpu.avx2.forward"
  Refusal (*refuse)(const Problem&, const DeviceInfo&);
  Launch (*configure)(const Problem&, const DeviceInfo&);
  int (*run)(const Plan&, const RunContext&);  // a status code
  bool pinned_only = false;                    // baselines: chosen only by name
  // Called once when a plan is made for a present device: loads what the first run needs (null: nothing).
  int (*prepare)(const Plan&, tessera_status*) = nullptr;
};

using KernelList = std::span<const KernelEntry>;

// The library's rows for the CPU and for CUDA, fastest first (src/cpu/kernels.cpp, src/cuda/kernels.cpp).
KernelList cpu_kernels();
KernelList cuda_kernels();

struct Plan {
  Problem problem;
  const DeviceInfo* device;
  const KernelEntry* entry;
  Launch launch;
  int32_t passed_over = 0;        // rows before the chosen one that refused
  const char* first_reason = "";  // the first of their reasons
};

// Validates `given` and takes the first row of the device's list, then of `extra` (baselines), that does not refuse.
// A pin (problem.kernel, else TESSERA_KERNEL) keeps only rows whose name matches its glob.
int make_plan(const tessera_problem& given, KernelList extra, Plan* plan, tessera_status* status);

// Every row's answer, in order: for explain, supports and `check kernel=*`.
struct RowAnswer {
  const KernelEntry* entry;
  Refusal refusal;
  bool pin_excludes;
};
// Calls `visit` for each row of the device's list and `extra`. `device` may be a named one.
void visit_rows(const Problem& problem, const DeviceInfo& device, KernelList extra,
                void (*visit)(const RowAnswer&, void*), void* context);

// The pin that planning obeys: problem.kernel, else TESSERA_KERNEL, else "".
const char* active_pin(const Problem& problem);

// "head_dim_qk above 256 (head_dim_qk=300)".
std::string format_refusal(const Refusal& refusal);

// The plan in words or as one JSON object.
std::string explain(const Plan& plan, KernelList extra, bool json);

// The rules on `exec` (may be null) and its executor.
int check_exec(const tessera_exec* exec, bool is_cpu, tessera_status* status);
// Checks pointers, alignment, workspace and, on the CPU, metadata; then runs the plan's kernel.
int run_plan(const Plan& plan, const tessera_tensors* tensors, void* workspace, size_t bytes, const tessera_exec* exec,
             tessera_status* status);

// Lengths, page tables, leftpad and batch_idx of a CPU problem: every rule, before anything is written.
int check_metadata_cpu(const Problem& problem, const tessera_tensors& tensors, tessera_status* status);
// The metadata rules alone, on the plan's device.
int check_metadata(const Plan& plan, const tessera_tensors* tensors, const tessera_exec* exec, tessera_status* status);
// The same rules for arrays on the device; copies them to the host and blocks (src/cuda; a stub without CUDA).
int check_metadata_cuda(const Plan& plan, const tessera_tensors& tensors, const tessera_exec* exec,
                        tessera_status* status);

}  // namespace tessera::core
