// The ablations against the float64 judge: a kernel with a step taken back computes the same. On the row's own GPUs; in
// a build without TESSERA_ABLATIONS in the emulator alone.
#include <cstring>
#include <string>

#include "cuda/ablations/rows.hpp"
#include "gpu_support.hpp"

namespace tessera::tests {
namespace {

bool runs_on(const core::KernelEntry& row, int32_t arch) {
  return std::string(row.name).starts_with("cuda.sm90.") ? arch == 90 : arch < 120;
}

class GpuAblations : public ::testing::TestWithParam<const char*> {};

TEST_P(GpuAblations, MatchesTheJudge) {
  TESSERA_NEEDS_GPU();
  const std::string text = std::string("fwd bf16 ") + GetParam() + " cuda";
  const baselines::OperandSet operands = operands_of(text);
  const Judged judged = judge(operands);
  int ran = 0;
  for (const core::KernelEntry& row : cuda::ablations()) {
    if (!runs_on(row, core::cuda_info(0, nullptr)->arch)) continue;
    SCOPED_TRACE(text + " on " + row.name);
    GpuCase gpu(operands_of(text));
    gpu.baseline_rows = cuda::ablations();
    tessera_status status{};
    const int code = gpu.run(row.name, &status);
    if (code == TESSERA_UNSUPPORTED && std::strstr(status.message, "needs more shared memory") != nullptr) continue;
    ASSERT_EQ(code, TESSERA_OK) << status.message;
    EXPECT_STREQ(gpu.plan.entry->name, row.name);
    if (kEmulated && operands.problem.seqlen_k > 2048 && operands.problem.head_dim_qk == 64 &&
        std::strstr(row.name, "sm90") != nullptr) {
      EXPECT_EQ(gpu.plan.launch.tile_m, 192) << "not the wide tiles";
    }
    ++ran;
    for (const auto& one : baselines::compare(gpu.plan.problem, gpu.set.tensors, &judged.exact, &judged.naive)) {
      EXPECT_TRUE(one.passed) << one.tensor << " errs by " << one.max_abs_error << ", allowed " << one.tolerance;
    }
    EXPECT_TRUE(gpu.set.canaries_intact()) << "wrote outside a buffer";
    EXPECT_TRUE(gpu.set.gaps_intact(gpu.plan.problem)) << "wrote between the rows of an output";
  }
  EXPECT_GT(ran, 0);
}

// Several tiles of queries and of keys, whole and cut; heads that share keys; rows without keys; both strides; the wide
// tiles of long rows; few rows over many keys, which the full kernel splits; nothing to do.
INSTANTIATE_TEST_SUITE_P(Words, GpuAblations,
                         ::testing::Values("b1 hq3 sq150 sk300 d64", "b2 hq2 hkv1 sq200 sk520 d64 causal",
                                           "b1 hq1 sq300 sk300 d64 causal layout=bhsd", "b1 hq2 sq140 sk330 d128",
                                           "b1 hq2 hkv1 sq270 sk270 d128 causal", "b1 hq1 sq150 sk40 d64 causal",
                                           "b1 hq5 sq200 sk2100 d64", "b1 hq1 sq64 sk4100 d128",
                                           "b1 hq2 sq7 sk9 d128 scale=0.7", "b0 hq2 sq8 d64", "b1 hq2 sq0 sk7 d128",
                                           "b1 hq2 sq5 sk0 d64"));

TEST(GpuAblationsPlan, RefuseWhatTheyAreNotFor) {
  const struct {
    const char *text, *expected;
  } cases[] = {
      {"bwd bf16 sq64 d64", "forward pass only"},
      {"fwd f16 sq64 d64", "bf16 only"},
      {"fwd bf16 sq64 d64 o=f32", "o in bf16 only"},
      {"fwd bf16 sq64 d96", "head_dim_qk 64 and 128 only (head_dim_qk=96)"},
      {"fwd bf16 sq64 d128 dv64", "head_dim_v=64"},
      {"fwd bf16 sq64 d64 packed", "dense layouts only"},
      {"fwd bf16 sq64 d64 paged=16", "dense layouts only"},
      {"fwd bf16 sq64 d64 window=9,0", "full and causal masks only"},
      {"fwd bf16 b2 sq64 d64 lens=5:7", "no used lengths"},
      {"fwd bf16 sq64 d64 sinks", "no sinks"},
      {"fwd bf16 sq64 d64 bias", "no bias"},
      {"fwd bf16 sq64 d64 alibi", "no ALiBi"},
      {"fwd bf16 sq64 d64 softcap=3", "no softcap"},
      {"fwd bf16 sq64 d64 scale=-1", "scale between"},
      {"fwd bf16 sq64 d64 splits=2", "num_splits=2"},
      {"fwd bf16 sq64 d64 sm_margin=2", "sm_margin=2"},
  };
  for (const core::KernelEntry& row : cuda::ablations()) {
    for (const auto& one : cases) {
      SCOPED_TRACE(std::string(one.text) + " on " + row.name);
      tessera_problem problem;
      tessera_status status{};
      ASSERT_EQ(core::parse_problem(std::string(one.text) + " cuda", &problem, nullptr, &status), TESSERA_OK);
      std::strcpy(problem.device_name, "h200");
      std::strcpy(problem.kernel, row.name);
      core::Plan plan;
      EXPECT_EQ(core::make_plan(problem, cuda::ablations(), &plan, &status), TESSERA_UNSUPPORTED);
      EXPECT_NE(std::string(status.message).find(one.expected), std::string::npos) << status.message;
    }
  }
}

// Their time would be another tile's.
TEST(GpuAblationsPlan, OtherKernelsRefuseWhatHasATileOfItsOwn) {
  for (const char* text : {"fwd bf16 b32 hq16 sq512 d128 causal", "fwd bf16 b1 hq16 sq2048 d64"}) {
    int refused = 0;
    for (const core::KernelEntry& row : cuda::ablations()) {
      tessera_problem problem;
      tessera_status status{};
      ASSERT_EQ(core::parse_problem(std::string(text) + " cuda", &problem, nullptr, &status), TESSERA_OK);
      std::strcpy(problem.device_name, "h200");
      std::strcpy(problem.kernel, row.name);
      core::Plan plan;
      if (core::make_plan(problem, cuda::ablations(), &plan, &status) == TESSERA_OK) continue;
      EXPECT_NE(std::string(status.message).find("a tile of its own"), std::string::npos) << status.message;
      ++refused;
    }
    EXPECT_EQ(refused, 5) << text;
  }
}

// A pin that names none of them chooses the full kernel, and their plans say which step is taken back.
TEST(GpuAblationsPlan, OnlyTheirNamesChooseThem) {
  tessera_problem problem;
  tessera_status status{};
  ASSERT_EQ(core::parse_problem("fwd bf16 b4 hq16 sq4096 d128 cuda", &problem, nullptr, &status), TESSERA_OK);
  std::strcpy(problem.device_name, "h200");
  core::Plan plan;
  for (const char* pin : {"", "*", "cuda.*", "cuda.sm90.forward", "cuda.*.forward"}) {
    std::strcpy(problem.kernel, pin);
    ASSERT_EQ(core::make_plan(problem, cuda::ablations(), &plan, &status), TESSERA_OK) << status.message;
    EXPECT_STREQ(plan.entry->name, "cuda.sm90.forward") << pin;
  }
  for (const core::KernelEntry& row : cuda::ablations()) {
    std::strcpy(problem.kernel, row.name);
    ASSERT_EQ(core::make_plan(problem, cuda::ablations(), &plan, &status), TESSERA_OK) << status.message;
    EXPECT_TRUE(row.pinned_only);
    EXPECT_NE(core::explain(plan, cuda::ablations(), false).find("ablation: "), std::string::npos) << row.name;
  }
  std::strcpy(problem.kernel, "cuda.sm90.forward.one_tile");
  ASSERT_EQ(core::make_plan(problem, cuda::ablations(), &plan, &status), TESSERA_OK) << status.message;
  EXPECT_STREQ(plan.launch.schedule, "one tile a block");
  EXPECT_EQ(plan.launch.workspace_bytes, 0) << "no tickets";
}

}  // namespace
}  // namespace tessera::tests
