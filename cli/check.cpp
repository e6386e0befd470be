// `tessera check`: what a kernel writes against the float64 judge, on operands made from text or on tensors from files.
#include <nlohmann/json.hpp>
#include <optional>

#include "baselines/operands.hpp"
#include "cli/check.hpp"
#include "cli/commands.hpp"
#include "cli/failure.hpp"
#include "cli/json_text.hpp"
#include "cli/progress.hpp"
#include "cli/runner.hpp"
#include "cli/units.hpp"

namespace tessera::cli {
namespace {

using Json = nlohmann::ordered_json;

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

}  // namespace

std::string check_json(const Outcome& outcome) {
  const bool ran = outcome.ran();
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
  return json_text(line);
}

std::string check_text(const std::string& problem, const std::vector<Outcome>& outcomes) {
  std::vector<std::vector<std::string>> rows = {{"kernel", "", "worst", "max abs error", "RMS error", "tolerance"}};
  std::string refused;
  for (const Outcome& outcome : outcomes) {
    const baselines::Comparison& worst = outcome.worst;
    if (outcome.ran()) {
      rows.push_back({outcome.kernel, worst.passed ? "pass" : "FAIL", worst.tensor,
                      fmt::format("{:.2e}", worst.max_abs_error), fmt::format("{:.2e}", worst.rms_error),
                      fmt::format("{:.2e}", worst.tolerance)});
    } else {
      refused += outcome.refusal_text;
    }
  }
  return problem + '\n' + (rows.size() > 1 ? table_text(rows) : "") + refused;
}

int exit_of_outcomes(const std::vector<Outcome>& outcomes) {
  int ran = kDone, refused = kDone;
  bool any = false;
  for (const Outcome& outcome : outcomes) {
    any = any || outcome.ran();
    if (!outcome.ran()) refused = worse_exit(refused, outcome.exit_code);
    if (outcome.ran() && !outcome.worst.passed) ran = kCheckFailed;
  }
  return any ? ran : refused;
}

namespace {

// What is known before it runs.
Outcome outcome_of(const std::string& text, const Candidate& candidate) {
  return {text, candidate.kernel, candidate.full_reason(), candidate.refusal_text(), candidate.exit_code, {}};
}

// Runs every candidate on the same operands, which `make_place` puts where it runs. `reset` poisons the outputs,
// `intact` looks at the canaries.
template <class MakePlace, class Reset, class Intact>
std::vector<Outcome> check_candidates(const std::string& text, const std::vector<Candidate>& candidates,
                                      const tessera_tensors& tensors, MakePlace make_place, Reset reset,
                                      Intact intact) {
  Progress progress;
  std::vector<Outcome> outcomes;
  baselines::Results exact, naive;
  bool judged = false;
  std::optional<Place> place;
  for (const Candidate& candidate : candidates) {
    Outcome outcome = outcome_of(text, candidate);
    if (!candidate.refused()) {
      const core::Problem& problem = candidate.plan.problem;
      if (!place) place.emplace(make_place());
      if (!judged) {
        progress.show(fmt::format("{}: float64 reference", text));
        exact = baselines::reference(problem, tensors, baselines::Precision::exact, machine_threads());
        naive = baselines::reference(problem, tensors, baselines::Precision::naive, machine_threads());
        judged = true;
      }
      reset();
      // Gradients are judged for the exact o and lse, rounded to what holds them.
      if (problem.pass == TESSERA_BACKWARD) baselines::store_forward(problem, exact, tensors);
      progress.show(fmt::format("{}: {}", text, candidate.kernel));
      place->upload();
      Runner(candidate.plan, *place).run();
      place->download();
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

int report(const std::string& text, const std::vector<Outcome>& outcomes, bool json) {
  if (json) {
    for (const Outcome& outcome : outcomes) fmt::print("{}\n", check_json(outcome));
  } else {
    fmt::print("{}", check_text(text, outcomes));
  }
  std::fflush(stdout);
  return exit_of_outcomes(outcomes);
}

int check_request(const Request& request, bool json) {
  const std::vector<Candidate> candidates = find_candidates(request.problem);
  bool any = false;
  for (const Candidate& candidate : candidates) {
    if (!any && !candidate.refused()) require_memory(candidate.plan.problem);
    any = any || !candidate.refused();
  }
  std::vector<Outcome> outcomes;
  if (any) {
    const baselines::OperandSet operands = baselines::make_operands(request.problem, request.extras);
    // The operands fix totals and strides that the text left open: plan again for what is in memory.
    outcomes = check_candidates(
        request.text, find_candidates(operands.problem), operands.tensors, [&] { return Place(operands, false); },
        [&] { operands.poison_outputs(); }, [&] { return operands.canaries_intact(); });
  } else {
    for (const Candidate& candidate : candidates) outcomes.push_back(outcome_of(request.text, candidate));
  }
  return report(request.text, outcomes, json);
}

int check_files(const CheckOptions& options) {
  const Job job = bind_tensors(load_tensors(options.files), options.problems, true);
  validate_request(job.problem);
  const std::vector<Candidate> candidates = find_candidates(job.problem);
  const auto poison = [&] {
    for (const auto& [name, tensor] : job.outputs)
      std::fill_n(tensor.data.data(), tensor.data.bytes(), std::byte{0xff});
  };
  const auto outcomes = check_candidates(
      job.text(), candidates, job.tensors, [&] { return Place(job); }, poison, [] { return true; });
  return report(job.text(), outcomes, options.json);
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
