// Public bug situations about running maxima and row sums, the unit of lse, and subnormal numbers.
#include <bit>
#include <cmath>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "support.hpp"

namespace tessera::test {
namespace {

// pytorch/pytorch#181645, #181824; vllm-project/vllm#28840; flashinfer-ai/flashinfer#4485: lse in base 2.
TESSERA_SITUATION(BugRowSums, LseIsTheNaturalLogarithm) {
  for (const int32_t dtype : offered(kAllTypes)) {
    SCOPED_TRACE(name_of(dtype));
    Case c = Case::dense(dtype, {.seqlen_q = 2, .seqlen_k = 1000});
    c.q.fill(0), c.k.fill_random(61), c.v.fill_random(62);
    for (const int32_t splits : {0, 1, 4}) {
      c.problem.num_splits = splits;
      on_every_row(c, [&] {
        for (int64_t i = 0; i < 2; ++i) EXPECT_NEAR(lse_at(c, 0, i, 0), 6.907755279, lse_slack(2e-6));
      });
    }
  }
}

// pytorch/pytorch#121558: weights above 1 where the maximum was rounded otherwise than the score.
TESSERA_SITUATION(BugRowSums, WeightsSumToOneForLogitsOfAnySize) {
  for (const int32_t dtype : offered(kAllTypes))
    for (const double size : {1.0, 1e2, 1e4, 1e6}) {
      SCOPED_TRACE(::testing::Message() << name_of(dtype) << " logits of " << size);
      Case c = Case::dense(dtype, {.seqlen_q = 67, .seqlen_k = 300, .heads_q = 2});
      c.randomize(63);
      c.v.fill(1);
      c.problem.scale = size / 8;
      on_every_row(
          c,
          [&] {
            for (int64_t i = 0; i < 67; ++i)
              for (int64_t h = 0; h < 2; ++h) {
                // Two orders of summing 300 weights: 7 units of the last place seen in float32. 16-bit outputs: one
                // unit.
                expect_row(c.o, 0, i, h, 1.0, dtype == TESSERA_F32 ? 32 : dtype == TESSERA_F64 ? 64 : 2);
                EXPECT_TRUE(std::isfinite(lse_at(c, 0, i, h)));
              }
          },
          Rows::library);
    }
}

// Dao-AILab/flash-attention#2717, commit c2006099; ikawrakow/ik_llama.cpp#1196: the running maximum rescaled lazily.
TESSERA_SITUATION(BugRowSums, AscendingDescendingAndLateSpikes) {
  constexpr int64_t kTiles = 64, kKeys = kTiles * 64;
  const std::function<double(int64_t)> logits[] = {
      [](int64_t j) { return 3.9 * static_cast<double>(j / 64) * std::log(2.0); },
      [](int64_t j) { return 3.9 * static_cast<double>(kTiles - 1 - j / 64) * std::log(2.0); },
      [](int64_t j) { return j == kKeys - 7 ? 90.0 : 0.0; },
  };
  for (const int32_t dtype : offered(kAllTypes))
    for (const auto& logit : logits) {
      SCOPED_TRACE(name_of(dtype));
      Case c = Case::dense(dtype, {.seqlen_q = 3, .seqlen_k = kKeys, .head_dim_qk = 8});
      c.q.fill([](int64_t, int64_t, int64_t, int64_t x) { return x == 0 ? 1.0 : 0.0; });
      c.k.fill([&](int64_t, int64_t j, int64_t, int64_t x) { return x == 0 ? logit(j) : 0.0; });
      c.v.fill_random(64);
      c.problem.scale = 1;
      check_against_judge(c, Rows::all);
    }
}

// ggml-org/llama.cpp#13991: subnormal numbers flushed.
TESSERA_SITUATION(BugRowSums, SubnormalValuesSurvive) {
  const std::pair<int32_t, double> smallest[] = {{TESSERA_F16, 6.0e-8}, {TESSERA_BF16, 1e-40}, {TESSERA_F32, 1e-42}};
  for (const auto& [dtype, value] : smallest) {
    SCOPED_TRACE(name_of(dtype));
    if (on_gpu() && dtype != TESSERA_F16) continue;  // nobody promises that tensor cores keep subnormal bf16
    Case c = Case::dense(dtype, {.seqlen_q = 2, .seqlen_k = 1});
    c.q.fill(1), c.k.fill(1), c.v.fill(value);
    ASSERT_NE(c.v.get(0, 0, 0, 0), 0.0);
    // The bf16 tile product reads subnormal numbers as 0, of bf16 and of the parts of f32: the one exception, made by
    // the instruction (TDPBF16PS).
    const auto tiles_flush = [&, type = dtype] {
      return type != TESSERA_F16 && c.kernel.find(".amx") != std::string::npos;
    };
    on_every_row(
        c,
        [&] {
          for (int64_t i = 0; i < 2; ++i)
            for (int64_t x = 0; x < 64; ++x) EXPECT_EQ(c.o.get(0, i, 0, x), tiles_flush() ? 0.0 : c.v.get(0, 0, 0, x));
        },
        Rows::library);
  }
}

#if defined(__x86_64__)
TEST(BugRowSums, CallersFlushToZeroModeChangesNothing) {
  constexpr unsigned kFlushBits = 0x8040;  // flush to zero, denormals are zero
  for (const int32_t dtype : {TESSERA_F32, TESSERA_F16, TESSERA_BF16})
    for (const int32_t threads : {1, 3}) {
      SCOPED_TRACE(::testing::Message() << name_of(dtype) << " threads " << threads);
      Case c = Case::dense(dtype, {.seqlen_q = 70, .seqlen_k = 40, .heads_q = 2});
      c.q.fill_random(65), c.k.fill_random(66);
      c.v.fill_random(67, dtype == TESSERA_F16 ? 1e-7 : 1e-39);
      c.problem.threads = threads;
      on_every_row(
          c,
          [&] {
            Case flushing = c.twin();
            const unsigned before = _mm_getcsr();
            _mm_setcsr(before | kFlushBits);
            tessera_status status{};
            const int code = run(flushing, {c.kernel, false}, &status);
            const unsigned after = _mm_getcsr();
            _mm_setcsr(before);
            EXPECT_EQ(code, TESSERA_OK) << status.message;
            EXPECT_EQ(after & kFlushBits, kFlushBits) << "the caller's mode was not restored";
            EXPECT_TRUE(flushing.o.same_bits(c.o));
            EXPECT_TRUE(flushing.lse.same_bits(c.lse));
          },
          Rows::library);
    }
}
#endif

// facebookresearch/xformers#719, ggml-org/llama.cpp#24389: uniform attention over long rows drifted.
TESSERA_SITUATION(BugRowSums, UniformAttentionOnLongRows) {
  for (const int32_t dtype : offered(kAllTypes))
    for (const int power : {4, 6, 7, 10, 13, 16, 20})
      for (const int64_t extra : {-1, 0, 1}) {
        const int64_t seqlen_k = (int64_t{1} << power) + extra;
        if (power == 20 && dtype == TESSERA_F64) continue;  // 2^16 keys say as much in float64
        SCOPED_TRACE(::testing::Message() << name_of(dtype) << " keys " << seqlen_k);
        Case c = Case::dense(dtype, {.seqlen_q = 1, .seqlen_k = seqlen_k, .head_dim_qk = on_gpu() ? 8 : 4});
        c.q.fill(0), c.k.fill(1), c.v.fill(1);
        on_every_row(
            c,
            [&] {
              expect_row(c.o, 0, 0, 0, 1.0, 2);
              EXPECT_NEAR(lse_at(c, 0, 0, 0), std::log(static_cast<double>(seqlen_k)), lse_slack(2e-6));
            },
            power > 13 ? Rows::native : Rows::library);
      }
}

TESSERA_SITUATION(BugRowSums, AlternatingValuesCancel) {
  for (const int32_t dtype : offered(kAllTypes))
    for (const int64_t seqlen_k : {64, 130, 8192, 65536}) {
      SCOPED_TRACE(::testing::Message() << name_of(dtype) << " keys " << seqlen_k);
      Case c = Case::dense(dtype, {.seqlen_q = 1, .seqlen_k = seqlen_k, .head_dim_qk = on_gpu() ? 8 : 4});
      c.q.fill(0), c.k.fill(1);
      c.v.fill([](int64_t, int64_t j, int64_t, int64_t) { return j % 2 == 0 ? 1.0 : -1.0; });
      on_every_row(c, [&] {
        for (int64_t x = 0; x < c.problem.head_dim_v; ++x) EXPECT_LE(std::abs(c.o.get(0, 0, 0, x)), 1e-6);
      });
    }
}

// Dao-AILab/flash-attention#16: a row sum of rounded weights gave 1 - 2^-8 for V = 1.
TESSERA_SITUATION(BugRowSums, ConstantValuesComeBackExactly) {
  for (const int32_t dtype : kHalfTypes)
    for (const int64_t seqlen_k : {1, 2, 3, 127, 128, 2048, 16384}) {
      SCOPED_TRACE(::testing::Message() << name_of(dtype) << " keys " << seqlen_k);
      Case c = Case::dense(dtype, {.seqlen_q = 5, .seqlen_k = seqlen_k});
      c.q.fill_random(68), c.k.fill_random(69), c.v.fill(1);
      on_every_row(
          c,
          [&] {
            for (int64_t i = 0; i < 5; ++i) expect_row(c.o, 0, i, 0, 1.0);
          },
          Rows::library);
    }
}

}  // namespace
}  // namespace tessera::test
