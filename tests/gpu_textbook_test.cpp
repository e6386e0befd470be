// cuda.textbook against the float64 judge: the row in both passes, and the step that does both in one run. Its plan is
// checked without a device too.
#include <cmath>
#include <cstring>
#include <string>

#include "baselines/cuda_blas.hpp"
#include "baselines/cuda_textbook.hpp"
#include "gpu_support.hpp"

namespace tessera::tests {
namespace {

constexpr core::KernelEntry kRows[] = {baselines::kCudaTextbook, baselines::kTextbookStep};

// Runs `kernel` and judges what the pass writes; of a step o and lse too.
void check_textbook(baselines::OperandSet operands, const Judged& judged, const core::KernelEntry& kernel) {
  GpuCase gpu(std::move(operands));
  gpu.baseline_rows = kRows;
  const core::Problem problem = validated(gpu.set.problem);
  const bool step = std::strcmp(kernel.name, baselines::kTextbookStep.name) == 0;
  core::Problem forward = problem;
  forward.pass = TESSERA_FORWARD;
  forward.flags = (problem.flags | TESSERA_FLAG_LSE) & ~(TESSERA_FLAG_D_LSE | TESSERA_FLAG_D_SINKS);
  if (problem.pass == TESSERA_BACKWARD) {
    baselines::store_forward(problem, judged.exact, gpu.set.tensors);
    for (const baselines::OutputView& view : baselines::output_views(forward, gpu.set.tensors)) {
      if (step) std::memset(view.data, 0xff, static_cast<size_t>(view.span() * core::dtype_bytes(view.dtype)));
    }
  }
  tessera_status status{};
  ASSERT_EQ(gpu.run(kernel.name, &status), TESSERA_OK) << status.message;
  EXPECT_STREQ(gpu.plan.entry->name, kernel.name);
  for (const core::Problem& judged_pass : {problem, forward}) {
    if (judged_pass.pass == TESSERA_FORWARD && problem.pass == TESSERA_BACKWARD && !step) continue;
    for (const auto& one : baselines::compare(judged_pass, gpu.set.tensors, &judged.exact, &judged.naive)) {
      EXPECT_TRUE(one.passed) << one.tensor << " errs by " << one.max_abs_error << ", allowed " << one.tolerance;
    }
  }
  EXPECT_TRUE(gpu.set.canaries_intact()) << "wrote outside a buffer";
  EXPECT_TRUE(gpu.set.gaps_intact(problem)) << "wrote between the rows of an output";
}

void check_textbook(const std::string& text, void (*adjust)(tessera_problem*) = nullptr) {
  tessera_problem problem;
  core::TextExtras extras;
  ASSERT_EQ(core::parse_problem(text + " cuda", &problem, &extras, nullptr), TESSERA_OK) << text;
  if (problem.pass == TESSERA_FORWARD) problem.flags |= TESSERA_FLAG_LSE;
  if (adjust != nullptr) adjust(&problem);
  const Judged judged = judge(baselines::make_operands(problem, extras));
  for (const core::KernelEntry& kernel : kRows) {
    if (problem.pass == TESSERA_FORWARD && &kernel != kRows) continue;
    SCOPED_TRACE(text + " on " + kernel.name);
    check_textbook(baselines::make_operands(problem, extras), judged, kernel);
  }
}

class GpuTextbook : public ::testing::TestWithParam<const char*> {};

TEST_P(GpuTextbook, MatchesTheJudge) {
  TESSERA_NEEDS_GPU();
  for (const char* pass : {"fwd bf16 ", "bwd bf16 ", "bwd f16 "}) check_textbook(std::string(pass) + GetParam());
}

INSTANTIATE_TEST_SUITE_P(Words, GpuTextbook,
                         ::testing::Values("b1 hq1 sq1 d8", "b2 hq3 sq33 sk45 d40", "b2 hq4 hkv2 sq20 sk35 d24 dv16",
                                           "b1 hq6 hkv1 sq9 sk300 d16 causal", "b1 hq2 sq40 sk20 d16 causal",
                                           "b2 hq2 sq40 sk20 d16 causal topleft", "b1 hq2 sq33 d16 window=5,3",
                                           "b2 hq4 hkv2 sq20 sk30 d16 softcap=3 causal", "b2 hq2 sq30 d16 alibi causal",
                                           "b1 hq4 hkv2 sq20 d16 alibi softcap=9 layout=bhsd",
                                           "b1 hq2 sq30 sk20 d16 sinks causal", "b1 hq2 sq20 d16 scale=-0.3",
                                           "b3 hq2 hkv1 sq20 sk30 d16 layout=bhsd causal"));

TEST(GpuTextbookTerms, GradientsOfLseAndSinks) {
  TESSERA_NEEDS_GPU();
  check_textbook("bwd bf16 b2 hq4 hkv2 sq30 sk40 d16 dlse causal");
  check_textbook("bwd f16 b2 hq2 sq40 sk30 d16 dlse sinks causal");
}

TEST(GpuTextbookTypes, FloatOutputsOfNarrowInputs) {
  TESSERA_NEEDS_GPU();
  for (const char* heads : {"hq2", "hq4 hkv2"}) {
    check_textbook("bwd bf16 b2 " + std::string(heads) + " sq20 sk30 d16 o=f32", [](tessera_problem* p) {
      p->d_o.dtype = p->q.dtype;
      p->dq.dtype = p->dk.dtype = p->dv.dtype = TESSERA_F32;
    });
  }
}

// The gradient is that of the lse it is given: of keys that are a part of a row's, as of one device's in a ring.
TEST(GpuTextbookTerms, ProbabilitiesAreOfTheGivenLse) {
  TESSERA_NEEDS_GPU();
  baselines::OperandSet operands = operands_of("bwd bf16 b1 hq2 sq20 sk30 d16 cuda");
  const Judged judged = judge(operands);
  GpuCase gpu(std::move(operands));
  gpu.baseline_rows = kRows;
  auto* lse = static_cast<float*>(gpu.set.tensors.lse);
  for (int i = 0; i < 2 * 20; ++i) lse[i] += 1.0f;  // the weights of these keys are 1 / e of all
  tessera_status status{};
  ASSERT_EQ(gpu.run(baselines::kCudaTextbook.name, &status), TESSERA_OK) << status.message;
  const auto* dv = static_cast<const uint16_t*>(gpu.set.tensors.dv);
  for (int64_t i = 0; i < 30 * 2 * 16; ++i) {
    ASSERT_NEAR(baselines::load_element(TESSERA_BF16, dv, i), judged.exact.dv[static_cast<size_t>(i)] * std::exp(-1.0),
                0.01)
        << i;
  }
}

int plan_for(const std::string& text, core::Plan* plan, tessera_status* status,
             void (*adjust)(tessera_problem*) = nullptr) {
  tessera_problem problem;
  EXPECT_EQ(core::parse_problem(text + " cuda", &problem, nullptr, status), TESSERA_OK) << status->message;
  std::strcpy(problem.device_name, "h200");
  if (adjust != nullptr) adjust(&problem);
  return core::make_plan(problem, kRows, plan, status);
}

TEST(CudaTextbookPlan, RefusesWithAReason) {
  if (!baselines::have_cublas()) GTEST_SKIP() << "libcublas.so.13 is not here";
  const struct {
    const char *text, *kernel, *expected;
    void (*adjust)(tessera_problem*);
  } cases[] = {
      {"bwd f32 sq64 d64", "cuda.textbook", "f16 and bf16", nullptr},
      {"bwd bf16 sq64 d64 packed", "cuda.textbook", "dense layouts only", nullptr},
      {"bwd bf16 sq64 d64 bias=h dbias", "cuda.textbook", "nor bias", nullptr},
      {"bwd bf16 b2 sq64 d64 lens=5:7", "cuda.textbook", "used lengths", nullptr},
      {"bwd bf16 sq64 d64 splits=2", "cuda.textbook", "num_splits=2", nullptr},
      {"bwd bf16 sq0 sk4 d64", "cuda.textbook", "at least one query", nullptr},
      {"bwd bf16 sq64 d64", "cuda.textbook", "d_o.dtype=", [](tessera_problem* p) { p->d_o.dtype = TESSERA_F32; }},
      {"bwd bf16 hq16 sq1048576 d64", "cuda.textbook", "2^40 scores (seqlen_k=1048576)", nullptr},
      {"fwd bf16 sq64 d64", "cuda.textbook.step", "both passes of a backward problem", nullptr},
      {"bwd f32 sq64 d64", "cuda.textbook.step", "f16 and bf16", nullptr},
  };
  for (const auto& one : cases) {
    core::Plan plan;
    tessera_status status{};
    const std::string text = std::string(one.text) + " kernel=" + one.kernel;
    EXPECT_EQ(plan_for(text, &plan, &status, one.adjust), TESSERA_UNSUPPORTED) << text;
    EXPECT_NE(std::string(status.message).find(one.expected), std::string::npos) << text << ": " << status.message;
  }
}

// Bytes of all pairs, rows of delta and sums of a group, each rounded up to 256.
TEST(CudaTextbookPlan, WorkspaceHoldsEveryPair) {
  if (!baselines::have_cublas()) GTEST_SKIP() << "libcublas.so.13 is not here";
  const int64_t mib = 1 << 20;  // pairs of b2 hq4 sq256 sk512
  const struct {
    const char* text;
    int64_t bytes;
  } cases[] = {
      {"fwd bf16 b2 hq4 sq256 sk512 d64", 6 * mib},
      {"bwd bf16 b2 hq4 sq256 sk512 d64", 6 * mib + 2 * 4 * 256 * 4},
      {"bwd bf16 b2 hq4 sq256 sk512 d64 softcap=9", 10 * mib + 2 * 4 * 256 * 4},
      {"bwd bf16 b2 hq4 hkv2 sq256 sk512 d64 dv32", 6 * mib + 2 * 4 * 256 * 4 + 2 * 4 * 512 * (64 + 32) * 4},
      {"bwd bf16 b1 hq1 sq1 sk1 d8", 3 * 256},
  };
  for (const auto& one : cases) {
    for (const core::KernelEntry& kernel : kRows) {
      if (std::strncmp(one.text, "fwd", 3) == 0 && &kernel != kRows) continue;
      core::Plan plan;
      tessera_status status{};
      ASSERT_EQ(plan_for(std::string(one.text) + " kernel=" + kernel.name, &plan, &status), TESSERA_OK)
          << status.message;
      EXPECT_EQ(plan.launch.workspace_bytes, one.bytes) << one.text << " on " << kernel.name;
      EXPECT_GT(plan.launch.seconds, 0);
      const std::string words = core::explain(plan, kRows, false);
      EXPECT_NE(words.find("P in device memory"), std::string::npos) << words;
    }
  }
}

}  // namespace
}  // namespace tessera::tests
