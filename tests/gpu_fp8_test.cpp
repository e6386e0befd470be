// cuda.sm90.forward_fp8 against the float64 judge: layouts, bands, lengths, both orders of v, scales, v's mean, far
// scores. The emulator sums products exactly in float32, which the tensor cores do not, so what it shows of accuracy is
// a bound from below.
#include <cmath>
#include <string>

#include "baselines/elements.hpp"
#include "cases.hpp"
#include "device_info.hpp"
#include "gpu_support.hpp"

namespace tessera::tests {
namespace {

constexpr const char* kRow = "cuda.sm90.forward_fp8";

// First line of a test: skips with the reason where the row does not run.
#define TESSERA_NEEDS_FP8() \
  TESSERA_NEEDS_GPU();      \
  if (!runs_here(kRow)) GTEST_SKIP() << kRow << " needs compute capability 9.0"

// The relative RMS error of o: the tolerance's 6e-2 is most of an output that averages many values. What is left is p,
// of four digits: 2^-4 at most, 2 to 3 % together.
void expect_close(const GpuCase& gpu, const Judged& judged) {
  double squares = 0;
  int64_t count = 0;
  for (const double x : judged.exact.o) {
    if (!std::isfinite(x) || x == baselines::kUntouched) continue;
    squares += x * x;
    ++count;
  }
  for (const auto& comparison : baselines::compare(gpu.plan.problem, gpu.set.tensors, &judged.exact, &judged.naive)) {
    EXPECT_TRUE(comparison.passed) << comparison.tensor << " errs by " << comparison.max_abs_error;
    if (comparison.tensor != "o" || count == 0) continue;
    EXPECT_LE(comparison.rms_error, 0.04 * std::sqrt(squares / static_cast<double>(count)));
  }
  EXPECT_TRUE(gpu.set.canaries_intact());
  EXPECT_TRUE(gpu.set.gaps_intact(gpu.plan.problem));
}

void run_row(GpuCase* gpu) {
  tessera_status status{};
  ASSERT_EQ(gpu->run(kRow, &status), TESSERA_OK) << status.message;
}

void check_close(baselines::OperandSet operands) {
  const Judged judged = judge(operands);
  GpuCase gpu(std::move(operands));
  ASSERT_NO_FATAL_FAILURE(run_row(&gpu));
  expect_close(gpu, judged);
}

class GpuFp8 : public ::testing::TestWithParam<const char*> {};

TEST_P(GpuFp8, MatchesTheJudge) {
  TESSERA_NEEDS_FP8();
  const std::string text = "fwd e4m3 " + std::string(GetParam()) + " cuda";
  check_close(operands_of(text));
}

INSTANTIATE_TEST_SUITE_P(Words, GpuFp8,
                         ::testing::Values("b1 hq1 sq1 d16", "b1 hq2 hkv1 sq129 sk257 d64 causal", "b2 hq3 sq64 d64",
                                           "b2 hq2 sq128 sk256 d128", "b1 hq2 sq200 sk333 d48",
                                           "b1 hq2 sq65 sk129 d80 dv96", "b1 hq2 sq100 d96 causal o=f16",
                                           "b1 hq2 sq130 sk520 d128 causal", "b1 hq2 sq90 sk50 d64 causal",
                                           "b1 hq2 sq90 sk50 d128 causal topleft", "b2 hq4 hkv1 sq150 d64 window=17,5",
                                           "b1 hq2 sq300 d128 window=64,0",
                                           "b1 hq2 sq150 sk170 d128 window=3,40 topleft",
                                           "b1 hq2 sq70 sk90 d64 scale=-0.3 causal", "b1 hq2 sq70 sk90 d64 scale=0",
                                           "b1 hq2 sq70 sk190 d128 scale=0.5", "b2 hq4 sq70 sk190 d64 sinks causal",
                                           "b1 hq2 sq70 sk40 d128 sinks causal", "b2 hq2 sq129 d64 o=f32",
                                           "b2 hq2 sq129 d112 dv32 o=f32 causal", "b2 hq8 hkv2 sq7 sk400 d128",
                                           "b1 hq8 hkv1 sq24 sk300 d64 causal", "b1 hq2 sq129 sk300 d256 causal",
                                           "b1 hq2 hkv1 sq70 sk400 d144 dv192 o=f16", "b1 hq1 sq40 sk90 d256 dv16"));
INSTANTIATE_TEST_SUITE_P(
    Layouts, GpuFp8,
    ::testing::Values("b3 hq2 sq100 sk140 d64 layout=bhsd causal", "b4 hq4 hkv2 sq200 d128 packed causal lens=longtail",
                      "b4 hq2 sq150 sk260 d64 packed lens=longtail o=f16", "b3 hq2 sq60 sk70 d64 packed lens=5:0:60",
                      "b3 hq2 sq70 sk300 d128 lens=longtail causal", "b3 hq2 sq20 sk100 d64 leftpad causal",
                      "b3 hq4 hkv2 sq64 sk300 d128 paged=16 causal lens=longtail",
                      "b3 hq4 hkv2 sq64 sk200 d64 paged=1 pages=shuffled",
                      "b3 hq2 sq70 sk300 d64 paged=17 pages=shuffled causal lens=longtail",
                      "b2 hq2 sq70 sk300 d128 paged=128 pages=shuffled",
                      "b3 hq2 sq20 sk200 d64 leftpad paged=32 pages=shuffled causal",
                      "b2 hq4 hkv2 sq1 sk1000 d128 splits=4", "b2 hq2 sq130 sk700 d64 splits=3 causal sinks",
                      "b2 hq2 sq40 sk100 d128 splits=7 o=f32 window=30,10",
                      "b3 hq2 sq150 d256 packed causal lens=longtail", "b2 hq1 sq20 sk300 d256 paged=16 splits=2"));

// v as the quantiser's order 1 has it. What no row fills is NaN, in the groups of 16 too.
void order_values(tessera_problem* p) { p->v_order = 1; }

// On two multiprocessors a block has one piece of work after another, and the first product of the next is issued with
// the last one's; the words above have a block a piece on a large device.
class GpuFp8Chains : public ::testing::TestWithParam<const char*> {};

TEST_P(GpuFp8Chains, MatchesTheJudge) {
  TESSERA_NEEDS_FP8();
  const int spared = core::cuda_info(0, nullptr)->units - 2;
  check_close(operands_of("fwd e4m3 " + std::string(GetParam()) + " sm_margin=" + std::to_string(spared) + " cuda"));
}

INSTANTIATE_TEST_SUITE_P(Words, GpuFp8Chains,
                         ::testing::Values("b2 hq4 sq300 sk700 d64 causal", "b3 hq4 sq270 sk400 d128",
                                           "b2 hq4 hkv2 sq400 sk150 d128 causal sinks o=f32",
                                           "b5 hq2 sq150 sk200 d128 packed lens=150:0:1:0:77 causal",
                                           "b1 hq3 sq300 sk1500 d128 window=64,0", "b2 hq2 sq140 sk1400 d64",
                                           "b2 hq2 sq200 sk600 d256", "b2 hq2 sq256 sk500 d64",
                                           "b3 hq2 sq600 d64 causal", "b3 hq2 sq330 sk200 d64 causal sinks",
                                           "b1 hq3 sq500 sk900 d64 window=50,20",
                                           "b4 hq2 hkv1 sq400 d64 packed lens=400:0:70:197 causal o=f32",
                                           "b3 hq2 sq200 sk300 d64 lens=longtail",
                                           "b2 hq4 hkv1 sq70 sk300 d64 causal"));

class GpuFp8Ordered : public ::testing::TestWithParam<const char*> {};

TEST_P(GpuFp8Ordered, MatchesTheJudge) {
  TESSERA_NEEDS_FP8();
  check_close(operands_of(Case{"fwd e4m3 " + std::string(GetParam()) + " cuda", order_values}));
}

INSTANTIATE_TEST_SUITE_P(
    Words, GpuFp8Ordered,
    ::testing::Values("b2 hq2 sq70 sk400 d64", "b1 hq2 hkv1 sq129 sk384 d128 causal", "b1 hq1 sq1 d16",
                      "b2 hq2 sq50 sk331 d48 causal", "b1 hq2 sq150 sk170 d128 window=3,40 topleft layout=bhsd",
                      "b1 hq2 sq70 sk190 d80 dv112 o=f32 sinks", "b1 hq2 sq129 sk300 d256 causal",
                      "b2 hq1 sq40 sk256 d256 dv192", "b2 hq2 sq130 sk700 d64 splits=3 causal",
                      "b2 hq4 hkv2 sq1 sk1000 d128 splits=4", "b3 hq2 sq70 sk300 d128 lens=longtail causal",
                      "b4 hq4 hkv2 sq200 d128 packed causal lens=longtail", "b3 hq2 sq60 sk70 d64 packed lens=5:0:60",
                      "b3 hq2 sq100 d256 packed lens=longtail",
                      "b3 hq4 hkv2 sq64 sk300 d128 paged=16 causal lens=longtail",
                      "b2 hq2 sq70 sk300 d64 paged=96 pages=shuffled causal",
                      "b2 hq2 sq70 sk300 d128 paged=256 pages=shuffled splits=2"));

// Scales of every head and, of q, of rows; v's mean shared or by batch.
void scale_heads(tessera_problem* p) {
  for (tessera_desc* scale : {&p->q_scale, &p->k_scale, &p->v_scale}) {
    scale->stride[2] = 1;
    scale->stride[0] = scale == &p->q_scale ? p->heads_q : p->heads_kv;
  }
}
void scale_query_rows(tessera_problem* p) {
  scale_heads(p);
  p->q_scale_rows = 1;
  p->q_scale.stride[1] = p->heads_q;
  p->q_scale.stride[0] = p->heads_q * p->seqlen_q;
}
void scale_query_blocks(tessera_problem* p) {
  scale_query_rows(p);
  p->q_scale_rows = 128;
}
void add_mean(tessera_problem* p) {
  scale_heads(p);
  p->flags |= TESSERA_FLAG_V_MEAN;
}
void add_means(tessera_problem* p) {
  add_mean(p);
  p->v_mean_stride = int64_t{p->heads_kv} * p->head_dim_v + 3;
}
void order_values_with_means(tessera_problem* p) {
  add_means(p);
  p->v_order = 1;
}

TEST(GpuFp8Scales, OfHeadsAndQueryRows) {
  TESSERA_NEEDS_FP8();
  for (const char* text :
       {"fwd e4m3 b1 hq4 hkv2 sq150 sk200 d64 causal", "fwd e4m3 b2 hq2 hkv1 sq260 d128 packed lens=longtail",
        "fwd e4m3 b2 hq8 hkv2 sq9 sk300 d128", "fwd e4m3 b2 hq8 hkv2 sq9 sk300 d64 splits=3"}) {
    for (const auto adjust : {scale_heads, scale_query_rows, scale_query_blocks}) {
      SCOPED_TRACE(text);
      check_close(operands_of(Case{std::string(text) + " cuda", adjust}));
    }
  }
}

TEST(GpuFp8Scales, MeanOfVIsAddedToRowsThatHaveKeys) {
  TESSERA_NEEDS_FP8();
  for (const char* text :
       {"fwd e4m3 b2 hq4 hkv2 sq90 sk50 d64 causal", "fwd e4m3 b2 hq4 hkv2 sq90 sk50 d128 causal sinks o=f32",
        "fwd e4m3 b3 hq4 hkv2 sq100 d48 dv80 packed lens=longtail",
        "fwd e4m3 b2 hq4 hkv2 sq40 sk400 d128 splits=3 sinks", "fwd e4m3 b3 hq2 sq40 sk100 d64 lens=longtail"}) {
    for (const auto adjust : {add_mean, add_means}) {
      SCOPED_TRACE(text);
      check_close(operands_of(Case{std::string(text) + " cuda", adjust}));
    }
  }
}

TEST(GpuFp8Scales, MeanOfVInTheQuantisersOrder) {
  TESSERA_NEEDS_FP8();
  check_close(
      operands_of(Case{"fwd e4m3 b3 hq4 hkv2 sq60 d48 dv80 packed lens=longtail cuda", order_values_with_means}));
}

// Scales that are no ordinary positive numbers: the judge's words for them.
TEST(GpuFp8Scales, NegativeZeroAndTiny) {
  TESSERA_NEEDS_FP8();
  for (const float scale : {-0.7f, 0.0f, 1e-35f}) {
    baselines::OperandSet set = operands_of("fwd e4m3 b1 hq1 sq80 sk150 d64 causal cuda");
    *const_cast<float*>(set.tensors.k_scale) = scale;
    check_close(std::move(set));
    set = operands_of("fwd e4m3 b1 hq1 sq80 sk150 d128 causal cuda");
    *const_cast<float*>(set.tensors.v_scale) = scale;
    check_close(std::move(set));
  }
}

// One batch and head with scales of 1.
struct PlainFp8 {
  explicit PlainFp8(const std::string& words)
      : gpu("fwd e4m3 b1 hq1 o=f32 " + words + " cuda"),
        seqlen_q(gpu.set.problem.seqlen_q),
        seqlen_k(gpu.set.problem.seqlen_k),
        dim(gpu.set.problem.head_dim_qk) {
    for (const float* scale : {gpu.set.tensors.q_scale, gpu.set.tensors.k_scale, gpu.set.tensors.v_scale})
      *const_cast<float*>(scale) = 1.0f;
  }
  template <class Value>
  void fill(const void* base, int64_t rows, Value&& value) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t c = 0; c < dim; ++c)
        baselines::store_element(TESSERA_E4M3, const_cast<void*>(base), i * dim + c, value(i, c));
    }
  }
  double v(int64_t i, int64_t c) const { return baselines::load_element(TESSERA_E4M3, gpu.set.tensors.v, i * dim + c); }
  float o(int64_t i, int64_t c) const { return static_cast<const float*>(gpu.set.tensors.o)[i * dim + c]; }
  float lse(int64_t i) const { return static_cast<const float*>(gpu.set.tensors.lse)[i]; }

  GpuCase gpu;
  int64_t seqlen_q, seqlen_k, dim;
};

