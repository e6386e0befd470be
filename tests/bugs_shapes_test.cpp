// Public bug situations about head sizes, tile edges, and grids larger than a launch allows.
#include <algorithm>
#include <cmath>

#include "sanitized.hpp"
#include "support.hpp"

namespace tessera::test {
namespace {

// Right where the target takes the head dims, else refused by the name and number of one of them.
void check_or_refuse(Case& c) {
  const tessera_problem& p = c.problem;
  if (offered_dim(p.head_dim_qk) && offered_dim(p.head_dim_v)) {
    check_against_judge(c);
  } else {
    const bool qk = !offered_dim(p.head_dim_qk);
    expect_refused(c, TESSERA_UNSUPPORTED,
                   qk ? "head_dim_qk=" + std::to_string(p.head_dim_qk) : "head_dim_v=" + std::to_string(p.head_dim_v));
  }
}

// pytorch/pytorch#142228, flashinfer-ai/flashinfer#3125, SandAI-org/MagiAttention#40: batches and heads past 65535.
TESSERA_SITUATION(BugShapes, MoreBatchesThanAGridDimension) {
  Case c = Case::dense(TESSERA_F16, {.batch = 65536, .seqlen_q = 1, .seqlen_k = 1, .heads_q = 2, .head_dim_qk = 16});
  c.randomize(91);
  on_every_row(
      c, [&] { EXPECT_TRUE(c.o.same_bits(c.v)); }, Rows::native);
}

TESSERA_SITUATION(BugShapes, MoreHeadsThanAGridDimension) {
  Case c = Case::dense(TESSERA_F16, {.seqlen_q = 1, .seqlen_k = 1, .heads_q = 65536, .head_dim_qk = 16});
  c.randomize(92);
  on_every_row(
      c, [&] { EXPECT_TRUE(c.o.same_bits(c.v)); }, Rows::native);
}

TESSERA_SITUATION(BugShapes, SeventyThousandShortSequences) {
  Case c = Case::dense(TESSERA_F16, {.batch = 70000, .seqlen_q = 3, .seqlen_k = 3});
  c.q.fill(1), c.k.fill(1);  // uniform weights: o is the mean of the three values
  c.v.fill([](int64_t b, int64_t j, int64_t, int64_t x) { return static_cast<double>((b + 5 * j + x) % 32); });
  on_every_row(
      c,
      [&] {
        for (const int64_t b : {0, 65534, 65535, 65536, 69999})
          for (int64_t i = 0; i < 3; ++i)
            for (int64_t x = 0; x < 64; ++x) {
              const double mean = (c.v.get(b, 0, 0, x) + c.v.get(b, 1, 0, x) + c.v.get(b, 2, 0, x)) / 3;
              EXPECT_NEAR(c.o.get(b, i, 0, x), mean, 2 * 0x1p-11 * mean);
            }
      },
      Rows::native);
}

// ikawrakow/ik_llama.cpp#2031, sgl-project/sgl-kernel-xpu#210: k and v walked with different row sizes. Other heads'
// values lie between the rows as NaN.
TESSERA_SITUATION(BugShapes, ValueDimOtherThanQueryDim) {
  const std::pair<int32_t, int32_t> dims[] = {{192, 128}, {128, 64}, {64, 192}, {576, 512}};
  for (const int32_t dtype : offered({TESSERA_BF16, TESSERA_F32}))
    for (const auto& [qk, v] : dims)
      for (const int64_t seqlen_k : {100, 577, 1000})
        for (const int32_t heads_kv : {1, 16}) {
          if (dtype == TESSERA_F32 && seqlen_k == 1000) continue;  // as reported in bf16
          SCOPED_TRACE(::testing::Message() << name_of(dtype) << " " << qk << "/" << v << " keys " << seqlen_k);
          Case c = Case::dense(dtype, {.seqlen_q = 1,
                                       .seqlen_k = seqlen_k,
                                       .heads_q = 16,
                                       .heads_kv = heads_kv,
                                       .head_dim_qk = qk,
                                       .head_dim_v = v});
          Placement spread;
          spread.stride = {seqlen_k * heads_kv * 2 * v, heads_kv * 2 * v, 2 * v, 1};
          c.v = Tensor(dtype, c.v.dims(), spread);
          c.randomize(93);
          check_or_refuse(c);
        }
}

TESSERA_SITUATION(BugShapes, DefaultScaleUsesTheQueryDim) {
  Case c = Case::dense(offered(TESSERA_F32), {.seqlen_q = 1, .seqlen_k = 1, .head_dim_qk = 16, .head_dim_v = 64});
  c.q.fill(1), c.k.fill(1), c.v.fill(1);
  on_every_row(c, [&] { EXPECT_NEAR(lse_at(c, 0, 0, 0), 4.0, lse_slack(1e-6)); });
}

// Dao-AILab/flash-attention#470, commits 2dc1b205, eeca63a7; MinghuasLab/flash-attention-npu#88;
// pytorch/pytorch#127523: head sizes below a vector. Every buffer ends at an inaccessible page.
TESSERA_SITUATION(BugShapes, SmallHeadDims) {
  for (const int32_t dtype : offered(kAllTypes))
    for (const int32_t head_dim : {1, 2, 3, 4, 5, 6, 7, 8, 16, 24})
      for (const Shape& base : {Shape{.batch = 2, .seqlen_q = 130, .seqlen_k = 130, .heads_q = 3}, Shape{}}) {
        SCOPED_TRACE(::testing::Message() << name_of(dtype) << " dim " << head_dim);
        Shape shape = base;
        shape.head_dim_qk = head_dim;
        Case c = Case::dense(dtype, shape);
        for (Tensor* t : {&c.q, &c.k, &c.v, &c.o, &c.lse}) *t = Tensor(t->dtype(), t->dims(), {.flush = true});
        c.randomize(94);
        check_or_refuse(c);
      }
}

TESSERA_SITUATION(BugShapes, SmallHeadDimsOnLongRows) {
  for (const int32_t head_dim : {1, 16}) {
    SCOPED_TRACE(head_dim);
    if (!offered_dim(head_dim)) continue;  // refused, as SmallHeadDims sees
    Case c = Case::dense(TESSERA_F16,
                         {.batch = 2, .seqlen_q = 1920, .seqlen_k = 1920, .heads_q = 8, .head_dim_qk = head_dim});
    for (Tensor* t : {&c.q, &c.k, &c.v, &c.o}) *t = Tensor(t->dtype(), t->dims(), {.flush = true});
    c.randomize(95);
    c.v.fill(1);
    on_every_row(
        c,
        [&] {
          for (const int64_t i : {0, 63, 1000, 1919}) {
            double sum = 0;
            for (int64_t j = 0; j < 1920; ++j) {
              double dot = 0;
              for (int64_t x = 0; x < head_dim; ++x) dot += c.q.get(1, i, 7, x) * c.k.get(1, j, 7, x);
              sum += std::exp(dot / std::sqrt(head_dim));
            }
            EXPECT_NEAR(lse_at(c, 1, i, 7), std::log(sum), 1e-4);
          }
          int64_t wrong = 0;
          for (int64_t b = 0; b < 2; ++b)
            for (int64_t i = 0; i < 1920; ++i)
              for (int64_t h = 0; h < 8; ++h) wrong += c.o.get(b, i, h, 0) != 1.0;
          EXPECT_EQ(wrong, 0);
        },
        Rows::native);
  }
}

// Dao-AILab/flash-attention#2896: head sizes that no tile divides.
TESSERA_SITUATION(BugShapes, UnevenHeadDims) {
  for (const int32_t dtype : offered(kAllTypes))
    for (const int32_t head_dim : {40, 59, 72, 88, 104, 111, 257, 300}) {
      SCOPED_TRACE(::testing::Message() << name_of(dtype) << " dim " << head_dim);
      Case c = Case::dense(dtype, {.seqlen_q = 96, .seqlen_k = 130, .heads_q = 2, .head_dim_qk = head_dim});
      for (Tensor* t : {&c.q, &c.k, &c.v, &c.o}) *t = Tensor(t->dtype(), t->dims(), {.flush = true});
      c.randomize(96);
      check_or_refuse(c);
    }
}

// Dao-AILab/flash-attention commits bba578d4 (#2091), a4f148b6, #1214: lengths one beside a tile's. NaN lies behind
// every tensor.
void every_pair_of_lengths(int32_t head_dim) {
  const int64_t lengths[] = {1, 2, 63, 64, 65, 79, 80, 81, 127, 128, 129, 191, 192, 193, 255, 256, 257};
  int pair = 0;
  for (const int64_t seqlen_q : lengths)
    for (const int64_t seqlen_k : lengths) {
      if (tests::kSanitized && pair++ % 3 != 0) continue;  // of 17 lengths each with five or six others
      SCOPED_TRACE(::testing::Message() << seqlen_q << " queries, " << seqlen_k << " keys");
      Case c = Case::dense(TESSERA_F16, {.seqlen_q = seqlen_q, .seqlen_k = seqlen_k, .head_dim_qk = head_dim});
      c.randomize(97);
      if ((seqlen_q + seqlen_k) % 2 == 1) c.set_causal();
      check_against_judge(c);
    }
}
TESSERA_SITUATION(BugTileEdges, EveryPairOfLengthsAt64) { every_pair_of_lengths(64); }
TESSERA_SITUATION(BugTileEdges, EveryPairOfLengthsAt128) { every_pair_of_lengths(128); }
TESSERA_SITUATION(BugTileEdges, EveryPairOfLengthsAt192) { every_pair_of_lengths(192); }

TESSERA_SITUATION(BugShapes, ThreeQueriesSevenKeysSixteenHeads) {
  for (const int32_t dtype : offered(kAllTypes)) {
    SCOPED_TRACE(name_of(dtype));
    Case c = Case::dense(dtype, {.seqlen_q = 3, .seqlen_k = 7, .heads_q = 16, .head_dim_qk = 192});
    c.randomize(98);
    c.problem.scale = 0.1147;
    c.set_causal();
    check_against_judge(c);
  }
}

}  // namespace
}  // namespace tessera::test
