// What no healthy kernel lets the binary show: failed checks, the order of exit codes; and how numbers are printed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "baselines/operands.hpp"
#include "cli/check.hpp"
#include "cli/cold_caches.hpp"
#include "cli/failure.hpp"
#include "cli/runner.hpp"
#include "cli/units.hpp"

namespace tessera::cli {
namespace {

Outcome outcome_of(bool ran, bool passed) {
  Outcome outcome{"fwd", "kernel", ran ? "" : "cannot", "  refused: cannot\n", ran ? kDone : kRefused, {}};
  outcome.worst = {"o", 1.0, 0.5, 0.25, passed};
  return outcome;
}

TEST(CliExit, AFailedCheckIsOne) {
  EXPECT_EQ(exit_of_outcomes({outcome_of(true, true)}), kDone);
  EXPECT_EQ(exit_of_outcomes({outcome_of(true, true), outcome_of(true, false)}), kCheckFailed);
  EXPECT_EQ(exit_of_outcomes({outcome_of(false, false)}), kRefused);
  // Some rows always refuse; that alone is no failure, nor does it hide one.
  EXPECT_EQ(exit_of_outcomes({outcome_of(false, false), outcome_of(true, true)}), kDone);
  EXPECT_EQ(exit_of_outcomes({outcome_of(false, false), outcome_of(true, false)}), kCheckFailed);
  EXPECT_NE(check_text("fwd", {outcome_of(true, false)}).find("FAIL"), std::string::npos);
  EXPECT_NE(check_json(outcome_of(true, false)).find("\"passed\":false"), std::string::npos);
  Outcome not_a_number = outcome_of(true, false);
  not_a_number.worst.max_abs_error = NAN;
  EXPECT_NE(check_json(not_a_number).find("\"max_abs_error\":null"), std::string::npos);
}

TEST(CliExit, TheWorstOfSeveralCounts) {
  const int order[] = {kDone, kRefused, kCheckFailed, kDeviceError, kBadInput};
  for (size_t a = 0; a < 5; ++a)
    for (size_t b = 0; b < 5; ++b) EXPECT_EQ(worse_exit(order[a], order[b]), order[std::max(a, b)]);
  EXPECT_EQ(exit_of_status(TESSERA_INVALID_ARGUMENT), kBadInput);
  EXPECT_EQ(exit_of_status(TESSERA_UNSUPPORTED), kRefused);
  EXPECT_EQ(exit_of_status(TESSERA_NO_DEVICE), kRefused);
  for (const int status : {TESSERA_DEVICE_ERROR, TESSERA_OUT_OF_MEMORY, TESSERA_INTERNAL})
    EXPECT_EQ(exit_of_status(status), kDeviceError);
}

TEST(CliUnits, ThreeDigits) {
  EXPECT_EQ(seconds_text(1.234e-7), "0.12 us");
  EXPECT_EQ(seconds_text(0.01239), "12.4 ms");
  EXPECT_EQ(seconds_text(2), "2.00 s");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(4.0 * 1024 * 1024 * 1024), "4.00 GiB");
  EXPECT_EQ(rate_text(139.4e9), "139 GFLOP/s");
  EXPECT_EQ(rate_text(1.5e12), "1.50 TFLOP/s");
  EXPECT_EQ(table_text({{"a", "bb"}, {"ccc"}}), "  a    bb\n  ccc\n");
}

TEST(CliUnits, MedianOfOddAndEven) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
  EXPECT_EQ(median({7}), 7);
}

// Work of varying lengths is counted by the lengths in memory, not by their maxima.
TEST(CliUnits, WorkOfPackedLengths) {
  core::TextExtras extras;
  tessera_problem problem;
  ASSERT_EQ(core::parse_problem("f32 b3 sq8 d16 packed lens=2:4:8", &problem, &extras, nullptr), TESSERA_OK);
  const baselines::OperandSet operands = baselines::make_operands(problem, extras);
  core::Problem checked;
  ASSERT_EQ(core::validate(operands.problem, &checked, nullptr), TESSERA_OK);
  EXPECT_EQ(exact_work(checked, operands.tensors).flops, 4.0 * 16 * (2 * 2 + 4 * 4 + 8 * 8));
}

