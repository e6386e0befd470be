#include "judged_run.hpp"

#include <cstring>
#include <stdexcept>

namespace tessera::tests {

using baselines::OperandSet;

std::vector<const core::KernelEntry*> library_rows() {
  std::vector<const core::KernelEntry*> rows;
  for (const core::KernelEntry& entry : core::cpu_kernels()) rows.push_back(&entry);
  return rows;
}

std::vector<const core::KernelEntry*> cpu_rows() {
  std::vector<const core::KernelEntry*> rows = library_rows();
  for (const core::KernelEntry& entry : baselines::kernels()) rows.push_back(&entry);
  return rows;
}

RunResult run_pinned(const OperandSet& operands, const std::string& kernel) {
  RunResult result;
  tessera_problem problem = operands.problem;
  if (!kernel.empty()) {
    std::memset(problem.kernel, 0, sizeof problem.kernel);
    kernel.copy(problem.kernel, sizeof problem.kernel - 1);
  }
  tessera_status status{};
  result.code = core::make_plan(problem, baselines::kernels(), &result.plan, &status);
  if (result.code == TESSERA_OK) {
    const auto bytes = static_cast<size_t>(result.plan.launch.workspace_bytes);
    const baselines::Buffer workspace(bytes, 256);
    std::memset(workspace.data(), 0xff, bytes);
    operands.poison_outputs();
    result.code = core::run_plan(result.plan, &operands.tensors, workspace.data(), bytes, nullptr, &status);
    if (!workspace.canaries_intact()) {
      result.code = TESSERA_INTERNAL;
      std::strcpy(status.message, "wrote outside the workspace");
    }
  }
  result.message = status.message;
  return result;
}

Judged judge(const OperandSet& operands) {
  const core::Problem problem = validated(operands.problem);
  Judged judged;
  judged.exact = baselines::reference(problem, operands.tensors, baselines::Precision::exact, 2);
  judged.naive = baselines::reference(problem, operands.tensors, baselines::Precision::naive, 2);
  if (problem.pass == TESSERA_BACKWARD) baselines::store_forward(problem, judged.exact, operands.tensors);
  return judged;
}

std::string check_row(const OperandSet& operands, const Judged& judged, const std::string& kernel, RunResult* result) {
  *result = run_pinned(operands, kernel);
  if (result->code == TESSERA_UNSUPPORTED) return "";
  const std::string who = kernel.empty() ? "the chosen row" : kernel;
  if (result->code != TESSERA_OK) return who + ": " + result->message;
  const core::Problem& problem = result->plan.problem;
  if (!operands.canaries_intact()) return who + ": wrote outside a buffer";
  if (!operands.gaps_intact(problem)) return who + ": wrote between the rows of an output";
  const auto comparisons = baselines::compare(problem, operands.tensors, &judged.exact, &judged.naive);
  const baselines::Comparison& worst = baselines::worst(comparisons);
  if (worst.passed) return "";
  return who + ": " + worst.tensor + " errs by " + std::to_string(worst.max_abs_error) + ", allowed " +
         std::to_string(worst.tolerance);
}

OperandSet operands_of(const std::string& text) {
  tessera_status status{};
  OperandSet operands = baselines::make_operands(text, &status);
  if (operands.problem.size == 0) throw std::runtime_error(text + ": " + status.message);
  return operands;
}

core::Problem validated(const tessera_problem& problem) {
  core::Problem checked;
  tessera_status status{};
  if (core::validate(problem, &checked, &status) != TESSERA_OK) throw std::runtime_error(status.message);
  return checked;
}

std::vector<std::byte> output_bytes(const OperandSet& operands) {
  std::vector<std::byte> bytes;
  for (const size_t index : operands.outputs) {
    const baselines::Buffer& buffer = operands.buffers[index];
    bytes.insert(bytes.end(), buffer.data(), buffer.data() + buffer.bytes());
  }
  return bytes;
}

}  // namespace tessera::tests
