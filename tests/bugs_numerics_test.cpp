// Public bug situations about numbers: huge and tiny inputs, scales, softcap, NaN, long sums. The traps about maxima
// and row sums are in bugs_row_sums_test.cpp.
#include <cmath>

#include "support.hpp"

namespace tessera::test {
namespace {

// 16-bit rows may take an exponential good to 2^-16, a twentieth of what the tolerance rule allows lse.
double lse_bound(int32_t dtype) { return dtype == TESSERA_F16 || dtype == TESSERA_BF16 ? 5e-5 : 2e-6; }

// pytorch/pytorch#121558: max * scale and x * scale - max * scale rounded differently, and a tiny relative error became
// the exponential of a large number.
TESSERA_SITUATION(BugNumerics, HugeFiniteInputs) {
  for (const int32_t dtype : offered({TESSERA_BF16, TESSERA_F32, TESSERA_F64}))
    for (const int64_t seqlen : {1, 3}) {
      SCOPED_TRACE(name_of(dtype));
      Case c = Case::dense(dtype, {.seqlen_q = seqlen, .seqlen_k = seqlen});
      c.q.fill(133120), c.k.fill(133120), c.v.fill(133120);
      const double logit = 64 * 133120.0 * 133120.0 / 8;
      on_every_row(c, [&] {
        for (int64_t i = 0; i < seqlen; ++i) {
          expect_row(c.o, 0, i, 0, 133120, dtype == TESSERA_F64 ? 2e6 : 2);  // a float64 lse of 1e11 resolves 1.5e-5
          EXPECT_NEAR(lse_at(c, 0, i, 0), logit, logit * 0x1p-20);
        }
      });
    }
}

// The same inputs in split keys and as states to merge: an lse of 1e11 has no digits for the ln 3 between one split and
// three.
TESSERA_SITUATION(BugNumerics, HugeFiniteInputsInSplits) {
  for (const int32_t dtype : offered({TESSERA_BF16, TESSERA_F32})) {
    SCOPED_TRACE(name_of(dtype));
    Case c = Case::dense(dtype, {.seqlen_q = 2, .seqlen_k = 200});
    c.q.fill(133120), c.k.fill(133120), c.v.fill(133120);
    c.problem.num_splits = 3;
    on_every_row(c, [&] {
      for (int64_t i = 0; i < 2; ++i) expect_row(c.o, 0, i, 0, 133120, 8);
    });
  }
}

// pytorch/pytorch#119131, ggml-org/llama.cpp#7805: scores kept in half precision overflowed.
TESSERA_SITUATION(BugNumerics, LogitsBeyondTheHalfRange) {
  for (const int32_t dtype : offered(kAllTypes)) {
    SCOPED_TRACE(name_of(dtype));
    Case c = Case::dense(dtype, {.seqlen_q = 4, .seqlen_k = 4, .head_dim_qk = 128});
    c.v.fill_random(51);
    c.q.fill([](int64_t, int64_t i, int64_t, int64_t) { return i == 2 ? -100.0 : 100.0; });
    c.k.fill(100);
    const Judge judged = judge(c);
    on_every_row(c, [&] {
      for (int64_t i = 0; i < 4; ++i) {
        EXPECT_NEAR(lse_at(c, 0, i, 0), i == 2 ? -113135.70 : 113138.47, 0.05);
        for (int64_t x = 0; x < 128; ++x) {
          double mean = 0;
          for (int64_t j = 0; j < 4; ++j) mean += c.v.get(0, j, 0, x) / 4;
          EXPECT_NEAR(judged.exact.o[static_cast<size_t>(i * 128 + x)], mean, 1e-9);
        }
      }
      expect_close(c, judged);
    });
  }
}

// NVIDIA/cudnn-frontend#804, pytorch/pytorch#105202, Dao-AILab/flash-attention#1461: a mask of -inf times the scale.
TESSERA_SITUATION(BugNumerics, ScaleZeroIsUniform) {
  for (const int32_t dtype : offered(kAllTypes)) {
    SCOPED_TRACE(name_of(dtype));
    Case c = Case::dense(dtype, {.seqlen_q = 4, .seqlen_k = 4});
    c.q.fill_random(52, 100), c.k.fill_random(53, 100);
    c.v.fill([](int64_t, int64_t j, int64_t, int64_t) { return static_cast<double>(j); });
    c.problem.scale = 0;
    c.set_causal();
    on_every_row(c, [&] {
      for (int64_t i = 0; i < 4; ++i) {
        if (i == 0) {
          expect_row(c.o, 0, i, 0, 0.0);
        } else {
          expect_row(c.o, 0, i, 0, static_cast<double>(i) / 2, 3);
        }
        EXPECT_NEAR(lse_at(c, 0, i, 0), std::log(static_cast<double>(i + 1)), lse_slack(1e-6));
      }
    });
  }
}

TESSERA_SITUATION(BugNumerics, NegativeScaleLeavesMaskedKeysOut) {
  for (const int32_t dtype : offered(kAllTypes)) {
    SCOPED_TRACE(name_of(dtype));
    Case c = Case::dense(dtype, {.seqlen_q = 1, .seqlen_k = 4, .head_dim_qk = 8});
    c.q.fill([](int64_t, int64_t, int64_t, int64_t x) { return x == 0 ? 1.0 : 0.0; });
    c.k.fill([](int64_t, int64_t j, int64_t, int64_t x) { return x == 0 ? static_cast<double>(j) : 0.0; });
    c.v.fill([](int64_t, int64_t j, int64_t, int64_t) { return static_cast<double>(j); });
    c.problem.scale = -1;
    const double bound = std::max(2e-6, 3 * roundoff(dtype));
    on_every_row(c, [&] {
      for (int64_t x = 0; x < 8; ++x) EXPECT_NEAR(c.o.get(0, 0, 0, x), 0.507347, bound);
      EXPECT_NEAR(lse_at(c, 0, 0, 0), 0.440190, lse_bound(dtype));
    });
    c.seqused_k = {2};
    on_every_row(c, [&] {
      for (int64_t x = 0; x < 8; ++x) EXPECT_NEAR(c.o.get(0, 0, 0, x), 0.268941, bound);
      EXPECT_NEAR(lse_at(c, 0, 0, 0), 0.313262, lse_bound(dtype));
    });
  }
}

// pytorch/pytorch#141128: rows whose query is NaN came out as clean zeros.
TESSERA_SITUATION(BugNumerics, NaNQueryReachesItsRowOnly) {
  for (const int32_t dtype : offered(kAllTypes)) {
    SCOPED_TRACE(name_of(dtype));
    Case c = Case::dense(dtype, {.batch = 2, .seqlen_q = 16, .seqlen_k = 16, .heads_q = 4, .head_dim_qk = 8});
    c.randomize(54);
    Case broken = c.twin();
    broken.q = c.q.clone();
    broken.q.fill_row(0, 3, 1, kNaN);
    on_every_row(
        c,
        [&] {
          run_on(broken, c.kernel);
          for (int64_t b = 0; b < 2; ++b)
            for (int64_t i = 0; i < 16; ++i)
              for (int64_t h = 0; h < 4; ++h) {
                const bool hit = b == 0 && i == 3 && h == 1;
                EXPECT_EQ(std::isnan(lse_at(broken, b, i, h)), hit);
                if (!hit) {
                  EXPECT_EQ(lse_at(broken, b, i, h), lse_at(c, b, i, h));
                }
                for (int64_t x = 0; x < 8; ++x) {
                  const double got = broken.o.get(b, i, h, x);
                  EXPECT_TRUE(hit ? std::isnan(got) : got == c.o.get(b, i, h, x)) << got;
                }
              }
        },
        Rows::library);
  }
}

TESSERA_SITUATION(BugNumerics, NaNValueReachesItsColumnOnly) {
  for (const int32_t dtype : offered(kAllTypes)) {
    SCOPED_TRACE(name_of(dtype));
    Case c = Case::dense(dtype, {.batch = 2, .seqlen_q = 16, .seqlen_k = 16, .heads_q = 4, .head_dim_qk = 8});
    c.randomize(55);
    Case broken = c.twin();
    broken.v = c.v.clone();
    broken.v.set(0, 5, 1, 2, kNaN);
    on_every_row(
        c,
        [&] {
          run_on(broken, c.kernel);
          EXPECT_TRUE(broken.lse.same_bits(c.lse));
          for (int64_t b = 0; b < 2; ++b)
            for (int64_t i = 0; i < 16; ++i)
              for (int64_t h = 0; h < 4; ++h)
                for (int64_t x = 0; x < 8; ++x) {
                  const double got = broken.o.get(b, i, h, x);
                  EXPECT_TRUE(b == 0 && h == 1 && x == 2 ? std::isnan(got) : got == c.o.get(b, i, h, x)) << got;
                }
        },
        Rows::library);
  }
}

// Dao-AILab/flash-attention#2402, #2466, #2544: the cap in the score's place.
TESSERA_SITUATION(BugNumerics, SoftcapOfOneScore) {
  for (const int32_t dtype : offered(kAllTypes)) {
    SCOPED_TRACE(name_of(dtype));
    Case c = Case::dense(dtype, {.seqlen_q = 1, .seqlen_k = 2, .head_dim_qk = 8});
    c.q.fill([](int64_t, int64_t, int64_t, int64_t x) { return x == 0 ? 4.0 : 0.0; });
    c.k.fill([](int64_t, int64_t j, int64_t, int64_t x) { return x == 0 && j == 1 ? 1.0 : 0.0; });
    c.v.copy_values(c.k);
    c.problem.scale = 1, c.problem.softcap = 2;
    const double bound = std::max(2e-6, 2 * roundoff(dtype));
    on_every_row(c, [&] {
      EXPECT_NEAR(lse_at(c, 0, 0, 0), 2.063836, lse_bound(dtype));
      EXPECT_NEAR(c.o.get(0, 0, 0, 0), 0.873034, bound);
      for (int64_t x = 1; x < 8; ++x) EXPECT_EQ(c.o.get(0, 0, 0, x), 0.0);
    });
    c.problem.softcap = 0;
    on_every_row(c, [&] {
      EXPECT_NEAR(lse_at(c, 0, 0, 0), std::log1p(std::exp(4.0)), lse_bound(dtype));
      EXPECT_NEAR(c.o.get(0, 0, 0, 0), 1 / (1 + std::exp(-4.0)), bound);
    });
  }
}

// Dao-AILab/flash-attention#2402, ROCm/rocm-libraries#12227: extreme scores reach the cap exactly; a tiny cap flattens.
TESSERA_SITUATION(BugNumerics, SoftcapAtExtremes) {
  for (const int32_t dtype : offered(kAllTypes)) {
    SCOPED_TRACE(name_of(dtype));
    Case c = Case::dense(dtype, {.seqlen_q = 2, .seqlen_k = 3, .head_dim_qk = 8});
    c.q.fill([](int64_t, int64_t i, int64_t, int64_t x) { return x == 0 ? (i == 0 ? 100.0 : -100.0) : 0.0; });
    c.k.fill([](int64_t, int64_t j, int64_t, int64_t x) { return x == 0 ? (j == 2 ? -100.0 : 100.0) : 0.0; });
    c.v.fill([](int64_t, int64_t j, int64_t, int64_t) { return static_cast<double>(j); });
    c.problem.scale = 1, c.problem.softcap = 50;
    on_every_row(c, [&] {
      EXPECT_NEAR(lse_at(c, 0, 0, 0), 50 + std::log(2.0), 1e-3);
      EXPECT_NEAR(lse_at(c, 0, 1, 0), 50, 1e-3);
      expect_row(c.o, 0, 0, 0, 0.5, 3);
      expect_row(c.o, 0, 1, 0, 2.0, 3);
    });
    c.problem.softcap = 1e-3;
    on_every_row(c, [&] {
      EXPECT_NEAR(lse_at(c, 0, 0, 0), std::log(3.0), 1e-3);
      for (int64_t i = 0; i < 2; ++i)
        for (int64_t x = 0; x < 8; ++x) EXPECT_NEAR(c.o.get(0, i, 0, x), 1.0, 1e-3 + 4 * roundoff(dtype));
    });
    for (const double bad : {-1.0, kNaN, kInfinity}) {
      c.problem.softcap = bad;
      expect_refused(c, TESSERA_INVALID_ARGUMENT, "softcap");
    }
  }
}

TESSERA_SITUATION(BugNumerics, SoftcapComesBeforeMaskAndAlibi) {
  for (const int32_t dtype : offered(kAllTypes)) {
    SCOPED_TRACE(name_of(dtype));
    Case c = Case::dense(dtype, {.seqlen_q = 40, .seqlen_k = 70, .heads_q = 4, .heads_kv = 2});
    c.randomize(56, 4);
    c.set_causal();
    c.problem.softcap = 3;
    c.alibi_slopes = {0.5f, 0.25f, 0.125f, 2.0f};
    check_against_judge(c);
  }
}

// Dao-AILab/flash-attention#2662, facebookresearch/xformers#719, ml-explore/mlx#3360: a 16-bit key position.
TESSERA_SITUATION(BugNumerics, KeysPast32768) {
  for (const int32_t dtype : offered(kAllTypes))
    for (const int64_t seqlen_k : {33728, 70000}) {
      SCOPED_TRACE(name_of(dtype));
      Case c = Case::dense(dtype, {.seqlen_q = 1, .seqlen_k = seqlen_k});
      c.q.fill(0), c.k.fill_random(57);
      c.v.fill([](int64_t, int64_t j, int64_t, int64_t) { return j >= 32768 ? 1.0 : 0.0; });
      const double share = static_cast<double>(seqlen_k - 32768) / static_cast<double>(seqlen_k);
      const double bound = 2 * roundoff(dtype) * share + 1e-6;
      for (const int32_t splits : {1, 5}) {
        c.problem.num_splits = splits;
        on_every_row(
            c,
            [&] {
              for (int64_t x = 0; x < 64; ++x) EXPECT_NEAR(c.o.get(0, 0, 0, x), share, bound);
              EXPECT_NEAR(lse_at(c, 0, 0, 0), std::log(static_cast<double>(seqlen_k)), lse_slack(1e-5));
            },
            splits == 1 && dtype == TESSERA_F64 ? Rows::all : Rows::library);
      }
    }
}

// Dao-AILab/flash-attention#16, zhuzilin/ring-flash-attention#22: probabilities rounded to 16 bits.
TESSERA_SITUATION(BugNumerics, HalfPrecisionStaysWithinTwiceTheNaiveError) {
  for (const int32_t dtype : kHalfTypes)
    for (const int64_t seqlen_k : {128, 2048, 16384}) {
      SCOPED_TRACE(::testing::Message() << name_of(dtype) << " " << seqlen_k);
      Case c = Case::dense(dtype, {.seqlen_q = 32, .seqlen_k = seqlen_k, .heads_q = 2, .heads_kv = 1});
      c.randomize(58);
      check_against_judge(c);
    }
}

}  // namespace
}  // namespace tessera::test
