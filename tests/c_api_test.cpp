// The C interface as a caller sees it: sizes, NULLs, texts written as snprintf does, nothing thrown, nothing left out.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "tessera/tessera.h"
#include "tessera/tessera.hpp"

namespace {

tessera_problem parse(const char* text) {
  tessera_problem problem;
  tessera_status status;
  EXPECT_EQ(tessera_problem_parse(text, &problem, &status), TESSERA_OK) << status.message;
  return problem;
}

TEST(CApi, InitGivesDefaults) {
  tessera_problem problem;
  std::memset(static_cast<void*>(&problem), 0x5a, sizeof problem);
  tessera_problem_init(&problem, sizeof problem);
  EXPECT_EQ(problem.size, sizeof problem);
  EXPECT_EQ(problem.device, -1);
  EXPECT_EQ(problem.left, -1);
  EXPECT_EQ(problem.right, -1);
  EXPECT_TRUE(std::isnan(problem.scale)) << "absent, not 0";
  EXPECT_EQ(problem.q.dtype, TESSERA_F32);
  EXPECT_EQ(problem.batch, 0);
  EXPECT_EQ(problem.kernel[0], '\0');
  tessera_problem_init(nullptr, sizeof problem);
}

TEST(CApi, InitOfAnotherSizeStaysInsideItAndIsRefused) {
  std::vector<unsigned char> small(sizeof(tessera_problem) + 64, 0x5a);
  auto* problem = reinterpret_cast<tessera_problem*>(small.data());
  tessera_problem_init(problem, 64);
  EXPECT_EQ(problem->size, 64u);
  for (size_t i = 64; i < small.size(); ++i) ASSERT_EQ(small[i], 0x5a) << i;
  tessera_plan* plan = nullptr;
  tessera_status status;
  EXPECT_EQ(tessera_plan_create(problem, &plan, &status), TESSERA_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(status.message, "problem.size is 64"), nullptr);
  tessera_problem_init(problem, small.size());
  EXPECT_EQ(tessera_plan_create(problem, &plan, nullptr), TESSERA_INVALID_ARGUMENT)
      << "a larger size is not known either";
  EXPECT_EQ(plan, nullptr);
}

TEST(CApi, NullArgumentsAreNamed) {
  tessera_status status;
  tessera_problem problem = parse("sq8 d64");
  tessera_plan* plan = nullptr;
  const auto message = [&](int code) {
    EXPECT_EQ(code, TESSERA_INVALID_ARGUMENT);
    EXPECT_EQ(status.code, code);
    return std::string(status.message);
  };
  EXPECT_EQ(message(tessera_problem_parse(nullptr, &problem, &status)), "text is NULL; expected a pointer");
  EXPECT_EQ(message(tessera_problem_parse("sq8 d64", nullptr, &status)), "problem is NULL; expected a pointer");
  EXPECT_EQ(message(tessera_plan_create(nullptr, &plan, &status)), "problem is NULL; expected a pointer");
  EXPECT_EQ(message(tessera_plan_create(&problem, nullptr, &status)), "plan is NULL; expected a pointer");
  EXPECT_EQ(message(tessera_plan_run(nullptr, nullptr, nullptr, 0, nullptr, &status)),
            "plan is NULL; expected a pointer");
  EXPECT_EQ(message(tessera_check_metadata(nullptr, nullptr, nullptr, &status)), "plan is NULL; expected a pointer");
  EXPECT_EQ(message(tessera_merge(nullptr, nullptr, &status)), "merge_args is NULL; expected a pointer");
  EXPECT_EQ(message(tessera_merge_backward(nullptr, nullptr, &status)), "merge_args is NULL; expected a pointer");
  EXPECT_EQ(message(tessera_append(nullptr, nullptr, nullptr, nullptr, &status)),
            "problem is NULL; expected a pointer");
  EXPECT_EQ(message(tessera_quantize(nullptr, nullptr, &status)), "quantize_args is NULL; expected a pointer");
  EXPECT_EQ(tessera_plan_create(&problem, nullptr, nullptr), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(tessera_supports(nullptr, nullptr, 0), TESSERA_INVALID_ARGUMENT);
  tessera_plan_destroy(nullptr);
  EXPECT_EQ(tessera_plan_workspace(nullptr), 0u);
  EXPECT_STREQ(tessera_plan_kernel(nullptr), "");
  const char* reason = nullptr;
  EXPECT_EQ(tessera_plan_passed_over(nullptr, &reason), 0);
  EXPECT_STREQ(reason, "");
  EXPECT_EQ(tessera_plan_explain(nullptr, 0, nullptr, 0), 0u);
  EXPECT_EQ(tessera_problem_format(nullptr, nullptr, 0), 0u);
}

TEST(CApi, QuantizeTellsWhatIsWrong) {
  tessera_quantize_args quantize{};
  tessera_status status;
  EXPECT_EQ(tessera_quantize(&quantize, nullptr, &status), TESSERA_INVALID_ARGUMENT);
  quantize.size = sizeof quantize;
  EXPECT_EQ(tessera_quantize(&quantize, nullptr, &status), TESSERA_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(status.message, "heads is 0; expected at least 1"), nullptr) << status.message;
}

// A text function at every capacity: length as snprintf's, terminated, nothing past it.
template <class Write>
void expect_snprintf(Write write) {
  const size_t length = write(nullptr, size_t{0});
  ASSERT_GT(length, 10u);
  std::string full(length, '?');
  EXPECT_EQ(write(full.data(), length + 1), length);
  for (const size_t capacity : {size_t{0}, size_t{1}, size_t{10}, length, length + 1, length + 9}) {
    std::vector<char> buffer(length + 32, '#');
    EXPECT_EQ(write(buffer.data(), capacity), length);
    for (size_t i = std::min(capacity, length + 1); i < buffer.size(); ++i) ASSERT_EQ(buffer[i], '#') << capacity;
    if (capacity == 0) continue;
    const size_t kept = std::min(capacity - 1, length);
    EXPECT_EQ(buffer[kept], '\0');
    EXPECT_EQ(std::string(buffer.data()), full.substr(0, kept));
  }
}

TEST(CApi, TextsAreWrittenAsSnprintfDoes) {
  tessera_problem problem = parse("sq8 d64 causal");
  expect_snprintf([&](char* text, size_t capacity) { return tessera_problem_format(&problem, text, capacity); });
  expect_snprintf([&](char* text, size_t capacity) { return tessera_devices(0, text, capacity); });
  expect_snprintf([&](char* text, size_t capacity) { return tessera_devices(1, text, capacity); });
  tessera_plan* plan = nullptr;
  tessera_status status;
  ASSERT_EQ(tessera_plan_create(&problem, &plan, &status), TESSERA_OK) << status.message;
  for (const int json : {0, 1}) {
    expect_snprintf([&](char* text, size_t capacity) { return tessera_plan_explain(plan, json, text, capacity); });
  }
  tessera_plan_destroy(plan);
}

TEST(CApi, SupportsAgreesWithPlanCreate) {
  for (const char* text : {"sq8 d64", "bwd sq8 d64 deterministic threads=3", "e4m3 sq8 d64", "bf16 sq8 d64 cuda=4000",
                           "sq8 d5000", "sq8 d64 kernel=nothing.*", "hq3 hkv2 sq8 d64", "bf16 kv=int8 sq1 sk64 d64"}) {
    tessera_problem problem = parse(text);
    char reasons[2048];
    const int code = tessera_supports(&problem, reasons, sizeof reasons);
    tessera_plan* plan = nullptr;
    EXPECT_EQ(tessera_plan_create(&problem, &plan, nullptr), code) << text;
    EXPECT_EQ(plan != nullptr, code == TESSERA_OK) << text;
    EXPECT_EQ(reasons[0] == '\0', code == TESSERA_OK) << text << ": " << reasons;
    EXPECT_EQ(tessera_supports(&problem, nullptr, 0), code);
    tessera_plan_destroy(plan);
  }
}

TEST(CApi, Version) { EXPECT_EQ(tessera_version(), 0x000100u); }

// The snippet of the C++ layer's head, run.
tessera::Status attend(const float* q, const float* k, const float* v, float* o, void* stream) {
  auto plan = tessera::plan(tessera::Problem::parse("fwd f32 b1 hq2 hkv1 sq3 d4 causal"));
  if (!plan) return plan.status();
  auto workspace = tessera::Workspace::allocate(plan->workspace_bytes());
  if (!workspace) return workspace.status();
  return plan->run({.q = q, .k = k, .v = v, .o = o}, *workspace, stream);
}

TEST(CppLayer, PlansAndRuns) {
  alignas(64) float q[24], k[12], v[12], o[24];
  for (int i = 0; i < 24; ++i) q[i] = 0;
  for (int i = 0; i < 12; ++i) {
    k[i] = 0;
    v[i] = static_cast<float>(i / 4);
  }
  for (float& x : o) x = NAN;
  const tessera::Status done = attend(q, k, v, o, nullptr);
  ASSERT_TRUE(done.ok()) << done.message();
  for (int i = 0; i < 24; ++i) EXPECT_EQ(o[i], static_cast<float>(i / 8) / 2) << "row i attends evenly to keys 0..i";
}

TEST(CppLayer, ErrorsAreValues) {
  const auto parsed = tessera::Problem::parse("sq8 d64 nonsense");
  ASSERT_FALSE(parsed);
  EXPECT_EQ(parsed.status().code(), TESSERA_INVALID_ARGUMENT);
  const auto plan = tessera::plan(parsed);
  ASSERT_FALSE(plan);
  EXPECT_NE(std::strstr(plan.status().message(), "'nonsense'"), nullptr) << "a bad text passes through plan()";
  EXPECT_EQ(tessera::plan(tessera::Problem()).status().code(), TESSERA_INVALID_ARGUMENT) << "no heads";
  std::string reasons;
  EXPECT_EQ(tessera::supports(tessera::Problem().set_heads(3, 2), &reasons), TESSERA_INVALID_ARGUMENT);
  EXPECT_NE(reasons.find("heads_q is 3 and heads_kv is 2"), std::string::npos);
}

TEST(CppLayer, SettersBuildTheParsedProblem) {
  tessera::Problem built;
  built.set_dtype(TESSERA_F16)
      .set_batch(2)
      .set_heads(4, 2)
      .set_seqlen(8, 16)
      .set_head_dim(64)
      .set_causal()
      .set_kernel("cpu.*");
  const auto parsed = tessera::Problem::parse("f16 b2 hq4 hkv2 sq8 sk16 d64 causal kernel=cpu.*");
  ASSERT_TRUE(parsed);
  EXPECT_EQ(built.format(), parsed->format());
  const auto plan = tessera::plan(built);
  ASSERT_TRUE(plan) << plan.status().message();
  EXPECT_EQ(std::string(plan->kernel()).rfind("cpu.", 0), 0u);
  EXPECT_NE(plan->explain().find(plan->kernel()), std::string::npos);
  EXPECT_GE(plan->passed_over(), 0);
}

TEST(CppLayer, WorkspaceIsAlignedAndMoves) {
  auto workspace = tessera::Workspace::allocate(1000);
  ASSERT_TRUE(workspace);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(workspace->data()) % 256, 0u);
  const tessera::Workspace moved = std::move(*workspace);
  EXPECT_EQ(moved.bytes(), 1000u);
  const auto none = tessera::Workspace::allocate(0);
  ASSERT_TRUE(none);
  EXPECT_EQ(none->data(), nullptr);
}

TEST(CppLayer, WorkspaceWithoutMemoryIsAStatus) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizers' allocators stop the process instead of failing";
#endif
  EXPECT_EQ(tessera::Workspace::allocate(SIZE_MAX / 2).status().code(), TESSERA_OUT_OF_MEMORY);
}

TEST(CppLayer, Merges) {
  const float o[] = {1, 3}, lse[] = {0, 0};
  float merged = NAN, merged_lse = NAN;
  const tessera::Status done = tessera::merge({.states = 2,
                                               .batch = 1,
                                               .seqlen_q = 1,
                                               .heads = 1,
                                               .head_dim_v = 1,
                                               .o = o,
                                               .lse = lse,
                                               .o_out = &merged,
                                               .lse_out = &merged_lse});
  ASSERT_TRUE(done.ok()) << done.message();
  EXPECT_FLOAT_EQ(merged, 2);
  EXPECT_FLOAT_EQ(merged_lse, std::log(2.0f));
}

}  // namespace