// Every key and column of v where it belongs, bit for bit.
TEST(GpuFp8Exact, ZeroWindowCopiesValues) {
  TESSERA_NEEDS_FP8();
  for (const char* words : {"sq300 d64 window=0,0", "sq300 d128 window=0,0", "sq200 d48 window=0,0",
                            "sq200 d112 window=0,0", "sq200 d256 window=0,0"}) {
    PlainFp8 c(words);
    ASSERT_NO_FATAL_FAILURE(run_row(&c.gpu));
    for (int64_t i = 0; i < c.seqlen_q; ++i) {
      for (int64_t col = 0; col < c.dim; ++col)
        ASSERT_EQ(c.o(i, col), c.v(i, col)) << words << ", row " << i << ", column " << col;
    }
  }
}

TEST(GpuFp8Exact, UniformRowsAreMeans) {
  TESSERA_NEEDS_FP8();
  for (const char* words : {"sq3 sk512 d64", "sq3 sk512 d128", "sq70 sk64 d64", "sq3 sk8192 d128", "sq3 sk512 d256"}) {
    PlainFp8 c(words);
    c.fill(c.gpu.set.tensors.q, c.seqlen_q, [](int64_t, int64_t) { return 0.0; });
    c.fill(c.gpu.set.tensors.v, c.seqlen_k,
           [](int64_t j, int64_t col) { return double((j * 7 + col * 5 + j / 9) % 3 - 1); });
    ASSERT_NO_FATAL_FAILURE(run_row(&c.gpu));
    for (int64_t col = 0; col < c.dim; ++col) {
      double sum = 0;
      for (int64_t j = 0; j < c.seqlen_k; ++j) sum += c.v(j, col);
      // Of powers of two keys; the reciprocal is within a unit of the last place.
      ASSERT_NEAR(c.o(2, col), sum / static_cast<double>(c.seqlen_k), 1e-6) << words << ", column " << col;
    }
    EXPECT_NEAR(c.lse(2), std::log(static_cast<double>(c.seqlen_k)), 2e-5) << words;
  }
}

