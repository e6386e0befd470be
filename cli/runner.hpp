// Plans of a problem and their timed runs: what run, check and bench share.
#pragma once

#include <string>
#include <vector>

#include "baselines/operands.hpp"
#include "cli/tensor.hpp"
#include "kernel_entry.hpp"
#include "problem_text.hpp"

namespace tessera::cli {

// A problem as text said it.
struct Request {
  std::string text;  // canonical
  tessera_problem problem;
  core::TextExtras extras;
};

// Parses and validates; throws Failure (bad input).
Request parse_request(const std::string& text);
void validate_request(const tessera_problem& problem);

// Why one row does not take a problem.
struct RowReason {
  std::string kernel, reason;
};

// One row's answer to a problem: a plan, or why not.
struct Candidate {
  std::string kernel;           // empty when no row took the problem
  std::string reason;           // why refused; empty when planned
  int exit_code = 0;            // kDone or what a refusal means
  core::Plan plan;              // valid when reason is empty
  std::vector<RowReason> rows;  // of a problem that no row took: every row's reason

  bool refused() const { return !reason.empty(); }
  // The reason and those of all rows, on one line.
  std::string full_reason() const;
  // The same for people, indented, one row a line.
  std::string refusal_text() const;
};

// The row that planning chooses; with kernel=* every row of the device's list and the baselines. Throws on bad input.
std::vector<Candidate> find_candidates(const tessera_problem& problem);
// The named row alone.
Candidate find_row(tessera_problem problem, const char* kernel);

// A plan with its workspace, ready to run on `tensors`.
class Runner {
 public:
  Runner(const core::Plan& plan, const tessera_tensors& tensors);
  // Runs once and returns its seconds. Throws Failure when the run fails.
  double run() { return run(tensors_); }
  double run(const tessera_tensors& tensors);  // the same on other operands of the same problem
  const core::Plan& plan() const { return plan_; }

 private:
  core::Plan plan_;
  tessera_tensors tensors_;
  AlignedBytes workspace_;
};

double now();  // seconds of a steady clock
double median(std::vector<double> values);

// FLOPs and bytes of the lengths that the metadata in `tensors` give.
core::Work exact_work(const core::Problem& problem, const tessera_tensors& tensors);

// Throws Failure (out of memory) when operands of `problem` and their judge exceed the machine's memory.
void require_memory(const core::Problem& problem);

int machine_threads();

}  // namespace tessera::cli
