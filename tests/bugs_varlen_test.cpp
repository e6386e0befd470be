// Public bug situations about packed sequences, used lengths and empty extents.
#include <cmath>

#include "support.hpp"

namespace tessera::test {
namespace {

std::vector<int32_t> cumulate(const std::vector<int32_t>& lengths) {
  std::vector<int32_t> cu{0};
  for (const int32_t length : lengths) cu.push_back(cu.back() + length);
  return cu;
}

// Dao-AILab/flash-attention#2562, #2568, #1713: zero-length queries beside real keys faulted, zero-length keys hung.
TESSERA_SITUATION(BugVarlen, ZeroLengthQueriesBesideRealKeys) {
  for (const int32_t head_dim : {64, 128, 256}) {
    SCOPED_TRACE(head_dim);
    Case c = Case::packed(TESSERA_BF16, {0, 0, 151, 256, 256}, {0, 317, 535, 640, 1024},
                          {.heads_q = 4, .heads_kv = 1, .head_dim_qk = head_dim});
    c.randomize(11);
    check_against_judge(c);
    c.set_causal();
    check_against_judge(c);
  }
}

// Dao-AILab/flash-attention#978, #2470, #2503, #2515; pytorch/pytorch#141218: lse +inf, division by zero, a signal.
TESSERA_SITUATION(BugVarlen, NoKeysAtAll) {
  for (const int32_t dtype : offered(kAllTypes))
    for (const bool causal : {false, true}) {
      SCOPED_TRACE(name_of(dtype));
      Case c = Case::dense(dtype, {.batch = 2, .seqlen_q = 3, .seqlen_k = 0, .heads_q = 4});
      c.q.fill_random(12);
      if (causal) c.set_causal();
      on_every_row(c, [&] {
        for (int64_t b = 0; b < 2; ++b)
          for (int64_t i = 0; i < 3; ++i)
            for (int64_t h = 0; h < 4; ++h) expect_empty_row(c, b, i, h);
      });
    }
}

TESSERA_SITUATION(BugVarlen, OneSequenceWithoutKeys) {
  for (const int32_t dtype : offered(kAllTypes)) {
    SCOPED_TRACE(name_of(dtype));
    Case c = Case::packed(dtype, {0, 2, 4}, {0, 0, 5}, {.heads_q = 2});
    c.randomize(13);
    const Judge judged = judge(c);
    on_every_row(c, [&] {
      for (int64_t i = 0; i < 2; ++i)
        for (int64_t h = 0; h < 2; ++h) {
          expect_empty_row(c, 0, i, h);
          EXPECT_TRUE(std::isfinite(lse_at(c, 0, 2 + i, h)));
        }
      expect_close(c, judged);
    });
  }
}

TESSERA_SITUATION(BugVarlen, EmptyBatchAndEmptyQueriesSucceed) {
  for (const int32_t dtype : offered(kAllTypes)) {
    SCOPED_TRACE(name_of(dtype));
    Case no_batch = Case::dense(dtype, {.batch = 0, .seqlen_q = 3, .seqlen_k = 7, .heads_q = 4});
    on_every_row(no_batch, [] {});
    Case no_queries = Case::dense(dtype, {.batch = 2, .seqlen_q = 0, .seqlen_k = 7, .heads_q = 4});
    no_queries.randomize(14);
    on_every_row(no_queries, [] {});
    Case no_packed_queries = Case::packed(dtype, {0, 0, 0}, {0, 3, 9}, {.heads_q = 4});
    no_packed_queries.randomize(15);
    on_every_row(no_packed_queries, [] {});
    Case nothing = Case::packed(dtype, {0}, {0}, {.heads_q = 4});
    on_every_row(nothing, [] {});
  }
}

// Frameworks hand out null for tensors without elements.
TESSERA_SITUATION(BugVarlen, NullPointersAreFineWhereThereIsNothingToRead) {
  Case c = Case::dense(offered(TESSERA_F32), {.batch = 2, .seqlen_q = 3, .seqlen_k = 0, .heads_q = 4});
  c.q.fill_random(16);
  tessera_tensors tensors = c.bind();
  tensors.k = tensors.v = nullptr;
  tessera_status status{};
  EXPECT_EQ(run_raw(c.problem, tensors, &status), TESSERA_OK) << status.message;
  expect_empty_row(c, 1, 2, 3);
}

// Dao-AILab/flash-attention#2333, #1773; sgl-project/sgl-flash-attn#47: tiles past the batch read past cu_seqlens.
TESSERA_SITUATION(BugVarlen, CumulativeLengthsAtTheEndOfTheirAllocation) {
  for (const int32_t dtype : offered(kAllTypes))
    for (const int32_t threads : {1, 8}) {
      SCOPED_TRACE(name_of(dtype));
      const std::vector<int32_t> cu = cumulate({1, 200, 0});  // Array ends at an inaccessible page
      Case c = Case::packed(dtype, cu, cu, {.heads_q = 2});
      c.randomize(17);
      c.set_causal();
      c.problem.threads = threads;
      check_against_judge(c);
    }
}

TESSERA_SITUATION(BugVarlen, WrongCumulativeLengthsAreRefused) {
  const auto packed = [](const std::vector<int32_t>& cu_q) {
    Case c = Case::packed(offered(TESSERA_F32), {0, 100, 110, 128}, {0, 100, 110, 128}, {.heads_q = 2});
    c.randomize(18);
    c.cu_seqlens_q = cu_q;
    return c;
  };
  Case falls = packed({0, 100, 90, 128});
  expect_metadata_refused(falls, "cu_seqlens_q");
  Case starts_late = packed({1, 100, 110, 128});
  expect_metadata_refused(starts_late, "cu_seqlens_q");
  Case past_the_end = packed({0, 100, 110, 129});
  expect_metadata_refused(past_the_end, "cu_seqlens_q");
  Case negative = packed({0, -5, 110, 128});
  expect_metadata_refused(negative, "cu_seqlens_q");
  Case longer_than_said = packed({0, 100, 110, 128});
  longer_than_said.problem.seqlen_q = 50;
  expect_metadata_refused(longer_than_said, "cu_seqlens_q");
  Case keys = packed({0, 100, 110, 128});
  keys.cu_seqlens_k = {0, 100, 90, 128};
  expect_metadata_refused(keys, "cu_seqlens_k");
  Case good = packed({0, 100, 110, 128});
  run_on(good);
}

// Rows past the last sequence belong to nobody: they keep what the caller had there.
TESSERA_SITUATION(BugVarlen, RowsPastTheLastSequenceAreLeftAlone) {
  for (const int32_t dtype : offered(kAllTypes)) {
    SCOPED_TRACE(name_of(dtype));
    Case c = Case::packed(dtype, {0, 100, 110, 128}, {0, 100, 110, 128}, {.heads_q = 2});
    c.randomize(19);
    for (int64_t i = 120; i < 128; ++i)
      for (int64_t h = 0; h < 2; ++h) c.q.fill_row(0, i, h, kNaN);
    c.cu_seqlens_q = {0, 100, 110, 120};
    const Judge judged = judge(c);
    on_every_row(c, [&] { expect_close(c, judged); });  // expect_written demands that rows 120 to 127 are untouched
  }
}

// NVIDIA/TransformerEngine#3331: lse of padded rows was whatever the buffer held, and a later merge consumed it.
TESSERA_SITUATION(BugVarlen, LseOfPaddedRowsIsDefinedAndMergesRepeatably) {
  constexpr int64_t kLength = 176, kHeads = 2, kDim = 64, kValid = 174;
  const Shape half{.seqlen_q = kLength, .seqlen_k = kLength / 2, .heads_q = kHeads};
  const auto make_half = [&](uint64_t seed) {
    Case c = Case::dense(offered(TESSERA_F32), half, TESSERA_F32);
    c.q.fill_random(20);
    c.k.fill_random(seed), c.v.fill_random(seed + 1);
    c.seqused_q = {static_cast<int32_t>(kValid)};
    for (int64_t i = kValid; i < kLength; ++i)
      for (int64_t h = 0; h < kHeads; ++h) c.q.fill_row(0, i, h, kNaN);
    return c;
  };
  Case halves[] = {make_half(21), make_half(23)};
  constexpr size_t kO = kLength * kHeads * kDim, kLse = kLength * kHeads;
  std::vector<float> o(2 * kO), lse(2 * kLse), merged_o(kO), merged_lse(kLse), first_o, first_lse;
  for (const Row& row : kernel_rows(Rows::library))
    for (int repeat = 0; repeat < 100; ++repeat) {
      SCOPED_TRACE(row.name);
      bool refused = false;
      for (size_t part = 0; part < 2; ++part) {
        Case& c = halves[part];
        const tessera_tensors tensors = c.bind();
        std::snprintf(c.problem.kernel, sizeof c.problem.kernel, "%s", row.name.c_str());
        const float prefill[] = {1000.0f, -1e30f, static_cast<float>(repeat) * 1.7e12f};
        std::fill_n(static_cast<float*>(c.lse.data()), kLse, prefill[repeat % 3]);
        std::fill_n(static_cast<float*>(c.o.data()), kO, prefill[repeat % 3]);
        tessera_status status{};
        const int code = run_raw(c.problem, tensors, &status);
        refused = code == TESSERA_UNSUPPORTED;
        if (refused) break;
        ASSERT_EQ(code, TESSERA_OK) << status.message;
        std::copy_n(static_cast<const float*>(c.o.data()), kO, o.data() + part * kO);
        std::copy_n(static_cast<const float*>(c.lse.data()), kLse, lse.data() + part * kLse);
      }
      if (refused) break;
      tessera_merge_args args{};
      args.size = sizeof args;
      args.states = 2, args.batch = 1, args.seqlen_q = kLength, args.heads = kHeads, args.head_dim_v = kDim;
      args.dtype = args.out_dtype = TESSERA_F32, args.device = -1;
      args.o = o.data(), args.lse = lse.data(), args.o_out = merged_o.data(), args.lse_out = merged_lse.data();
      tessera_status status{};
      ASSERT_EQ(merge(args, &status), TESSERA_OK) << status.message;
      if (repeat == 0) first_o = merged_o, first_lse = merged_lse;
      ASSERT_EQ(merged_o, first_o);
      ASSERT_EQ(merged_lse, first_lse);
      for (int64_t h = 0; h < kHeads; ++h)
        for (int64_t i = 0; i < kLength; ++i) {
          const float value = merged_lse[static_cast<size_t>(h * kLength + i)];
          ASSERT_EQ(std::isfinite(value), i < kValid) << "row " << i << " is " << value;
        }
    }
}

}  // namespace
}  // namespace tessera::test
