// Planning: the walk over the list, pins, refusals, explanations, and what a run checks before it starts. The rows here
// are the test's own, so the answers do not depend on the machine.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernel_entry.hpp"
#include "problem_text.hpp"

namespace tessera::core {
namespace {

Refusal refuse_always(const Problem& p, const DeviceInfo&) { return {"takes nothing", "head_dim_qk", p.head_dim_qk}; }
Refusal refuse_causal(const Problem& p, const DeviceInfo&) {
  return p.right == 0 ? Refusal{"takes no causal mask"} : Refusal{};
}
Refusal refuse_never(const Problem&, const DeviceInfo&) { return {}; }
Launch small_launch(const Problem&, const DeviceInfo&) {
  Launch launch;
  launch.tile_m = 3;
  launch.tile_n = 5;
  launch.workspace_bytes = 512;
  launch.seconds = 1e-3;
  launch.instructions = "test";
  return launch;
}
int runs = 0;
int run_counting(const Plan&, const RunContext& context) {
  EXPECT_NE(context.executor, nullptr);
  ++runs;
  return TESSERA_OK;
}

constexpr KernelEntry kRows[] = {{"cpu.test.never", refuse_always, small_launch, run_counting},
                                 {"cpu.test.plain", refuse_causal, small_launch, run_counting},
                                 {"cpu.test.all", refuse_never, small_launch, run_counting},
                                 {"cpu.test.judge", refuse_never, small_launch, run_counting, true},
                                 {"cuda.test.all", refuse_never, small_launch, run_counting}};

tessera_problem parse(const std::string& text) {
  tessera_problem problem;
  tessera_status status;
  EXPECT_EQ(parse_problem(text, &problem, nullptr, &status), TESSERA_OK) << status.message;
  return problem;
}

struct Planned {
  int code;
  tessera_status status{};
  Plan plan{};
};
Planned plan_of(const std::string& text) {
  Planned planned;
  planned.code = make_plan(parse(text), kRows, &planned.plan, &planned.status);
  return planned;
}

TEST(Plan, TakesTheFirstRowThatDoesNotRefuse) {
  const Planned plain = plan_of("sq8 d64 kernel=cpu.test.*");
  ASSERT_EQ(plain.code, TESSERA_OK) << plain.status.message;
  EXPECT_STREQ(plain.plan.entry->name, "cpu.test.plain");
  EXPECT_EQ(plain.plan.passed_over, 1);
  EXPECT_STREQ(plain.plan.first_reason, "takes nothing");
  const Planned causal = plan_of("sq8 d64 causal kernel=cpu.test.*");
  ASSERT_EQ(causal.code, TESSERA_OK);
  EXPECT_STREQ(causal.plan.entry->name, "cpu.test.all");
  EXPECT_EQ(causal.plan.passed_over, 2);
}

TEST(Plan, PinsAreNamesOrGlobs) {
  for (const char* pin : {"cpu.test.all", "cpu.test.al?", "*.all", "cpu.*.a*l", "cpu.*all"}) {
    const Planned planned = plan_of(std::string("sq8 d64 kernel=") + pin);
    ASSERT_EQ(planned.code, TESSERA_OK) << pin << ": " << planned.status.message;
    EXPECT_STREQ(planned.plan.entry->name, "cpu.test.all") << pin;
    EXPECT_EQ(planned.plan.passed_over, 0) << "excluded rows are not passed over";
  }
  EXPECT_EQ(plan_of("sq8 d64 kernel=cpu.test").code, TESSERA_UNSUPPORTED) << "a pin matches whole names";
  EXPECT_STREQ(plan_of("sq8 d64 kernel=cpu.test.j*").plan.entry->name, "cpu.test.judge");
}

TEST(Plan, BaselinesRunOnlyWhenNamed) {
  const Planned planned = plan_of("sq8 d64 kernel=*");
  ASSERT_EQ(planned.code, TESSERA_OK);
  EXPECT_STRNE(planned.plan.entry->name, "cpu.test.judge");
  for (const char* broad : {"*judge", "cpu.*judge", "c*.test.judge", "cpu.*.judge", "cpu.????.judge"})
    EXPECT_EQ(plan_of(std::string("sq8 d64 kernel=") + broad).code, TESSERA_UNSUPPORTED)
        << broad << " names no baseline";
  EXPECT_EQ(plan_of("sq8 d64 kernel=cpu.test.ju*").code, TESSERA_OK);
}

TEST(Plan, NoMatchIsUnsupportedWithTheReasons) {
  const Planned none = plan_of("sq8 d64 kernel=cpu.tset.*");
  EXPECT_EQ(none.code, TESSERA_UNSUPPORTED);
  EXPECT_NE(std::strstr(none.status.message, "no kernel is named \"cpu.tset.*\""), nullptr) << none.status.message;
  EXPECT_EQ(none.plan.entry, nullptr);
  const Planned refused = plan_of("sq8 d64 kernel=cpu.test.never");
  EXPECT_EQ(refused.code, TESSERA_UNSUPPORTED);
  EXPECT_NE(std::strstr(refused.status.message, "cpu.test.never: takes nothing (head_dim_qk=64)"), nullptr)
      << refused.status.message;
}

TEST(Plan, TheEnvironmentPinsToo) {
  ASSERT_EQ(setenv("TESSERA_KERNEL", "cpu.test.all", 1), 0);
  const Planned by_environment = plan_of("sq8 d64");
  const Planned by_problem = plan_of("sq8 d64 kernel=cpu.test.plain");
  ASSERT_EQ(unsetenv("TESSERA_KERNEL"), 0);
  ASSERT_EQ(by_environment.code, TESSERA_OK) << by_environment.status.message;
  EXPECT_STREQ(by_environment.plan.entry->name, "cpu.test.all");
  EXPECT_STREQ(by_problem.plan.entry->name, "cpu.test.plain") << "the problem's own pin wins";
}

TEST(Plan, LogsOneLine) {
  ASSERT_EQ(setenv("TESSERA_LOG", "plan", 1), 0);
  testing::internal::CaptureStderr();
  plan_of("sq8 d64 kernel=cpu.test.*");
  const std::string log = testing::internal::GetCapturedStderr();
  ASSERT_EQ(unsetenv("TESSERA_LOG"), 0);
  EXPECT_EQ(log,
            "tessera: fwd f32 b1 hq1 hkv1 sq8 sk8 d64 kernel=cpu.test.* cpu -> cpu.test.plain (1 passed over, first: "
            "takes nothing)\n");
  testing::internal::CaptureStderr();
  plan_of("sq8 d64 kernel=cpu.test.*");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << "silent by default";
}

TEST(Plan, InvalidProblemsAreRefusedBeforeAnyRow) {
  tessera_problem problem = parse("sq8 d64");
  problem.heads_kv = 0;
  Plan plan{};
  tessera_status status;
  EXPECT_EQ(make_plan(problem, kRows, &plan, &status), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(plan.entry, nullptr);
}

TEST(Plan, NamedDevicesExplainButDoNotRun) {
  tessera_problem problem = parse("bf16 sq8 d64 cuda kernel=cuda.test.*");
  std::strcpy(problem.device_name, "h200");
  Plan plan{};
  tessera_status status;
  ASSERT_EQ(make_plan(problem, kRows, &plan, &status), TESSERA_OK) << status.message;
  EXPECT_STREQ(plan.entry->name, "cuda.test.all");
  EXPECT_NE(explain(plan, kRows, false).find("h200"), std::string::npos);
  const tessera_tensors tensors{};
  EXPECT_EQ(run_plan(plan, &tensors, nullptr, 0, nullptr, &status), TESSERA_NO_DEVICE);
  EXPECT_NE(std::strstr(status.message, "h200"), nullptr);
  std::strcpy(problem.device_name, "h2000");
  EXPECT_EQ(make_plan(problem, kRows, &plan, &status), TESSERA_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(status.message, "device_name is \"h2000\""), nullptr);
}

TEST(Plan, AnAbsentDeviceIsNamed) {
  tessera_problem problem = parse("bf16 sq8 d64 cuda");
  problem.device = 4096;
  Plan plan{};
  tessera_status status;
  EXPECT_EQ(make_plan(problem, kRows, &plan, &status), TESSERA_NO_DEVICE);
  EXPECT_NE(std::strstr(status.message, "device is 4096"), nullptr) << status.message;
}

TEST(Explain, WordsAndJsonSayTheSame) {
  const Planned planned = plan_of("bf16 b2 hq8 hkv2 sq128 d64 kernel=cpu.test.*");
  ASSERT_EQ(planned.code, TESSERA_OK);
  const std::string words = explain(planned.plan, kRows, false);
  for (const char* part : {"cpu.test.plain", "3 queries x 5 keys", "512 B", "test", "1 ms",
                           "takes nothing (head_dim_qk=64)", "runs only when pinned", "would run; stands behind"}) {
    EXPECT_NE(words.find(part), std::string::npos) << part << " in:\n" << words;
  }
  const auto json = nlohmann::json::parse(explain(planned.plan, kRows, true));
  for (const char* key :
       {"problem",      "device",       "kernel",    "tile_m",        "tile_n",          "stages",
        "num_splits",   "threads",      "registers", "shared_bytes",  "workspace_bytes", "schedule",
        "instructions", "flops",        "bytes",     "bound",         "bound_seconds",   "estimate_seconds",
        "passed_over",  "first_reason", "rows",      "schedule_bytes"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_EQ(json["kernel"], "cpu.test.plain");
  EXPECT_EQ(json["problem"], "fwd bf16 b2 hq8 hkv2 sq128 sk128 d64 kernel=cpu.test.* cpu");
  EXPECT_EQ(json["flops"], 4.0 * 128 * 128 * 64 * 8 * 2);
  EXPECT_EQ(json["bytes"], 2.0 * 2 * 128 * 64 * (8 + 2 + 2 + 8));
  EXPECT_EQ(json["passed_over"], 1);
}

TEST(Explain, EveryRowOfTheLibraryIsAnsweredFor) {
  tessera_status status;
  Plan plan{};
  ASSERT_EQ(make_plan(parse("sq64 d64"), {}, &plan, &status), TESSERA_OK) << status.message;
  const auto json = nlohmann::json::parse(explain(plan, {}, true));
  EXPECT_EQ(json["rows"].size() + 1, cpu_kernels().size());
  for (const auto& row : json["rows"]) EXPECT_NE(row["reason"], "");
}

TEST(Work, CountsKeptPairsAndLeastBytes) {
  const auto work_of = [](const char* text, uint64_t flags = 0) {
    tessera_problem given = parse(text);
    given.flags |= flags;
    Problem problem{};
    EXPECT_EQ(validate(given, &problem, nullptr), TESSERA_OK);
    return count_work(problem);
  };
  EXPECT_EQ(work_of("hq2 sq4 sk4 d8 causal").flops, 4.0 * 10 * 8 * 2);
  EXPECT_EQ(work_of("bwd hq2 sq4 sk4 d8 causal").flops, 2.5 * 4.0 * 10 * 8 * 2);
  EXPECT_EQ(work_of("hq2 sq4 sk6 d8 dv2").flops, 2.0 * 24 * (8 + 2) * 2);
  EXPECT_EQ(work_of("b2 sq10 d8 packed lens=10:6").flops, 4.0 * 2 * 8 * 8 * 8) << "packed: spread evenly";
  EXPECT_EQ(work_of("f16 hq2 hkv1 sq4 sk6 d8", TESSERA_FLAG_LSE).bytes,
            2.0 * 8 * (4 * 2 + 6 + 6 + 4 * 2) + 4.0 * 4 * 2);
  EXPECT_EQ(work_of("b0 sq8 d8").flops, 0.0);
  EXPECT_EQ(work_of("sq1 d2147483647").flops, 4.0 * 2147483647) << "the dims' sum is more than an int32 holds";
}

// A row that forgets to refuse them would size its tiles in an int32.
TEST(Plan, EveryRowRefusesHugeHeadDims) {
  for (const std::string pass : {"fwd", "bwd"}) {
    for (const char* dtype : {" f16", " f32"}) {
      for (const bool gpu : {false, true}) {
        tessera_problem problem = parse(pass + dtype + " b5 hq32 sq7126 d1900000000" + (gpu ? " cuda" : ""));
        if (gpu) std::strcpy(problem.device_name, "h200");
        Plan plan{};
        tessera_status status{};
        EXPECT_EQ(make_plan(problem, {}, &plan, &status), TESSERA_UNSUPPORTED)
            << pass << dtype << ": " << status.message;
      }
    }
  }
}

// What a run checks, with a row that only counts.
struct RunFixture {
  Plan plan{};
  tessera_tensors tensors{};
  tessera_status status{};
  alignas(256) std::byte workspace[512];
  alignas(64) float q[512], k[512], v[512], o[512], lse[8];

  explicit RunFixture(const std::string& text = "f32 hq2 sq4 d16", uint64_t flags = TESSERA_FLAG_LSE) {
    tessera_problem problem = parse(text + " kernel=cpu.test.all");
    problem.flags |= flags;
    EXPECT_EQ(make_plan(problem, kRows, &plan, &status), TESSERA_OK) << status.message;
    tensors.size = sizeof tensors;
    tensors.q = q;
    tensors.k = k;
    tensors.v = v;
    tensors.o = o;
    tensors.lse = lse;
  }
  int run(const tessera_exec* exec = nullptr) {
    return run_plan(plan, &tensors, workspace, sizeof workspace, exec, &status);
  }
  void expect(int code, const char* fragment, const tessera_exec* exec = nullptr) {
    const int before = runs;
    EXPECT_EQ(run(exec), code) << status.message;
    EXPECT_EQ(status.code, code);
    EXPECT_NE(std::strstr(status.message, fragment), nullptr) << fragment << " in: " << status.message;
    EXPECT_EQ(runs, before + (code == TESSERA_OK ? 1 : 0)) << "a refused run must not start";
  }
};

TEST(Run, GoodArgumentsRun) {
  RunFixture f;
  f.expect(TESSERA_OK, "");
  RunFixture without("f32 hq2 sq4 d16", 0);
  without.tensors.lse = nullptr;
  without.expect(TESSERA_OK, "");
}

TEST(Run, PointersAreChecked) {
  const struct {
    void (*edit)(RunFixture&);
    int code;
    const char* fragment;
  } cases[] = {
      {[](RunFixture& f) { f.tensors.size -= 8; }, TESSERA_INVALID_ARGUMENT, "tensors.size is"},
      {[](RunFixture& f) { f.tensors.q = nullptr; }, TESSERA_INVALID_ARGUMENT, "q is NULL"},
      {[](RunFixture& f) { f.tensors.k = nullptr; }, TESSERA_INVALID_ARGUMENT, "k is NULL"},
      {[](RunFixture& f) { f.tensors.v = nullptr; }, TESSERA_INVALID_ARGUMENT, "v is NULL"},
      {[](RunFixture& f) { f.tensors.o = nullptr; }, TESSERA_INVALID_ARGUMENT, "o is NULL"},
      {[](RunFixture& f) { f.tensors.lse = nullptr; }, TESSERA_INVALID_ARGUMENT, "lse is NULL"},
      {[](RunFixture& f) { f.tensors.q = f.q + 1; }, TESSERA_INVALID_ARGUMENT, "multiple of 16 bytes"},
      {[](RunFixture& f) { f.tensors.lse = reinterpret_cast<char*>(f.lse) + 2; }, TESSERA_INVALID_ARGUMENT, "lse is"},
      {[](RunFixture& f) { f.tensors.o = f.q; }, TESSERA_INVALID_ARGUMENT, "overlaps q"},
      {[](RunFixture& f) { f.tensors.lse = f.v; }, TESSERA_INVALID_ARGUMENT, "lse is"},
      {[](RunFixture& f) { f.tensors.k_scale = f.lse; }, TESSERA_INVALID_ARGUMENT,
       "k_scale is given but its operand is f32"}};
  for (const auto& bad : cases) {
    RunFixture f;
    bad.edit(f);
    f.expect(bad.code, bad.fragment);
  }
  RunFixture f;
  EXPECT_EQ(run_plan(f.plan, nullptr, f.workspace, 512, nullptr, &f.status), TESSERA_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(f.status.message, "tensors is NULL"), nullptr);
}

TEST(Run, PartialOverlapsAreRefusedAndSlicesAreNot) {
  alignas(64) static float buffer[3 * 512];
  RunFixture f;
  f.tensors.q = buffer;
  f.tensors.o = buffer + 64;  // q has 4 * 2 * 16 elements
  f.expect(TESSERA_INVALID_ARGUMENT, "o is");
  f.tensors.o = buffer + 128;
  f.expect(TESSERA_OK, "");
  f.tensors.lse = buffer + 256 - 4;
  f.expect(TESSERA_INVALID_ARGUMENT, "overlaps o");
  // q, k, v, o as slices of one [4, 4, 2, 16] buffer.
  RunFixture sliced;
  tessera_problem problem = parse("f32 hq2 sq4 d16 kernel=cpu.test.all");
  for (tessera_desc* desc : {&problem.q, &problem.k, &problem.v, &problem.o}) {
    desc->stride[1] = 4 * 2 * 16;
    desc->stride[2] = 16;
    desc->stride[3] = 1;
  }
  ASSERT_EQ(make_plan(problem, kRows, &sliced.plan, &sliced.status), TESSERA_OK) << sliced.status.message;
  sliced.tensors.q = buffer;
  sliced.tensors.k = buffer + 32;
  sliced.tensors.v = buffer + 64;
  sliced.tensors.o = buffer + 96;
  sliced.expect(TESSERA_OK, "");
}

TEST(Run, UnusedPointersAreIgnored) {
  RunFixture f;
  f.tensors.page_table = reinterpret_cast<const int32_t*>(1);
  f.tensors.alibi_slopes = reinterpret_cast<const float*>(1);
  f.tensors.d_o = f.tensors.q;
  f.tensors.dq = reinterpret_cast<void*>(1);
  f.expect(TESSERA_OK, "");
}

TEST(Run, LsePointersNeedOnlyTheirElementsAlignment) {
  RunFixture f;
  f.tensors.lse = f.lse + 1;
  f.expect(TESSERA_OK, "");
}

TEST(Run, EmptyOperandsMayBeNull) {
  for (const char* text : {"f32 b0 sq4 d16", "f32 sq0 sk0 d16", "f32 b2 sq0 sk0 d16"}) {
    RunFixture f(text);
    f.tensors.q = f.tensors.k = f.tensors.v = nullptr;
    f.tensors.o = f.tensors.lse = nullptr;
    f.expect(TESSERA_OK, "");
  }
  RunFixture keys("f32 hq2 sq4 sk0 d16");
  keys.tensors.k = keys.tensors.v = nullptr;
  keys.expect(TESSERA_OK, "");
}

TEST(Run, WorkspaceIsChecked) {
  RunFixture f;
  EXPECT_EQ(run_plan(f.plan, &f.tensors, f.workspace, 511, nullptr, &f.status), TESSERA_WORKSPACE_TOO_SMALL);
  EXPECT_NE(std::strstr(f.status.message, "511 bytes; expected at least 512"), nullptr) << f.status.message;
  EXPECT_EQ(run_plan(f.plan, &f.tensors, nullptr, 512, nullptr, &f.status), TESSERA_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(f.status.message, "workspace is NULL"), nullptr);
  EXPECT_EQ(run_plan(f.plan, &f.tensors, f.workspace + 64, 512, nullptr, &f.status), TESSERA_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(f.status.message, "multiple of 256"), nullptr);
}

TEST(Run, ExecutorsAreChecked) {
  RunFixture f;
  tessera_executor executor{sizeof executor, 1, 0, nullptr, [](void*, int64_t, void (*)(void*, int64_t), void*) {}};
  tessera_exec exec{sizeof exec, nullptr, &executor};
  f.expect(TESSERA_OK, "", &exec);
  exec.size = 8;
  f.expect(TESSERA_INVALID_ARGUMENT, "exec.size is 8", &exec);
  exec.size = sizeof exec;
  executor.size = 0;
  f.expect(TESSERA_INVALID_ARGUMENT, "executor.size is 0", &exec);
  executor.size = sizeof executor;
  executor.threads = 0;
  f.expect(TESSERA_INVALID_ARGUMENT, "executor.threads is 0", &exec);
  executor.threads = 1;
  executor.parallel = nullptr;
  f.expect(TESSERA_INVALID_ARGUMENT, "executor.parallel is NULL", &exec);
}

TEST(Run, MetadataIsCheckedBeforeTheKernel) {
  RunFixture f("f32 b2 hq2 sq4 d16 packed");
  const int32_t good[] = {0, 4, 8}, bad[] = {0, 4, 9};
  f.tensors.cu_seqlens_q = f.tensors.cu_seqlens_k = good;
  f.expect(TESSERA_OK, "");
  f.tensors.cu_seqlens_k = bad;
  f.expect(TESSERA_INVALID_ARGUMENT, "cu_seqlens_k[2] is 9");
  f.tensors.cu_seqlens_k = reinterpret_cast<const int32_t*>(reinterpret_cast<const char*>(good) + 2);
  f.expect(TESSERA_INVALID_ARGUMENT, "multiple of 4 bytes");
  f.tensors.cu_seqlens_k = nullptr;
  f.expect(TESSERA_INVALID_ARGUMENT, "cu_seqlens_k is NULL");
  // The metadata check alone needs no other pointer.
  tessera_tensors only{};
  only.size = sizeof only;
  only.cu_seqlens_q = only.cu_seqlens_k = good;
  EXPECT_EQ(check_metadata(f.plan, &only, nullptr, &f.status), TESSERA_OK) << f.status.message;
  only.cu_seqlens_q = bad;
  EXPECT_EQ(check_metadata(f.plan, &only, nullptr, &f.status), TESSERA_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace tessera::core
