// cuda.fa1 against the float64 judge, a row for each budget of shared memory; its plan without a device too.
#include <cstring>
#include <string>

#include "baselines/cuda_fa1.hpp"
#include "gpu_support.hpp"

namespace tessera::tests {
namespace {

using baselines::kCudaFa1;

constexpr int64_t kMostShared = 160 << 10;  // of the largest tiles

void check_fa1(const std::string& text) {
  const baselines::OperandSet operands = operands_of(text + " cuda");
  const Judged judged = judge(operands);
  for (const core::KernelEntry& row : kCudaFa1) {
    SCOPED_TRACE(text + " on " + row.name);
    GpuCase gpu(operands_of(text + " cuda"));
    gpu.baseline_rows = kCudaFa1;
    tessera_status status{};
    const int code = gpu.run(row.name, &status);
    if (code == TESSERA_UNSUPPORTED && core::cuda_info(0, nullptr)->shared_bytes_per_block < kMostShared) {
      EXPECT_NE(std::string(status.message).find("needs more shared memory"), std::string::npos) << status.message;
      continue;
    }
    ASSERT_EQ(code, TESSERA_OK) << status.message;
    EXPECT_STREQ(gpu.plan.entry->name, row.name);
    for (const auto& one : baselines::compare(gpu.plan.problem, gpu.set.tensors, &judged.exact, &judged.naive)) {
      EXPECT_TRUE(one.passed) << one.tensor << " errs by " << one.max_abs_error << ", allowed " << one.tolerance;
    }
    EXPECT_TRUE(gpu.set.canaries_intact()) << "wrote outside a buffer";
    EXPECT_TRUE(gpu.set.gaps_intact(gpu.plan.problem)) << "wrote between the rows of an output";
  }
}

class GpuFa1 : public ::testing::TestWithParam<const char*> {};

TEST_P(GpuFa1, MatchesTheJudge) {
  TESSERA_NEEDS_GPU();
  for (const char* dtype : {"fwd bf16 ", "fwd f16 "}) check_fa1(dtype + std::string(GetParam()));
}

// One tile and several, whole and cut; every row and key of the last tiles.
INSTANTIATE_TEST_SUITE_P(Words, GpuFa1,
                         ::testing::Values("b1 hq1 sq1 d8", "b2 hq3 sq33 sk45 d40", "b1 hq4 hkv2 sq90 sk435 d64 causal",
                                           "b1 hq2 sq150 sk70 d64 causal", "b1 hq1 sq150 sk140 d64 causal topleft",
                                           "b1 hq2 hkv1 sq130 sk210 d128", "b1 hq1 sq140 sk230 d96 dv128 causal",
                                           "b1 hq1 sq120 sk150 d64 window=30,9", "b1 hq2 sq20 sk300 d16 dv72 o=f32",
                                           "b2 hq2 sq3 sk0 d16", "b0 hq2 sq8 d16", "b2 hq2 sq0 sk7 d16",
                                           "b1 hq2 sq40 sk200 d32 scale=0.9 layout=bhsd causal"));

int plan_for(const std::string& text, const char* device, core::Plan* plan, tessera_status* status) {
  tessera_problem problem;
  EXPECT_EQ(core::parse_problem(text + " cuda", &problem, nullptr, status), TESSERA_OK) << status->message;
  std::strcpy(problem.device_name, device);
  return core::make_plan(problem, kCudaFa1, plan, status);
}

TEST(CudaFa1Plan, RefusesWithAReason) {
  const struct {
    const char *text, *kernel, *device, *expected;
  } cases[] = {
      {"fwd f32 sq64 d64", "cuda.fa1", "h200", "f16 and bf16"},
      {"bwd bf16 sq64 d64", "cuda.fa1", "h200", "forward pass only"},
      {"fwd bf16 sq64 d64 packed", "cuda.fa1", "h200", "dense layouts only"},
      {"fwd bf16 sq64 d64 bias", "cuda.fa1", "h200", "bias"},
      {"fwd bf16 sq64 d64 sinks", "cuda.fa1", "h200", "sinks"},
      {"fwd bf16 b2 sq64 d64 lens=5:7", "cuda.fa1", "h200", "used lengths"},
      {"fwd bf16 sq64 d64 softcap=3", "cuda.fa1", "h200", "softcap"},
      {"fwd bf16 sq64 d64 scale=-1", "cuda.fa1", "h200", "scale above 0"},
      {"fwd bf16 sq64 d64 splits=2", "cuda.fa1", "h200", "num_splits=2"},
      {"fwd bf16 sq64 d64 sm_margin=2", "cuda.fa1", "h200", "sm_margin=2"},
      {"fwd bf16 sq64 d192 dv64", "cuda.fa1", "h200", "head_dim_qk=192"},
      {"fwd bf16 sq64 d64 dv136", "cuda.fa1", "h200", "head_dim_v=136"},
      {"fwd bf16 sq64 d128", "cuda.fa1.200k", "rtx4090", "shared_bytes=163840"},
  };
  for (const auto& one : cases) {
    core::Plan plan;
    tessera_status status{};
    const std::string text = std::string(one.text) + " kernel=" + one.kernel;
    EXPECT_EQ(plan_for(text, one.device, &plan, &status), TESSERA_UNSUPPORTED) << text;
    EXPECT_NE(std::string(status.message).find(one.expected), std::string::npos) << text << ": " << status.message;
  }
}

// Tiles of at most the paper's size, O and its statistics in the workspace from the second tile on, and the traffic.
TEST(CudaFa1Plan, TilesWorkspaceAndTraffic) {
  const struct {
    const char *kernel, *dim;
    int32_t rows, keys;
    int64_t shared_bytes;
  } cases[] = {{"cuda.fa1.32k", "d64", 64, 64, 32 << 10},      {"cuda.fa1", "d64", 64, 128, 48 << 10},
               {"cuda.fa1.128k", "d64", 64, 256, 80 << 10},    {"cuda.fa1.200k", "d64", 64, 384, 112 << 10},
               {"cuda.fa1.32k", "d128", 32, 32, 32 << 10},     {"cuda.fa1", "d128", 64, 64, 64 << 10},
               {"cuda.fa1.128k", "d128", 128, 128, 128 << 10}, {"cuda.fa1.200k", "d128", 128, 192, 160 << 10}};
  for (const auto& one : cases) {
    core::Plan plan;
    tessera_status status{};
    const std::string text = "fwd bf16 b2 hq3 sq512 sk768 " + std::string(one.dim) + " kernel=" + one.kernel;
    ASSERT_EQ(plan_for(text, "h200", &plan, &status), TESSERA_OK) << status.message;
    EXPECT_EQ(plan.launch.tile_m, one.rows) << text;
    EXPECT_EQ(plan.launch.tile_n, one.keys) << text;
    EXPECT_EQ(plan.launch.shared_bytes, one.shared_bytes) << text;
    const int64_t dim = plan.problem.head_dim_qk, rows = 6 * 512, tiles = 768 / one.keys;
    EXPECT_EQ(plan.launch.workspace_bytes, rows * (4 * dim + 8)) << text;
    EXPECT_EQ(plan.launch.schedule_bytes, static_cast<double>(6 * 768 * 4 * dim + tiles * rows * 2 * dim +
                                                              2 * (tiles - 1) * rows * (4 * dim + 8) + rows * 2 * dim))
        << text;
    EXPECT_GT(plan.launch.seconds, 0);
    const std::string words = core::explain(plan, kCudaFa1, false);
    const std::string budget = text.substr(text.find("fa1") + 3);  // ".32k", none for 64
    EXPECT_NE(words.find("tiles for " + (budget.empty() ? "64" : budget.substr(1, budget.size() - 2)) + " KiB"),
              std::string::npos)
        << words;
    EXPECT_NE(words.find("traffic"), std::string::npos) << words;
  }
  core::Plan plan;
  tessera_status status{};
  ASSERT_EQ(plan_for("fwd bf16 sq512 sk128 d64 kernel=cuda.fa1", "h200", &plan, &status), TESSERA_OK);
  EXPECT_EQ(plan.launch.workspace_bytes, 0) << "one tile of keys keeps nothing";
}

}  // namespace
}  // namespace tessera::tests