// Logits far below zero, far above, and spread: the sum of a row stays 1.
TEST(GpuFp8Exact, FarScores) {
  TESSERA_NEEDS_FP8();
  for (const char* scale : {"1", "1e2", "1e4", "1e6", "1e9"}) {
    for (const double sign : {-1.0, 1.0}) {
      PlainFp8 c("sq70 sk200 d64 scale=" + std::string(scale));
      c.fill(c.gpu.set.tensors.q, c.seqlen_q, [&](int64_t, int64_t col) { return col == 0 ? sign : 0.0; });
      c.fill(c.gpu.set.tensors.k, c.seqlen_k,
             [](int64_t j, int64_t col) { return col == 0 ? 1 + static_cast<double>(j % 7) / 8 : 0.0; });
      c.fill(c.gpu.set.tensors.v, c.seqlen_k, [](int64_t, int64_t) { return 1.0; });
      ASSERT_NO_FATAL_FAILURE(run_row(&c.gpu));
      for (int64_t i = 0; i < c.seqlen_q; ++i) ASSERT_NEAR(c.o(i, 5), 1.0, 1e-6) << scale << " row " << i;
      EXPECT_TRUE(std::isfinite(c.lse(0)));
    }
  }
}

// Scores that rise or fall by `step` from key tile to key tile, from below zero in half of the heads: a row's base
// stays over some tiles and changes at others, and in one warp some rows' do while others' stay.
TEST(GpuFp8Exact, BasesThatStayOrChange) {
  TESSERA_NEEDS_FP8();
  for (const char* words : {"d64", "d64 causal", "d128", "d128 causal window=300,0", "d256"}) {
    for (const double step : {0.5, 2.0, 4.0, 13.0}) {
      SCOPED_TRACE(std::string(words) + ", step " + std::to_string(step));
      auto set = operands_of("fwd e4m3 b1 hq2 sq140 sk900 scale=1 " + std::string(words) + " cuda");
      const tessera_tensors& t = set.tensors;
      for (const float* scale : {t.q_scale, t.k_scale}) *const_cast<float*>(scale) = 1.0f;
      const int64_t dim = set.problem.head_dim_qk;
      const auto store = [&](const void* base, int64_t row, int64_t head, double first, double second) {
        for (int64_t c = 0; c < dim; ++c)
          baselines::store_element(TESSERA_E4M3, const_cast<void*>(base), (row * 2 + head) * dim + c,
                                   c == 0 ? first : (c == 1 ? second : 0.0));
      };
      for (int64_t head = 0; head < 2; ++head) {
        for (int64_t i = 0; i < 140; ++i) store(t.q, i, head, i % 3 == 0 ? -1 : 1, i % 2 == 0 ? 0.5 : 0.0);
        for (int64_t j = 0; j < 900; ++j) {
          const double level = step * static_cast<double>(j / 128) - (head == 0 ? 0.0 : 40.0);
          store(t.k, j, head, level, static_cast<double>(j % 9) / 4 - 1);
        }
      }
      check_close(std::move(set));
    }
  }
}

