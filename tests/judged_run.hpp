// Runs one row of the kernel lists on operands made from a problem and judges what it wrote. Shared by the tests that
// go over every case, every kernel and every property.
#pragma once

#include <string>
#include <vector>

#include "kernel_entry.hpp"
#include "kernels.hpp"
#include "operands.hpp"

namespace tessera::tests {

// The library's CPU rows, then the baselines.
std::vector<const core::KernelEntry*> cpu_rows();
std::vector<const core::KernelEntry*> library_rows();

// What a run leaves: empty `error` when it ran. A refusal is a code of UNSUPPORTED with its reasons.
struct RunResult {
  int code = TESSERA_OK;
  std::string message;
  core::Plan plan{};
};

// Pins `kernel` (empty: the library chooses), poisons the outputs and the workspace, runs.
RunResult run_pinned(const baselines::OperandSet& operands, const std::string& kernel);

// run_pinned, then canaries, gaps and the tolerance rule; the first thing wrong, or "". A refusal gives "" and is told
// by `result`. The judge's results are made once by judge().
struct Judged {
  baselines::Results exact, naive;
};
Judged judge(const baselines::OperandSet& operands);
std::string check_row(const baselines::OperandSet& operands, const Judged& judged, const std::string& kernel,
                      RunResult* result);

// Operands of a line of text; throws std::runtime_error with the message on a bad line.
baselines::OperandSet operands_of(const std::string& text);
core::Problem validated(const tessera_problem& problem);

// Bytes of all outputs, one after another.
std::vector<std::byte> output_bytes(const baselines::OperandSet& operands);

}  // namespace tessera::tests
