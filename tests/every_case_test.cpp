// Every case on every row of the kernel lists, library and baselines: a row runs and is within the tolerance rule, or
// it refuses with a reason.
#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <string>

#include "cases.hpp"
#include "judged_run.hpp"

namespace tessera::tests {
namespace {

// How often each row ran, and each reason it refused with.
using Tally = std::map<std::string, std::map<std::string, int>>;

void run_cases(const std::vector<Case>& cases, Tally* tally) {
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name());
    const baselines::OperandSet operands = operands_of(one);
    const Judged judged = judge(operands);
    int library_runs = 0;
    for (const core::KernelEntry* row : cpu_rows()) {
      RunResult result;
      EXPECT_EQ(check_row(operands, judged, row->name, &result), "");
      if (result.code == TESSERA_OK) {
        ++(*tally)[row->name]["ran"];
        library_runs += row->pinned_only ? 0 : 1;
      } else {
        EXPECT_EQ(result.code, TESSERA_UNSUPPORTED);
        EXPECT_NE(result.message, "");
        ++(*tally)[row->name]["refused: " + result.message];
      }
    }
    const bool quantized = operands.problem.k.dtype != operands.problem.q.dtype;
    const bool splits_backward = operands.problem.pass == TESSERA_BACKWARD && operands.problem.num_splits > 1;
    EXPECT_TRUE(library_runs > 0 || quantized || splits_backward);
  }
}

void print(const Tally& tally) {
  for (const auto& [kernel, answers] : tally) {
    for (const auto& [answer, count] : answers) std::printf("%-22s %4d  %s\n", kernel.c_str(), count, answer.c_str());
  }
}

TEST(EveryCase, ForwardOnEveryRow) {
  Tally tally;
  run_cases(forward_cases(), &tally);
  print(tally);
  EXPECT_EQ(tally["cpu.reference"].count("ran"), 1u);
}

TEST(EveryCase, BackwardOnEveryRow) {
  Tally tally;
  run_cases(backward_cases(), &tally);
  print(tally);
  EXPECT_EQ(tally["cpu.reference"].count("ran"), 1u);
}

}  // namespace
}  // namespace tessera::tests
