// Public bug situations about the C interface: refusals, workspaces, optional fields, error texts.
#include <cmath>
#include <cstring>

#include "support.hpp"

namespace tessera::test {
namespace {

Case small_case(int32_t heads_q = 4, int32_t heads_kv = 2) {
  Case c = Case::dense(offered(TESSERA_F32),
                       {.batch = 2, .seqlen_q = 9, .seqlen_k = 20, .heads_q = heads_q, .heads_kv = heads_kv});
  c.randomize(101);
  return c;
}

// fla-org/flash-linear-attention#1029; pytorch/pytorch#191325, #128690: floor division left heads unwritten.
TESSERA_SITUATION(BugApi, HeadCountsThatDoNotDivideAreRefused) {
  for (const auto& [heads_q, heads_kv] :
       std::vector<std::pair<int32_t, int32_t>>{{33, 2}, {3, 2}, {2, 4}, {4, 0}, {0, 0}, {8, 3}, {-4, 2}, {4, -2}}) {
    SCOPED_TRACE(::testing::Message() << heads_q << " on " << heads_kv);
    Case c = small_case(64, 64);
    c.problem.heads_q = heads_q, c.problem.heads_kv = heads_kv;
    expect_refused(c, TESSERA_INVALID_ARGUMENT, "heads_");
    tessera_status status{};
    run(c, {"", false}, &status);
    const std::string message = status.message;
    EXPECT_TRUE(message.find(std::to_string(heads_q)) != std::string::npos ||
                message.find(std::to_string(heads_kv)) != std::string::npos)
        << message;
  }
  Case next = small_case();
  run_on(next);
}

// Dao-AILab/flash-attention commits 1a58058a, bc0e4ac0; sgl-project/sglang#26532: a counter in the workspace was not
// reset, a workspace of another shape was too small.
TESSERA_SITUATION(BugApi, OneWorkspaceForManyShapes) {
  std::vector<Case> cases;
  size_t largest = 0;
  for (int call = 0; call < 20; ++call) {
    cases.push_back(
        Case::dense(call % 2 == 0 ? offered(TESSERA_F32) : TESSERA_BF16, {.batch = 5 - call % 5,
                                                                          .seqlen_q = 1 + call % 3,
                                                                          .seqlen_k = 64 * (1 + call % 7) + call,
                                                                          .heads_q = 4,
                                                                          .heads_kv = 2}));
    cases.back().randomize(static_cast<uint64_t>(102 + call));
    cases.back().problem.num_splits = call % 4;
  }
  struct Prepared {
    tessera_plan* plan;
    tessera_tensors tensors;
    Tensor o, lse;
  };
  std::vector<Prepared> prepared;
  for (Case& c : cases) {
    run_on(c);
    Prepared p{nullptr, c.bind(), c.o.clone(), c.lse.clone()};
    ASSERT_EQ(tessera_plan_create(&c.problem, &p.plan, nullptr), TESSERA_OK);
    largest = std::max(largest, tessera_plan_workspace(p.plan));
    prepared.push_back(p);
  }
  const Storage workspace(largest);
  for (const int fill : {0xff, 0x00, -1}) {  // -1: as the previous round left it
    if (fill >= 0) std::memset(workspace.data(), fill, workspace.bytes());
    for (size_t call = 0; call < cases.size(); ++call) {
      SCOPED_TRACE(call);
      const Prepared& p = prepared[call];
      cases[call].o.poison(), cases[call].lse.poison();
      const size_t bytes = tessera_plan_workspace(p.plan);
      tessera_status status{};
      ASSERT_EQ(plan_run(p.plan, p.tensors, workspace.data(), bytes, &status), TESSERA_OK) << status.message;
      EXPECT_TRUE(cases[call].o.same_bits(p.o));
      EXPECT_TRUE(cases[call].lse.same_bits(p.lse));
    }
  }
  EXPECT_TRUE(workspace.canaries_intact());
  for (const Prepared& p : prepared) tessera_plan_destroy(p.plan);
}

TESSERA_SITUATION(BugApi, WorkspaceOneByteShortIsRefused) {
  int tried = 0;
  for (const Row& row : kernel_rows(Rows::library)) {
    SCOPED_TRACE(row.name);
    Case c = Case::dense(TESSERA_BF16, {.seqlen_q = 100, .seqlen_k = 1000, .heads_q = 4});
    c.randomize(103);
    c.problem.num_splits = 3;
    const tessera_tensors tensors = c.bind();
    std::snprintf(c.problem.kernel, sizeof c.problem.kernel, "%s", row.name.c_str());
    tessera_plan* plan = nullptr;
    if (tessera_plan_create(&c.problem, &plan, nullptr) != TESSERA_OK) continue;
    const size_t bytes = tessera_plan_workspace(plan);
    EXPECT_EQ(bytes % 256, 0u);
    if (bytes > 0) {
      ++tried;
      const Storage workspace(bytes);
      tessera_status status{};
      EXPECT_EQ(plan_run(plan, tensors, workspace.data(), bytes - 1, &status), TESSERA_WORKSPACE_TOO_SMALL);
      EXPECT_NE(std::string(status.message).find(std::to_string(bytes)), std::string::npos) << status.message;
      EXPECT_NE(std::string(status.message).find(std::to_string(bytes - 1)), std::string::npos) << status.message;
      EXPECT_EQ(plan_run(plan, tensors, nullptr, bytes, &status), TESSERA_INVALID_ARGUMENT);
      EXPECT_NE(std::string(status.message).find("workspace"), std::string::npos) << status.message;
      EXPECT_TRUE(c.o.untouched(0, 0, 0, 0));
    }
    tessera_plan_destroy(plan);
  }
  if (tried == 0) GTEST_SKIP() << "no row needs a workspace for split keys";
}

// flashinfer-ai/flashinfer#362, #5177; NVIDIA/TransformerEngine#236; Dao-AILab/flash-attention#165: the size query.
TEST(BugApi, WorkspaceSizeDependsOnTheProblemAlone) {
  size_t previous = 0;
  for (const int64_t seqlen : {1, 64, 65, 1000, 5000, 100000}) {
    tessera_problem problem;
    tessera_problem_init(&problem, sizeof problem);
    problem.batch = 2, problem.heads_q = problem.heads_kv = 4;
    problem.head_dim_qk = problem.head_dim_v = 64;
    problem.seqlen_q = problem.seqlen_k = seqlen;
    problem.num_splits = 2, problem.threads = 2;
    problem.flags = TESSERA_FLAG_LSE;
    size_t sizes[2];
    for (size_t& size : sizes) {
      tessera_plan* plan = nullptr;
      tessera_status status{};
      ASSERT_EQ(tessera_plan_create(&problem, &plan, &status), TESSERA_OK) << status.message;
      size = tessera_plan_workspace(plan);
      tessera_plan_destroy(plan);
    }
    EXPECT_EQ(sizes[0], sizes[1]);
    EXPECT_GE(sizes[0], previous) << "seqlen " << seqlen;
    previous = sizes[0];
  }
}

TEST(BugApi, SizesThatOverflowAreRefused) {
  tessera_problem problem;
  tessera_problem_init(&problem, sizeof problem);
  problem.batch = int64_t{1} << 40, problem.heads_q = problem.heads_kv = 1 << 20;
  problem.head_dim_qk = problem.head_dim_v = 64;
  problem.seqlen_q = problem.seqlen_k = int64_t{1} << 40;
  tessera_plan* plan = nullptr;
  tessera_status status{};
  EXPECT_EQ(tessera_plan_create(&problem, &plan, &status), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(plan, nullptr);
  EXPECT_STRNE(status.message, "");
}

// pytorch/pytorch#197563, #187225; Dao-AILab/flash-attention#1251, #612: dropout. There is none here, so its words are
// refused.
TEST(BugApi, DropoutIsRefusedByName) {
  for (const char* text : {"fwd f32 sq128 d128 dropout=0.17 cpu", "fwd f32 sq128 d128 dropout=0 cpu"}) {
    tessera_problem problem;
    tessera_problem_init(&problem, sizeof problem);
    tessera_status status{};
    EXPECT_EQ(tessera_problem_parse(text, &problem, &status), TESSERA_INVALID_ARGUMENT);
    EXPECT_NE(std::string(status.message).find("dropout"), std::string::npos) << status.message;
  }
}

// Dao-AILab/flash-attention#1749, #1785, #2750, #2902; koboldcpp#1579: sizes and devices that a build lacks were
// reported as success. A support query agrees with the call.
TESSERA_SITUATION(BugApi, UnsupportedSizesAndDevicesAreRefusedUpFront) {
  const auto expect_both = [](Case& c, int code, const std::string& word) {
    expect_refused(c, code, word);
    char reasons[4096] = "";
    EXPECT_EQ(tessera_supports(&c.problem, reasons, sizeof reasons), code);
    EXPECT_NE(std::string(reasons).find(word), std::string::npos) << reasons;
  };
  Case wide = Case::dense(offered(TESSERA_F32), {.seqlen_q = 2, .seqlen_k = 2, .head_dim_qk = 577, .head_dim_v = 64});
  wide.randomize(104);
  expect_both(wide, TESSERA_UNSUPPORTED, "577");
  Case wide_v = Case::dense(offered(TESSERA_F32), {.seqlen_q = 2, .seqlen_k = 2, .head_dim_qk = 64, .head_dim_v = 513});
  wide_v.randomize(105);
  expect_both(wide_v, TESSERA_UNSUPPORTED, "513");
  Case unknown_kernel = small_case();
  tessera_status status{};
  EXPECT_EQ(run(unknown_kernel, {"abacus.*", false}, &status), TESSERA_UNSUPPORTED);
  EXPECT_NE(std::string(status.message).find("abacus"), std::string::npos) << status.message;
  Case no_such_device = small_case();
  no_such_device.problem.device = 1000;
  expect_both(no_such_device, TESSERA_NO_DEVICE, "device");
  Case good = small_case();
  run_on(good);
  EXPECT_EQ(tessera_supports(&good.problem, nullptr, 0), TESSERA_OK);
}

// SKaiNET-developers/SKaiNET#860: a scale of 0 that meant "default".
TESSERA_SITUATION(BugApi, AbsentScaleIsTheDefaultAndZeroIsAValue) {
  Case c = small_case();
  on_every_row(
      c,
      [&] {
        Case given = c.twin();
        given.problem.scale = 0.125;
        run_on(given, c.kernel);
        EXPECT_TRUE(given.o.same_bits(c.o));
        given.problem.scale = 0;
        run_on(given, c.kernel);
        for (int64_t i = 0; i < 9; ++i) EXPECT_NEAR(lse_at(given, 0, i, 0), std::log(20.0), lse_slack(1e-6));
      },
      Rows::library);
  for (const double bad : {kInfinity, -kInfinity}) {
    c.problem.scale = bad;
    expect_refused(c, TESSERA_INVALID_ARGUMENT, "scale");
  }
}

TEST(BugApi, StructsOfUnknownSizeAreRefused) {
  const tessera_problem zero{};
  tessera_plan* plan = nullptr;
  tessera_status status{};
  EXPECT_EQ(tessera_plan_create(&zero, &plan, &status), TESSERA_INVALID_ARGUMENT);
  EXPECT_NE(std::string(status.message).find("size"), std::string::npos) << status.message;
  Case c = small_case();
  tessera_tensors tensors = c.bind();
  tensors.size -= 8;
  EXPECT_EQ(run_raw(c.problem, tensors, &status), TESSERA_INVALID_ARGUMENT);
  EXPECT_NE(std::string(status.message).find("size"), std::string::npos) << status.message;
}

// Dao-AILab/flash-attention#970, #876; pytorch/pytorch#187872; vllm-project/vllm-xpu-kernels#479;
// flashinfer-ai/flashinfer#50: an lse rounded up to tiles, or needed though nobody wants it.
TESSERA_SITUATION(BugApi, LseIsExactlyOneNumberARow) {
  for (const int32_t dtype : offered(kAllTypes))
    for (const int32_t splits : {1, 3}) {
      SCOPED_TRACE(name_of(dtype));
      Case dense = Case::dense(dtype, {.batch = 2, .seqlen_q = 73, .seqlen_k = 200, .heads_q = 3});
      dense.randomize(106);
      Case packed = Case::packed(dtype, {0, 40, 83}, {0, 60, 200}, {.heads_q = 3});
      packed.randomize(107);
      for (Case* c : {&dense, &packed}) {
        c->lse = Tensor(c->lse.dtype(), c->lse.dims(), {.flush = true});
        c->problem.num_splits = splits;
        on_every_row(
            *c,
            [&] {
              Case without = c->twin();
              without.lse = {};
              run_on(without, c->kernel);
              EXPECT_TRUE(without.o.same_bits(c->o));
            },
            Rows::library);
        check_against_judge(*c);
      }
    }
  Case c = small_case();
  tessera_tensors tensors = c.bind();
  tensors.lse = nullptr;
  tessera_status status{};
  EXPECT_EQ(run_raw(c.problem, tensors, &status), TESSERA_INVALID_ARGUMENT);
  EXPECT_NE(std::string(status.message).find("lse"), std::string::npos) << status.message;
}

// flashinfer-ai/flashinfer#3125, #4389; kekzl/imp#658; Dao-AILab/flash-attention#1537: errors logged instead of
// returned.
TESSERA_SITUATION(BugApi, NullPointersAreNamed) {
  Case c = small_case();
  const tessera_tensors good = c.bind();
  const auto refused = [&](auto member, const char* name) {
    tessera_tensors tensors = good;
    tensors.*member = nullptr;
    c.o.poison();
    tessera_status status{};
    EXPECT_EQ(run_raw(c.problem, tensors, &status), TESSERA_INVALID_ARGUMENT) << name;
    EXPECT_NE(std::string(status.message).find(name), std::string::npos) << status.message;
    EXPECT_EQ(run_raw(c.problem, tensors, nullptr), TESSERA_INVALID_ARGUMENT);
    EXPECT_TRUE(c.o.untouched(0, 0, 0, 0));
  };
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  refused(&tessera_tensors::q, "q");
  refused(&tessera_tensors::k, "k");
  refused(&tessera_tensors::v, "v");
  refused(&tessera_tensors::o, "o");
  tessera_plan* plan = nullptr;
  EXPECT_EQ(tessera_plan_create(nullptr, &plan, nullptr), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(tessera_plan_create(&c.problem, nullptr, nullptr), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(tessera_plan_run(nullptr, &good, nullptr, 0, nullptr, nullptr), TESSERA_INVALID_ARGUMENT);
  ASSERT_EQ(tessera_plan_create(&c.problem, &plan, nullptr), TESSERA_OK);
  EXPECT_EQ(tessera_plan_run(plan, nullptr, nullptr, 0, nullptr, nullptr), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(tessera_check_metadata(plan, nullptr, nullptr, nullptr), TESSERA_INVALID_ARGUMENT);
  tessera_plan_destroy(plan);
  tessera_plan_destroy(nullptr);
  EXPECT_EQ(tessera_merge(nullptr, nullptr, nullptr), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  run_on(c);
}

// ModelTC/LightX2V#1031: mixed or unknown dtypes.
TESSERA_SITUATION(BugApi, MixedDtypesAreRefused) {
  Case mixed = small_case();
  mixed.k = Tensor(TESSERA_F16, mixed.k.dims());
  mixed.k.fill(0);
  expect_refused(mixed, TESSERA_INVALID_ARGUMENT, "k");
  Case halves = Case::dense(TESSERA_F16, {.seqlen_q = 4, .seqlen_k = 4});
  halves.v = Tensor(TESSERA_BF16, halves.v.dims());
  halves.randomize(108);
  expect_refused(halves, TESSERA_INVALID_ARGUMENT, "v");
  Case narrowed = Case::dense(offered(TESSERA_F32), {.seqlen_q = 4, .seqlen_k = 4}, TESSERA_F16);
  narrowed.randomize(109);
  expect_refused(narrowed, TESSERA_INVALID_ARGUMENT, "o");
  for (const int32_t dtype : {0, 99, -1}) {
    Case unknown = small_case();
    const tessera_tensors tensors = unknown.bind();
    unknown.problem.q.dtype = unknown.problem.k.dtype = unknown.problem.v.dtype = unknown.problem.o.dtype = dtype;
    tessera_status status{};
    EXPECT_EQ(run_raw(unknown.problem, tensors, &status), TESSERA_INVALID_ARGUMENT) << dtype;
    EXPECT_NE(std::string(status.message).find("dtype"), std::string::npos) << status.message;
  }
}

}  // namespace
}  // namespace tessera::test
