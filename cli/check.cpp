// `tessera check`: what a kernel writes against the float64 judge, on operands made from text or on tensors from files.
#include <nlohmann/json.hpp>

#include "baselines/operands.hpp"
#include "cli/commands.hpp"
#include "cli/failure.hpp"
#include "cli/progress.hpp"
#include "cli/runner.hpp"
#include "cli/units.hpp"

namespace tessera::cli {
namespace {

using Json = nlohmann::ordered_json;

// One line of the table or one object: a kernel on a problem.
struct Outcome {
  std::string problem, kernel, reason;  // reason: refused
  baselines::Comparison worst;
};

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

std::string json_line(const Outcome& outcome) {
  const bool ran = outcome.reason.empty();
  Json line;
  line["problem"] = outcome.problem;
  line["kernel"] = outcome.kernel.empty() ? Json(nullptr) : Json(outcome.kernel);
  line["status"] = ran ? "ran" : "refused";
  line["reason"] = ran ? Json(nullptr) : Json(outcome.reason);
  line["tensor"] = ran ? Json(outcome.worst.tensor) : Json(nullptr);
  line["max_abs_error"] = ran ? number(outcome.worst.max_abs_error) : Json(nullptr);
  line["rms_error"] = ran ? number(outcome.worst.rms_error) : Json(nullptr);
  line["tolerance"] = ran ? number(outcome.worst.tolerance) : Json(nullptr);
  line["passed"] = ran ? Json(outcome.worst.passed) : Json(nullptr);
  return line.dump(-1, ' ', true);
}

std::vector<std::string> table_row(const Outcome& outcome) {
  if (!outcome.reason.empty()) return {outcome.kernel.empty() ? "-" : outcome.kernel, "refused: " + outcome.reason};
  const baselines::Comparison& worst = outcome.worst;
  return {outcome.kernel,
          worst.passed ? "pass" : "FAIL",
          worst.tensor,
          fmt::format("{:.2e}", worst.max_abs_error),
          fmt::format("{:.2e}", worst.rms_error),
          fmt::format("{:.2e}", worst.tolerance)};
}

void print_table(const std::string& problem, const std::vector<Outcome>& outcomes) {
  std::vector<std::vector<std::string>> rows = {{"kernel", "", "worst", "max abs error", "RMS error", "tolerance"}};
  std::string refused;
  for (const Outcome& outcome : outcomes) {
    if (outcome.reason.empty()) {
      rows.push_back(table_row(outcome));
    } else {
      refused += fmt::format("  {}refused: {}\n", outcome.kernel.empty() ? "" : outcome.kernel + " ", outcome.reason);
    }
  }
  fmt::print("{}\n{}{}", problem, rows.size() > 1 ? table_text(rows) : "", refused);
  std::fflush(stdout);
}

// Runs every candidate on the same operands. `reset` poisons the outputs, `intact` looks at the canaries.
template <class Reset, class Intact>
std::vector<Outcome> check_candidates(const std::string& text, const std::vector<Candidate>& candidates,
                                      const tessera_tensors& tensors, Reset reset, Intact intact) {
  Progress progress;
  std::vector<Outcome> outcomes;
  baselines::Results exact, naive;
  bool judged = false;
  for (const Candidate& candidate : candidates) {
    Outcome outcome{text, candidate.kernel, candidate.reason, {}};
    if (candidate.reason.empty()) {
      const core::Problem& problem = candidate.plan.problem;
      reset();
      progress.show(fmt::format("{}: {}", text, candidate.kernel));
      Runner(candidate.plan, tensors).run();
      if (!judged) {
        progress.show(fmt::format("{}: float64 reference", text));
        exact = baselines::reference(problem, tensors, baselines::Precision::exact, machine_threads());
        naive = baselines::reference(problem, tensors, baselines::Precision::naive, machine_threads());
        judged = true;
      }
      outcome.worst = baselines::worst(baselines::compare(problem, tensors, &exact, &naive, machine_threads()));
      if (!intact()) {
        outcome.worst.tensor = "bytes outside the tensors";
        outcome.worst.passed = false;
      }
    }
    outcomes.push_back(outcome);
  }
  return outcomes;
}

int report(const std::string& text, const std::vector<Candidate>& candidates, const std::vector<Outcome>& outcomes,
           bool json) {
  int exit_code = kDone;
  bool ran = false;
  for (const Outcome& outcome : outcomes) {
    if (json) fmt::print("{}\n", json_line(outcome));
    if (!outcome.reason.empty()) continue;
    ran = true;
    if (!outcome.worst.passed) exit_code = kCheckFailed;
  }
  if (!json) print_table(text, outcomes);
  // Of many rows some always refuse; the problem is refused when none ran.
  if (!ran)
    for (const Candidate& candidate : candidates) exit_code = worse_exit(exit_code, candidate.exit_code);
  std::fflush(stdout);
  return exit_code;
}

int check_request(const Request& request, bool json) {
  const std::vector<Candidate> candidates = find_candidates(request.problem);
  bool any = false;
  for (const Candidate& candidate : candidates) {
    if (!any && candidate.reason.empty()) require_memory(candidate.plan.problem);
    any = any || candidate.reason.empty();
  }
  std::vector<Outcome> outcomes;
  if (any) {
    const baselines::OperandSet operands = baselines::make_operands(request.problem, request.extras);
    // The operands fix totals and strides that the text left open: plan again for what is in memory.
    outcomes = check_candidates(
        request.text, find_candidates(operands.problem), operands.tensors, [&] { operands.poison_outputs(); },
        [&] { return operands.canaries_intact(); });
  } else {
    outcomes = check_candidates(
        request.text, candidates, {}, [] {}, [] { return true; });
  }
  return report(request.text, candidates, outcomes, json);
}

int check_files(const CheckOptions& options) {
  if (!options.files.out.empty()) bad_input("--out {}: check writes no file", options.files.out);
  const Job job = bind_tensors(load_tensors(options.files), options.problems, true);
  validate_request(job.problem);
  const std::vector<Candidate> candidates = find_candidates(job.problem);
  const auto poison = [&] {
    for (const auto& [name, tensor] : job.outputs)
      std::fill_n(tensor.data.data(), tensor.data.bytes(), std::byte{0xff});
  };
  const auto outcomes = check_candidates(job.text(), candidates, job.tensors, poison, [] { return true; });
  return report(job.text(), candidates, outcomes, options.json);
}

}  // namespace

int check_command(const CheckOptions& options) {
  if (options.files.given()) return check_files(options);
  if (options.problems.empty()) bad_input("check: no problem, expected e.g. \"fwd f32 b1 hq2 sq128 d64 causal\"");
  std::vector<Request> requests;
  for (const std::string& text : options.problems) requests.push_back(parse_request(text));
  int exit_code = kDone;
  for (const Request& request : requests) exit_code = worse_exit(exit_code, check_request(request, options.json));
  return exit_code;
}

}  // namespace tessera::cli
