// What `tessera check` found out, how it is printed, and what it makes of the process's exit code.
#pragma once

#include <string>
#include <vector>

#include "baselines/operands.hpp"

namespace tessera::cli {

// A kernel on a problem.
struct Outcome {
  std::string problem, kernel;
  std::string reason;             // why refused; empty when it ran
  std::string refusal_text;       // the same for people
  int exit_code = 0;              // of the refusal
  baselines::Comparison worst{};  // of what ran
  bool ran() const { return reason.empty(); }
};

std::string check_json(const Outcome& outcome);
std::string check_text(const std::string& problem, const std::vector<Outcome>& outcomes);

// A failed comparison fails the check. Of many rows some always refuse: a problem is refused when none ran.
int exit_of_outcomes(const std::vector<Outcome>& outcomes);

}  // namespace tessera::cli
