// Public bug situations about split keys, merged states and batch invariance.
#include <cmath>

#include "sanitized.hpp"
#include "support.hpp"

namespace tessera::test {
namespace {

// Dao-AILab/flash-attention commit 26d7d92f, flashinfer-ai/flashinfer#4051, sgl-project/sgl-kernel-xpu#487: splits
// without work gave -inf minus -inf, or replaced a good lse.
TESSERA_SITUATION(BugSplits, SplitsWithoutWork) {
  const std::vector<int32_t> used = {0, 5, 300, 4096};
  for (const int32_t dtype : offered(kAllTypes)) {
    SCOPED_TRACE(name_of(dtype));
    Case c = Case::dense(dtype, {.batch = 4, .seqlen_q = 1, .seqlen_k = 4096, .heads_q = 4});
    c.q.fill_random(41), c.k.fill(0), c.v.fill(1);
    c.seqused_k = used;
    c.problem.num_splits = 8;
    on_every_row(c, [&] {
      for (int64_t h = 0; h < 4; ++h) {
        expect_empty_row(c, 0, 0, h);
        for (int64_t b = 1; b < 4; ++b) {
          expect_row(c.o, b, 0, h, 1.0, dtype == TESSERA_F64 ? 64 : 2);  // 4096 terms in float64
          EXPECT_NEAR(lse_at(c, b, 0, h), std::log(used[static_cast<size_t>(b)]), lse_slack(1e-6));
        }
      }
    });
  }
}

TESSERA_SITUATION(BugSplits, WindowThatMostSplitsDoNotReach) {
  for (const int32_t dtype : offered(kAllTypes)) {
    SCOPED_TRACE(name_of(dtype));
    Case c = Case::dense(dtype, {.seqlen_q = 1, .seqlen_k = 4096, .heads_q = 4});
    c.q.fill_random(42), c.k.fill(0), c.v.fill(1);
    c.problem.num_splits = 8;
    c.problem.left = 127, c.problem.right = 0;
    on_every_row(c, [&] {
      for (int64_t h = 0; h < 4; ++h) {
        expect_row(c.o, 0, 0, h, 1.0, dtype == TESSERA_F64 ? 64 : 2);
        EXPECT_NEAR(lse_at(c, 0, 0, h), std::log(128.0), lse_slack(1e-6));
      }
    });
  }
}

// Two states of one row, head_dim_v 4, in float32.
struct Merged {
  float o[4], lse;
};
Merged merge_two(float o_a, float lse_a, float o_b, float lse_b) {
  const float o[8] = {o_a, o_a, o_a, o_a, o_b, o_b, o_b, o_b}, lse[2] = {lse_a, lse_b};
  Merged merged{{-1, -1, -1, -1}, -1};
  tessera_merge_args args{};
  args.size = sizeof args;
  args.states = 2, args.batch = 1, args.seqlen_q = 1, args.heads = 1, args.head_dim_v = 4;
  args.dtype = args.out_dtype = TESSERA_F32, args.device = -1;
  args.o = o, args.lse = lse, args.o_out = merged.o, args.lse_out = &merged.lse;
  tessera_status status{};
  EXPECT_EQ(merge(args, &status), TESSERA_OK) << status.message;
  return merged;
}

TESSERA_SITUATION(BugSplits, MergeOfEmptyStatesIsEmpty) {
  const auto none = static_cast<float>(-kInfinity);
  const Merged empty = merge_two(0, none, 0, none);
  EXPECT_EQ(empty.lse, none);
  for (const float value : empty.o) {
    EXPECT_EQ(value, 0.0f);
    EXPECT_FALSE(std::signbit(value));
  }
  for (const Merged& one : {merge_two(3, 1.5f, 0, none), merge_two(0, none, 3, 1.5f)}) {
    EXPECT_EQ(one.lse, 1.5f);
    for (const float value : one.o) EXPECT_EQ(value, 3.0f);
  }
}

// jzhang38/EasyContext#14; zhuzilin/ring-flash-attention#34, #42: log(1 + exp(170)) overflows float32.
TESSERA_SITUATION(BugSplits, MergeOfFarApartStates) {
  for (const Merged& merged : {merge_two(7, -50, 3, 120), merge_two(3, 120, 7, -50)}) {
    EXPECT_EQ(merged.lse, 120.0f);
    for (const float value : merged.o) EXPECT_EQ(value, 3.0f);
  }
  const Merged even = merge_two(2, 1.417675e11f, 4, 1.417675e11f);  // ln 2 is below the resolution of this lse
  EXPECT_NEAR(even.o[0], 3.0f, 1e-4);
  EXPECT_EQ(even.lse, 1.417675e11f);
}

// The same threads: partial results stay in float32, so eight of them are as good as one call.
TESSERA_SITUATION(BugSplits, EightPartialResultsAreAsGoodAsOneCall) {
  constexpr int64_t kParts = 8, kLength = 8192, kPart = kLength / kParts, kRows = 4, kDim = 64;
  Case whole = Case::dense(TESSERA_BF16, {.seqlen_q = kRows, .seqlen_k = kLength});
  whole.randomize(43);
  const Judge judged = judge(whole);
  double yardstick = 0, largest = 0;
  for (size_t e = 0; e < judged.exact.o.size(); ++e) {
    yardstick = std::max(yardstick, std::abs(judged.naive.o[e] - judged.exact.o[e]));
    largest = std::max(largest, std::abs(judged.exact.o[e]));
  }
  const double bound = 2 * yardstick + 1e-5 * std::max(1.0, largest);
  int ran = 0;
  for (const Row& row : kernel_rows(Rows::library)) {
    SCOPED_TRACE(row.name);
    std::vector<float> o, lse, merged_lse(kRows);
    Tensor merged(TESSERA_BF16, {1, kRows, 1, kDim});
    for (int64_t part = 0; part < kParts; ++part) {
      Case c = Case::dense(TESSERA_BF16, {.seqlen_q = kRows, .seqlen_k = kPart}, TESSERA_F32);
      c.q = whole.q;
      c.k.fill([&](int64_t, int64_t j, int64_t, int64_t x) { return whole.k.get(0, part * kPart + j, 0, x); });
      c.v.fill([&](int64_t, int64_t j, int64_t, int64_t x) { return whole.v.get(0, part * kPart + j, 0, x); });
      tessera_status status{};
      const int code = run(c, row, &status);
      if (code == TESSERA_UNSUPPORTED) break;
      ASSERT_EQ(code, TESSERA_OK) << status.message;
      o.insert(o.end(), static_cast<float*>(c.o.data()), static_cast<float*>(c.o.data()) + kRows * kDim);
      lse.insert(lse.end(), static_cast<float*>(c.lse.data()), static_cast<float*>(c.lse.data()) + kRows);
    }
    if (lse.empty()) continue;
    ++ran;
    tessera_merge_args args{};
    args.size = sizeof args;
    args.states = kParts, args.batch = 1, args.seqlen_q = kRows, args.heads = 1, args.head_dim_v = kDim;
    args.dtype = TESSERA_F32, args.out_dtype = TESSERA_BF16, args.device = -1;
    args.o = o.data(), args.lse = lse.data(), args.o_out = merged.data(), args.lse_out = merged_lse.data();
    tessera_status status{};
    ASSERT_EQ(merge(args, &status), TESSERA_OK) << status.message;
    for (int64_t i = 0; i < kRows; ++i)
      for (int64_t x = 0; x < kDim; ++x)
        EXPECT_NEAR(merged.get(0, i, 0, x), judged.exact.o[static_cast<size_t>(i * kDim + x)], bound);
  }
  EXPECT_GT(ran, 0);
}

// deepseek-ai/FlashMLA#212; Dao-AILab/flash-attention#1897, #1647; flashinfer-ai/flashinfer#2424: a sequence's result
// changed with its batch mates. On the CPU it never does, whatever the split count; a GPU's own choice of splits fills
// the device, and follows the sequence alone when asked to.
TESSERA_SITUATION(BugSplits, ResultDoesNotDependOnBatchMates) {
  constexpr int32_t kKeys = 4096;
  const Shape shape{.heads_q = 16, .heads_kv = 8, .head_dim_qk = 128};
  Case alone = Case::packed(TESSERA_BF16, {0, 1}, {0, kKeys}, shape);
  alone.randomize(44);
  for (const auto& [batch, position] : std::vector<std::pair<int32_t, int32_t>>{{2, 0}, {3, 0}, {33, 0}, {33, 32}}) {
    std::vector<int32_t> cu_q{0}, cu_k{0};
    for (int32_t b = 0; b < batch; ++b) {
      cu_q.push_back(b + 1);
      cu_k.push_back(cu_k.back() + (b == position ? kKeys : (b * 37) % 500));
    }
    Case c = Case::packed(TESSERA_BF16, cu_q, cu_k, shape);
    c.randomize(45);
    c.q.fill([&](int64_t, int64_t i, int64_t h, int64_t x) {
      return i == position ? alone.q.get(0, 0, h, x) : c.q.get(0, i, h, x);
    });
    const int64_t first = cu_k[static_cast<size_t>(position)];
    for (int64_t j = 0; j < kKeys; ++j)
      for (int64_t h = 0; h < 8; ++h)
        for (int64_t x = 0; x < 128; ++x) {
          c.k.set(0, first + j, h, x, alone.k.get(0, j, h, x));
          c.v.set(0, first + j, h, x, alone.v.get(0, j, h, x));
        }
    for (const int32_t splits : {0, 1, 16, 32}) {
      if (tests::kSanitized && splits > 0 && splits != 16) continue;
      SCOPED_TRACE(::testing::Message() << "batch " << batch << " splits " << splits);
      alone.problem.num_splits = c.problem.num_splits = splits;
      const uint64_t asked = on_gpu() && splits == 0 ? TESSERA_FLAG_BATCH_INVARIANT : 0;
      alone.problem.flags = (alone.problem.flags & ~TESSERA_FLAG_BATCH_INVARIANT) | asked;
      c.problem.flags = (c.problem.flags & ~TESSERA_FLAG_BATCH_INVARIANT) | asked;
      on_every_row(
          c,
          [&, at = position] {
            run_on(alone, c.kernel);
            for (int64_t h = 0; h < 16; ++h) {
              EXPECT_EQ(lse_at(c, 0, at, h), lse_at(alone, 0, 0, h));
              for (int64_t x = 0; x < 128; ++x) EXPECT_EQ(c.o.get(0, at, h, x), alone.o.get(0, 0, h, x));
            }
          },
          Rows::library);
    }
  }
}

TESSERA_SITUATION(BugSplits, SplitCountsAgreeWithinTolerance) {
  Case c =
      Case::dense(TESSERA_BF16, {.seqlen_q = 1, .seqlen_k = 4096, .heads_q = 16, .heads_kv = 8, .head_dim_qk = 128});
  c.randomize(46);
  const Judge judged = judge(c);
  for (const int32_t splits : {0, 1, 2, 16, 32, 1000}) {
    SCOPED_TRACE(splits);
    c.problem.num_splits = splits;
    on_every_row(c, [&] { expect_close(c, judged); });
  }
}

TESSERA_SITUATION(BugSplits, OneQueryAgreesWithItsRowOfAPrefill) {
  Case many =
      Case::dense(TESSERA_BF16, {.seqlen_q = 64, .seqlen_k = 1000, .heads_q = 4, .heads_kv = 2, .head_dim_qk = 128});
  many.randomize(47);
  Case one =
      Case::dense(TESSERA_BF16, {.seqlen_q = 1, .seqlen_k = 1000, .heads_q = 4, .heads_kv = 2, .head_dim_qk = 128});
  one.k = many.k, one.v = many.v;
  for (const int64_t row : {0, 31, 63}) {
    one.q.fill([&](int64_t, int64_t, int64_t h, int64_t x) { return many.q.get(0, row, h, x); });
    const Judge judged = judge(one);
    on_every_row(
        many,
        [&] {
          one.o.fill([&](int64_t, int64_t, int64_t h, int64_t x) { return many.o.get(0, row, h, x); });
          one.lse.fill([&](int64_t, int64_t h, int64_t, int64_t) { return many.lse.get(0, h, row, 0); });
          expect_close(one, judged);
        },
        Rows::library);
    on_every_row(
        one, [&] { expect_close(one, judged); }, Rows::library);
  }
}

}  // namespace
}  // namespace tessera::test