struct ColdCase {
  baselines::OperandSet operands;
  core::Work work{};
};
ColdCase cold_case(const std::string& text) {
  ColdCase result{baselines::make_operands(text, nullptr)};
  core::Problem problem;
  EXPECT_EQ(core::validate(result.operands.problem, &problem, nullptr), TESSERA_OK) << text;
  result.work = exact_work(problem, result.operands.tensors);
  return result;
}

TEST(CliColdCaches, FewBytesMakeNoMoreThanTheLimit) {
  constexpr size_t kLimit = 1 << 20;
  for (const char* text : {"f32 sq1 d4", "f32 sq1 sk1 d1 dv1", "f16 sq1 sk7 d8 dv16", "f32 hkv2 hq2 sq1 sk300 d64",
                           "bf16 b3 sq1 sk33 d16 paged=16", "f32 sq1 sk1024 d128", "f32 sq1 sk4096 d128"}) {
    const ColdCase c = cold_case(text);
    ColdCaches caches(c.operands, c.work, kLimit);
    EXPECT_LE(caches.bytes(), kLimit) << text;
    const size_t copies = caches.copies();
    EXPECT_EQ(caches.bytes() == 0, copies == 1) << text;  // one copy alone may be too large
    const tessera_tensors first = caches.next();
    EXPECT_EQ(first.k, c.operands.tensors.k) << text;
    EXPECT_EQ(first.v, c.operands.tensors.v) << text;
    std::set<const void*> seen = {first.k, first.v};
    for (size_t i = 1; i < copies; ++i) {
      const tessera_tensors& next = caches.next();
      seen.insert({next.k, next.v});
      EXPECT_EQ(next.q, first.q);
      EXPECT_EQ(next.o, first.o);
      ASSERT_EQ(std::memcmp(next.k, first.k, 2), 0) << text << ", copy " << i;
      ASSERT_EQ(std::memcmp(next.v, first.v, 2), 0) << text << ", copy " << i;
    }
    EXPECT_EQ(seen.size(), 2 * copies) << text;
    EXPECT_EQ(caches.next().k, first.k) << text << ": they come in turn";
  }
}

TEST(CliColdCaches, CopiesFillTheLimitAndHoldAllOfKAndV) {
  const ColdCase c = cold_case("f32 sq1 sk16 d16 dv32");
  ColdCaches caches(c.operands, c.work, 1 << 20);
  EXPECT_EQ(caches.bytes(), (size_t{1} << 20) / 3072 * 3072);
  EXPECT_EQ(caches.copies(), (size_t{1} << 20) / 3072 + 1);
  for (size_t i = 0; i < caches.copies(); ++i) {
    const tessera_tensors& next = caches.next();
    ASSERT_EQ(std::memcmp(next.k, c.operands.tensors.k, 16 * 16 * 4), 0) << i;
    ASSERT_EQ(std::memcmp(next.v, c.operands.tensors.v, 16 * 32 * 4), 0) << i;
  }
}

TEST(CliColdCaches, SmallCopiesAreCounted) {
  const ColdCase c = cold_case("f32 sq1 d4");
  const ColdCaches caches(c.operands, c.work);
  EXPECT_EQ(caches.copies(), 65537u);
  EXPECT_LE(caches.bytes(), size_t{1} << 30);
  const ColdCase arithmetic = cold_case("f32 sq256 d64");
  EXPECT_EQ(ColdCaches(arithmetic.operands, arithmetic.work).copies(), 1u) << "arithmetic bounds it";
}

}  // namespace
}  // namespace tessera::cli