// A NaN in q reaches its own row only; one in k only rows that keep it.
TEST(GpuFp8Exact, NaNsStayWhereTheyAre) {
  TESSERA_NEEDS_FP8();
  const double bad = std::nan("");
  PlainFp8 c("sq200 sk200 d64 causal");
  c.fill(c.gpu.set.tensors.q, 200,
         [&](int64_t i, int64_t col) { return i == 40 ? bad : std::sin(double(i * 64 + col)); });
  ASSERT_NO_FATAL_FAILURE(run_row(&c.gpu));
  for (int64_t i = 0; i < 200; ++i) EXPECT_EQ(std::isfinite(c.o(i, 3)), i != 40) << i;
  c.fill(c.gpu.set.tensors.q, 200, [](int64_t i, int64_t col) { return std::sin(double(i * 64 + col)); });
  c.fill(c.gpu.set.tensors.k, 200,
         [&](int64_t j, int64_t col) { return j == 130 ? bad : std::cos(double(j * 64 + col)); });
  ASSERT_NO_FATAL_FAILURE(run_row(&c.gpu));
  for (int64_t i = 0; i < 200; ++i) EXPECT_EQ(std::isfinite(c.o(i, 3)), i < 130) << i;
}

// The smallest of every path, for compute-sanitizer.
TEST(GpuSanitizer, SmallFp8Cases) {
  TESSERA_NEEDS_FP8();
  for (const char* text :
       {"fwd e4m3 b1 hq2 hkv1 sq129 sk257 d64 causal", "fwd e4m3 b2 hq1 sq65 sk70 d128 packed lens=40:0 causal",
        "fwd e4m3 b1 hq1 sq65 sk130 d112 dv64 o=f32", "fwd e4m3 b2 hq2 sq5 sk300 d128 splits=3 causal sinks",
        "fwd e4m3 b1 hq1 sq65 sk257 d256 causal"}) {
    for (const auto adjust : {static_cast<void (*)(tessera_problem*)>(nullptr), order_values}) {
      SCOPED_TRACE(text);
      baselines::OperandSet operands = operands_of(Case{std::string(text) + " cuda", adjust});
      const Judged judged = judge(operands);
      GpuCase gpu(std::move(operands));
      gpu.poison_workspace = false;
      ASSERT_NO_FATAL_FAILURE(run_row(&gpu));
      expect_close(gpu, judged);
    }
  }
}

}  // namespace
}  // namespace tessera::tests
