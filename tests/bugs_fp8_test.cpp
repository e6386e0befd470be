// Public bug situations about e4m3 operands: accuracy that fell with the length, and where descale factors act. e5m2 is
// no type of ours, so only the bounds on e4m3 are held.
#include <cmath>
#include <cstring>
#include <limits>

#include "support.hpp"

namespace tessera::test {
namespace {

struct Scales {
  Array<float> q, k, v;
};

// Runs the case under the scales; false where the target's rows take no e4m3, which is a refusal by name.
bool run_scaled(Case& c, const Scales& scales) {
  c.o.poison();
  c.lse.poison();
  tessera_tensors tensors = c.bind();
  tensors.q_scale = scales.q.data(), tensors.k_scale = scales.k.data(), tensors.v_scale = scales.v.data();
  tessera_status status{};
  const int code = run_raw(c.problem, tensors, &status);
  if (on_gpu() && code == TESSERA_UNSUPPORTED) return false;
  EXPECT_EQ(code, TESSERA_OK) << status.message;
  expect_written(c);
  return code == TESSERA_OK;
}

#define SKIP_UNLESS(ran) \
  if (!(ran)) GTEST_SKIP() << "no row for e4m3 queries on this device"

void scale_by_head(Case& c) {
  for (tessera_desc* scale : {&c.problem.q_scale, &c.problem.k_scale, &c.problem.v_scale}) {
    const bool query = scale == &c.problem.q_scale;
    scale->stride[0] = query ? c.problem.heads_q : c.problem.heads_kv;
    scale->stride[2] = 1;
  }
}

// Dao-AILab/flash-attention#2717: probabilities scaled up to fill the range met a stale row maximum, saturated, and the
// error grew with the length.
TESSERA_SITUATION(BugFp8, ErrorDoesNotGrowWithTheLength) {
  for (const bool peaked : {false, true}) {
    double first = 0;
    for (const int64_t seqlen : {256, 1024, 4096}) {
      SCOPED_TRACE(::testing::Message() << seqlen << " keys, peaked " << peaked);
      Case c = Case::dense(TESSERA_E4M3, {.seqlen_q = 64, .seqlen_k = seqlen, .heads_q = 4, .head_dim_qk = 128},
                           TESSERA_BF16);
      c.randomize(35);
      if (peaked) {
        c.q.fill([&](int64_t b, int64_t i, int64_t h, int64_t x) { return 4 * c.k.get(b, i * (seqlen / 64), h, x); });
      }
      SKIP_UNLESS(run_scaled(c, {}));
      const Judge judged = judge(c);
      double error = 0, norm = 0;
      for (int64_t i = 0; i < 64; ++i)
        for (int64_t h = 0; h < 4; ++h) {
          for (int64_t x = 0; x < 128; ++x) {
            const double exact = judged.exact.o[static_cast<size_t>((i * 4 + h) * 128 + x)];
            error += std::pow(c.o.get(0, i, h, x) - exact, 2), norm += exact * exact;
          }
          // A row's only probability errs by 1 / 16 at most; Hopper's tensor cores drop what lies 2^-13 and more below
          // the largest product of a sum, so a score of dozens errs by 2^-9 of itself.
          const double exact = judged.exact.lse[static_cast<size_t>(h * 64 + i)];
          EXPECT_NEAR(lse_at(c, 0, i, h), exact, 6e-2 + (on_gpu() ? std::abs(exact) / 512 : 0));
        }
      const double relative = std::sqrt(error / norm);
      if (seqlen == 256) first = relative;
      EXPECT_LE(relative, 1.5 * first + 1e-5);  // a row of one key is exact
      EXPECT_LE(relative, 6e-2);
    }
  }
}

// Dao-AILab/flash-attention#2109, ROCm/flash-attention#116: factors of q and k belong to the score, v's to the output,
// each once.
TESSERA_SITUATION(BugFp8, FactorsActOnceAndWhereTheyBelong) {
  Case c = Case::dense(TESSERA_E4M3, {.seqlen_q = 16, .seqlen_k = 40}, TESSERA_F16);
  c.q.fill(1), c.k.fill(1);
  c.v.fill([](int64_t, int64_t j, int64_t, int64_t) { return j % 2 == 0 ? 1.0 : 3.0; });
  c.problem.scale = 0.125;
  SKIP_UNLESS(run_scaled(c, {{0.5f}, {0.25f}, {0.5f}}));
  for (int64_t i = 0; i < 16; ++i) {
    EXPECT_NEAR(lse_at(c, 0, i, 0), 1 + std::log(40.0), 6e-2);
    for (int64_t x = 0; x < 64; ++x) EXPECT_NEAR(c.o.get(0, i, 0, x), 1, 1e-3);
  }
  ASSERT_TRUE(run_scaled(c, {{}, {0.25f}, {}}));  // one that is missing is 1
  EXPECT_NEAR(lse_at(c, 0, 3, 0), 2 + std::log(40.0), 6e-2);
  EXPECT_NEAR(c.o.get(0, 3, 0, 5), 2, 2e-3);
}

TESSERA_SITUATION(BugFp8, EachHeadHasItsOwnFactors) {
  Case c =
      Case::dense(TESSERA_E4M3, {.batch = 2, .seqlen_q = 20, .seqlen_k = 60, .heads_q = 4, .heads_kv = 2}, TESSERA_F16);
  c.randomize(6);
  scale_by_head(c);
  const Scales base{{1, 0.5f, 0.25f, 2, 1, 2, 0.5f, 1}, {0.5f, 1, 2, 0.25f}, {1, 2, 4, 0.5f}};
  SKIP_UNLESS(run_scaled(c, base));
  const Tensor before = c.o.clone();
  // Key head 1 of sequence 0 serves query heads 2 and 3.
  const auto differs = [&](int64_t b, int64_t h) {
    for (int64_t i = 0; i < 20; ++i)
      for (int64_t x = 0; x < 64; ++x)
        if (c.o.get(b, i, h, x) != before.get(b, i, h, x)) return true;
    return false;
  };
  for (const int which : {0, 1, 2}) {
    Scales changed{{1, 0.5f, 0.25f, 2, 1, 2, 0.5f, 1}, {0.5f, 1, 2, 0.25f}, {1, 2, 4, 0.5f}};
    (which == 0 ? changed.q[2] : which == 1 ? changed.k[1] : changed.v[1]) *= 4;
    ASSERT_TRUE(run_scaled(c, changed));
    for (int64_t b = 0; b < 2; ++b)
      for (int64_t h = 0; h < 4; ++h)
        EXPECT_EQ(differs(b, h), b == 0 && (h == 2 || (h == 3 && which > 0))) << which << ' ' << b << ' ' << h;
  }
  // 0 weighs all keys alike; NaN reaches its head and no other.
  ASSERT_TRUE(run_scaled(c, {{0, 0, 0, 0, 0, 0, 0, 0}, base.k, {1, 2, 4, 0.5f}}));
  for (int64_t h = 0; h < 4; ++h) {
    double mean = 0;
    for (int64_t j = 0; j < 60; ++j) mean += c.v.get(0, j, h / 2, 7) / 60;
    EXPECT_NEAR(c.o.get(0, 11, h, 7), mean * (h < 2 ? 1 : 2), 6e-2);
    EXPECT_NEAR(lse_at(c, 0, 11, h), std::log(60.0), 6e-2);
  }
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  ASSERT_TRUE(run_scaled(c, {base.q, {kNan, 1, 2, 0.25f}, base.v}));
  EXPECT_TRUE(std::isnan(c.o.get(0, 0, 0, 0)) && std::isnan(c.o.get(0, 19, 1, 63)));
  for (int64_t i = 0; i < 20; ++i)
    for (int64_t x = 0; x < 64; ++x) {
      ASSERT_EQ(c.o.get(0, i, 2, x), before.get(0, i, 2, x));
      ASSERT_EQ(c.o.get(1, i, 0, x), before.get(1, i, 0, x));
    }
}

// A type that is not there is told by its number.
TEST(BugFp8, TypesThatAreNotThereAreRefusedByName) {
  Case c = Case::dense(TESSERA_E4M3, {.seqlen_q = 4, .seqlen_k = 4}, TESSERA_F16);
  tessera_tensors tensors = c.bind();
  tessera_problem problem = c.problem;
  problem.q.dtype = 8;
  tessera_status status{};
  EXPECT_EQ(run_raw(problem, tensors, &status), TESSERA_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(status.message, "q.dtype is 8"), nullptr) << status.message;
}

}  // namespace
}  // namespace tessera::test
