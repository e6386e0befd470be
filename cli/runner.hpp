// Plans of a problem and their timed runs: what run, check and bench share.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "baselines/device_memory.hpp"
#include "baselines/operands.hpp"
#include "cli/bind.hpp"
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

// Operands where their plans run: host memory as it is, or copies of it on the problem's CUDA device.
class Place {
 public:
  // What `set` holds, canaries included.
  Place(const baselines::OperandSet& set, bool cold);
  // What a job holds.
  explicit Place(const Job& job);
  const tessera_tensors& tensors() const { return tensors_; }
  void upload() const;    // inputs, and outputs as the host has them, to the device; nothing on the CPU
  void download() const;  // and back
  bool on_device() const { return clock_ != nullptr; }
  const baselines::DeviceClock& clock() const { return *clock_; }

 private:
  void prepare(const tessera_problem& problem, bool cold);
  void finish(const tessera_tensors& host);
  tessera_tensors tensors_{};
  std::unique_ptr<baselines::Mirror> mirror_;
  std::unique_ptr<baselines::DeviceClock> clock_;
};

// A plan with its workspace, ready to run on the operands of a place that outlives it.
class Runner {
 public:
  Runner(const core::Plan& plan, const Place& place);
  // Runs once and returns its seconds, on a device between two events. Throws Failure when the run fails.
  double run() { return run(place_->tensors()); }
  double run(const tessera_tensors& tensors);  // the same on other operands of the same problem
  double call_seconds();                       // what the call alone takes of the host, on a stream with room
  const core::Plan& plan() const { return plan_; }

 private:
  int call(const tessera_tensors& tensors, tessera_status* status) const;
  core::Plan plan_;
  const Place* place_;
  AlignedBytes workspace_;
  baselines::DeviceBuffer device_workspace_;
};

// The forward pass that backward `problem` needs for o and lse, on the row that planning chooses.
void run_forward(tessera_problem problem, const Place& place);

double now();  // seconds of a steady clock
double median(std::vector<double> values);

// FLOPs and bytes of the lengths that the metadata in `tensors` give.
core::Work exact_work(const core::Problem& problem, const tessera_tensors& tensors);

// Throws Failure (out of memory) when operands of `problem` and their judge exceed the machine's memory.
void require_memory(const core::Problem& problem);

int machine_threads();

// "cpu.textbook" or "cuda.textbook".
const char* textbook_of(const tessera_problem& problem);

}  // namespace tessera::cli
