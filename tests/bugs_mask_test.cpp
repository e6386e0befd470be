// Public bug situations about causal masks and windows. Bounds are inclusive and aligned bottom-right.
#include <algorithm>
#include <cmath>

#include "support.hpp"

namespace tessera::test {
namespace {

// Keys and values of the marker tests: V[0] = 1024, every other value 0, so o shows the weight of key 0.
void mark_first_key(const Case& c) {
  c.v.fill([](int64_t, int64_t j, int64_t, int64_t) { return j == 0 ? 1024.0 : 0.0; });
}

// Dao-AILab/flash-attention#1778, #402; ml-explore/mlx#2835: rows above the keys came out as zeros, NaN or top-left
// masked.
TESSERA_SITUATION(BugMask, CausalWithMoreQueriesThanKeys) {
  for (const int32_t dtype : offered(kAllTypes)) {
    SCOPED_TRACE(name_of(dtype));
    Case c = Case::dense(dtype, {.seqlen_q = 5, .seqlen_k = 2});
    c.set_causal();
    c.q.fill_random(1);
    c.k.fill(0);
    c.v.fill([](int64_t, int64_t j, int64_t, int64_t) { return j == 0 ? 1.0 : 3.0; });
    on_every_row(c, [&] {
      for (int64_t i = 0; i < 3; ++i) expect_empty_row(c, 0, i, 0);
      expect_row(c.o, 0, 3, 0, 1.0);
      expect_row(c.o, 0, 4, 0, 2.0, 2);
      EXPECT_EQ(lse_at(c, 0, 3, 0), 0.0);
      EXPECT_NEAR(lse_at(c, 0, 4, 0), std::log(2.0), lse_slack(1e-6));
    });
  }
}

// huggingface/transformers#39408, facebookresearch/xformers#923, Dao-AILab/flash-attention#1133: off by one at the
// bounds.
TESSERA_SITUATION(BugMask, WindowOfOneKeyReturnsItsValue) {
  for (const int64_t seqlen : {17, 2048}) {
    Case c = Case::dense(TESSERA_F16, {.seqlen_q = seqlen, .seqlen_k = seqlen, .heads_q = 2, .head_dim_qk = 128});
    c.randomize(2);
    c.problem.left = c.problem.right = 0;
    on_every_row(c, [&] {
      EXPECT_TRUE(c.o.same_bits(c.v));
      for (int64_t h = 0; h < 2; ++h)
        for (int64_t i = 0; i < seqlen; ++i) {
          double dot = 0;
          for (int64_t x = 0; x < 128; ++x) dot += c.q.get(0, i, h, x) * c.k.get(0, i, h, x);
          EXPECT_NEAR(lse_at(c, 0, i, h), dot / std::sqrt(128.0), 1e-4);
        }
    });
  }
}

TESSERA_SITUATION(BugMask, WindowsThatCoverTheSequenceEqualCausal) {
  for (const int64_t seqlen : {17, 2048}) {
    Case c = Case::dense(TESSERA_F16, {.seqlen_q = seqlen, .seqlen_k = seqlen, .heads_q = 2, .head_dim_qk = 128});
    c.randomize(3);
    mark_first_key(c);
    const auto expect_near = [&](const Tensor& want, int64_t i) {
      for (int64_t h = 0; h < 2; ++h) {
        const double w = want.get(0, i, h, 0);
        EXPECT_NEAR(c.o.get(0, i, h, 0), w, std::abs(w) * 0x1p-9 + 1e-6) << "row " << i << " head " << h;
      }
    };
    for (const Row& row : kernel_rows(seqlen > 100 ? Rows::native : Rows::library)) {
      SCOPED_TRACE(row.name);
      tessera_status status{};
      const auto run_window = [&](int64_t left) {
        c.problem.left = left, c.problem.right = 0;
        return run(c, row, &status);
      };
      const int code = run_window(-1);
      if (code == TESSERA_UNSUPPORTED) continue;
      ASSERT_EQ(code, TESSERA_OK) << status.message;
      const Tensor causal = c.o.clone();
      for (const int64_t left : {seqlen - 1, seqlen}) {
        ASSERT_EQ(run_window(left), TESSERA_OK) << status.message;
        for (int64_t i = 0; i < seqlen; ++i) expect_near(causal, i);
      }
      ASSERT_EQ(run_window(seqlen - 2), TESSERA_OK) << status.message;
      for (int64_t i = 0; i < seqlen - 1; ++i) expect_near(causal, i);
      for (int64_t h = 0; h < 2; ++h) expect_row(c.o, 0, seqlen - 1, h, 0.0);
      EXPECT_GT(causal.get(0, seqlen - 1, 0, 0), 0.0);
    }
  }
}

// tlc-pack/libflash_attn#11: a window wider than the sequence was dropped, and causal with it.
TESSERA_SITUATION(BugMask, WideWindowKeepsCausality) {
  Case c = Case::dense(TESSERA_F16, {.batch = 2, .seqlen_q = 7, .seqlen_k = 7, .heads_q = 4});
  c.randomize(4);
  c.problem.left = 4096, c.problem.right = 0;
  Case plain = c.twin();
  plain.problem.left = -1;
  Case changed = c.twin();
  changed.k = c.k.clone(), changed.v = c.v.clone();
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t h = 0; h < 4; ++h) changed.k.fill_row(b, 6, h, 1e3), changed.v.fill_row(b, 6, h, 1e3);
  on_every_row(
      c,
      [&] {
        run_on(plain, c.kernel);
        EXPECT_TRUE(c.o.same_bits(plain.o));
        EXPECT_TRUE(c.lse.same_bits(plain.lse));
        for (int64_t b = 0; b < 2; ++b)
          for (int64_t h = 0; h < 4; ++h)
            for (int64_t x = 0; x < 64; ++x) EXPECT_EQ(c.o.get(b, 0, h, x), c.v.get(b, 0, h, x));
        run_on(changed, c.kernel);
        for (int64_t b = 0; b < 2; ++b)
          for (int64_t i = 0; i < 6; ++i)
            for (int64_t h = 0; h < 4; ++h)
              for (int64_t x = 0; x < 64; ++x) EXPECT_EQ(changed.o.get(b, i, h, x), c.o.get(b, i, h, x)) << "row " << i;
      },
      Rows::library);
}

TESSERA_SITUATION(BugMask, WideTwoSidedWindowEqualsNoMask) {
  Case c = Case::dense(TESSERA_F16, {.batch = 2, .seqlen_q = 7, .seqlen_k = 7, .heads_q = 4});
  c.randomize(5);
  on_every_row(
      c,
      [&] {
        Case wide = c.twin();
        wide.problem.left = wide.problem.right = 4096;
        run_on(wide, c.kernel);
        EXPECT_TRUE(wide.o.same_bits(c.o));
        EXPECT_TRUE(wide.lse.same_bits(c.lse));
      },
      Rows::library);
}

// Dao-AILab/flash-attention#443: 76 to 146 queries over one key each, causal: one visible key in one row a sequence.
TESSERA_SITUATION(BugMask, LongQueriesOverOneKeyPacked) {
  for (const int32_t dtype : offered(kAllTypes)) {
    SCOPED_TRACE(name_of(dtype));
    Case c = Case::packed(dtype, {0, 76, 110, 256}, {0, 1, 2, 3}, {.head_dim_qk = 32});
    c.randomize(6, 3);
    c.set_causal();
    on_every_row(c, [&] {
      int64_t sequence = 0;
      for (int64_t i = 0; i < 256; ++i) {
        if (i != 75 && i != 109 && i != 255) {
          expect_empty_row(c, 0, i, 0);
          continue;
        }
        for (int64_t x = 0; x < 32; ++x) EXPECT_EQ(c.o.get(0, i, 0, x), c.v.get(0, sequence, 0, x));
        ++sequence;
      }
    });
  }
}

// ml-explore/mlx#2835, pytorch/pytorch#103082, pytorch/executorch#22426, apache/tvm#14907: which corner causal is tied
// to.
TESSERA_SITUATION(BugMask, CausalIsTiedToTheLastKeyUnlessAskedOtherwise) {
  for (const int32_t dtype : offered(kAllTypes)) {
    SCOPED_TRACE(name_of(dtype));
    Case c = Case::dense(dtype, {.seqlen_q = 1, .seqlen_k = 16, .heads_q = 2});
    c.randomize(7);
    on_every_row(
        c,
        [&] {
          Case other = c.twin();
          other.set_causal();
          run_on(other, c.kernel);
          EXPECT_TRUE(other.o.same_bits(c.o));
          other.problem.mask_alignment = TESSERA_TOP_LEFT;
          run_on(other, c.kernel);
          for (int64_t h = 0; h < 2; ++h)
            for (int64_t x = 0; x < 64; ++x) EXPECT_EQ(other.o.get(0, 0, h, x), c.v.get(0, 0, h, x));
        },
        Rows::library);
  }
}

TESSERA_SITUATION(BugMask, BothCornersAgreeOnSquareProblems) {
  Case c = Case::dense(offered(TESSERA_F32), {.seqlen_q = 70, .seqlen_k = 70});
  c.randomize(8);
  c.set_causal();
  on_every_row(
      c,
      [&] {
        Case other = c.twin();
        other.problem.mask_alignment = TESSERA_TOP_LEFT;
        run_on(other, c.kernel);
        EXPECT_TRUE(other.o.same_bits(c.o));
        EXPECT_TRUE(other.lse.same_bits(c.lse));
      },
      Rows::library);
}

// Dao-AILab/flash-attention#1116, proger/hippogriff#7, thu-nics/DiTFastAttn#7, flashinfer-ai/flashinfer#4893: a
// negative window read as infinity, a right bound ignored.
TESSERA_SITUATION(BugMask, NegativeWindowsOtherThanMinusOneAreRefused) {
  Case c = Case::dense(offered(TESSERA_F32), {.seqlen_q = 4, .seqlen_k = 4});
  c.randomize(9);
  c.problem.left = -2;
  expect_refused(c, TESSERA_INVALID_ARGUMENT, "left");
  c.problem.left = -1, c.problem.right = -7;
  expect_refused(c, TESSERA_INVALID_ARGUMENT, "right");
  c.problem.right = -1;
  run_on(c);
}

// The right bound on every path: keys 239 and up lie outside of rows 0 to 222 (dense, split, packed) and of row 0.
TESSERA_SITUATION(BugMask, RightBoundActsOnEveryPath) {
  constexpr int64_t kLength = 256;
  const Shape shape{.seqlen_q = kLength, .seqlen_k = kLength};
  std::vector<int32_t> table;
  for (int32_t page = 0; page < 16; ++page) table.push_back(15 - page);
  std::vector<std::pair<const char*, Case>> paths;
  for (const int32_t dtype : offered({TESSERA_F32, TESSERA_BF16})) {
    paths.emplace_back("dense", Case::dense(dtype, shape));
    paths.emplace_back("split", Case::dense(dtype, shape));
    paths.back().second.problem.num_splits = 3;
    paths.emplace_back("packed", Case::packed(dtype, {0, kLength}, {0, kLength}, shape));
    paths.emplace_back("paged", Case::paged(dtype, shape, 16, 16, table));
    paths.emplace_back("decode", Case::dense(dtype, {.seqlen_q = 1, .seqlen_k = kLength}));
    paths.back().second.problem.mask_alignment = TESSERA_TOP_LEFT;
  }
  for (auto& [name, c] : paths) {
    SCOPED_TRACE(name);
    c.randomize(10);
    c.problem.left = c.problem.right = 16;
    Case changed = c.twin();
    changed.v = c.v.clone();
    const bool paged = c.problem.layout_kv == TESSERA_PAGED;
    changed.v.fill_row(0, paged ? 15 : kLength - 1, 0, 1e3);  // table[15] is page 0, slot 15 holds key 255
    on_every_row(
        c,
        [&, &call = c] {
          run_on(changed, call.kernel);
          for (int64_t i = 0; i < std::min<int64_t>(call.problem.seqlen_q, 239); ++i)
            for (int64_t x = 0; x < 64; ++x)
              EXPECT_EQ(changed.o.get(0, i, 0, x), call.o.get(0, i, 0, x)) << "row " << i;
          if (call.problem.seqlen_q > 1) {
            EXPECT_GT(std::abs(changed.o.get(0, 239, 0, 0) - call.o.get(0, 239, 0, 0)), 1.0);
          }
        },
        Rows::library);
  }
}

}  // namespace
}  // namespace tessera::test
