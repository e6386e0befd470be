// Public bug situations about paged and partly filled key/value caches.
#include <climits>
#include <cmath>

#include "support.hpp"

namespace tessera::test {
namespace {

constexpr double kPoisons[] = {kNaN, kInfinity, -kInfinity};

// A paged copy of a dense case: sequence b's key j is in page table[b * max_pages + j / page_size]. Slots without a key
// hold NaN.
Case to_pages(const Case& dense, int32_t page_size, int64_t num_pages, const std::vector<int32_t>& table) {
  const tessera_problem& p = dense.problem;
  Case c = Case::paged(dense.q.dtype(),
                       {p.batch, p.seqlen_q, p.seqlen_k, p.heads_q, p.heads_kv, p.head_dim_qk, p.head_dim_v}, page_size,
                       num_pages, table);
  c.q = dense.q, c.seqused_k = dense.seqused_k;
  c.problem.left = p.left, c.problem.right = p.right;
  for (int64_t b = 0; b < p.batch; ++b) {
    const int64_t used = dense.seqused_k.size() != 0 ? dense.seqused_k[static_cast<size_t>(b)] : p.seqlen_k;
    for (int64_t j = 0; j < used; ++j) {
      const int64_t page = table[static_cast<size_t>(b * c.problem.max_pages + j / page_size)];
      for (int64_t h = 0; h < p.heads_kv; ++h) {
        for (int64_t x = 0; x < p.head_dim_qk; ++x) c.k.set(page, j % page_size, h, x, dense.k.get(b, j, h, x));
        for (int64_t x = 0; x < p.head_dim_v; ++x) c.v.set(page, j % page_size, h, x, dense.v.get(b, j, h, x));
      }
    }
  }
  return c;
}

// Dao-AILab/flash-attention#1745, #2374, #1395; flashinfer-ai/flashinfer#941; vllm-project/vllm#936, #47305: a weight
// of 0 times NaN from the unused tail of a cache.
TESSERA_SITUATION(BugPaged, CacheTailOfNaNReachesNothing) {
  for (const int32_t dtype : offered(kAllTypes)) {
    SCOPED_TRACE(name_of(dtype));
    Case c = Case::dense(dtype, {.batch = 2, .seqlen_q = 3, .seqlen_k = 3});
    c.q.fill(0.5);
    c.seqused_k = {1, 3};
    for (const double poison : kPoisons) {
      c.k.fill([&](int64_t b, int64_t j, int64_t, int64_t) { return b == 0 && j > 0 ? poison : 0.5; });
      c.v.copy_values(c.k);
      on_every_row(c, [&] {
        for (int64_t b = 0; b < 2; ++b)
          for (int64_t i = 0; i < 3; ++i) {
            expect_row(c.o, b, i, 0, 0.5, 2);
            EXPECT_NEAR(lse_at(c, b, i, 0), b == 0 ? 2.0 : 2.0 + std::log(3.0), lse_slack(2e-6));
          }
      });
    }
  }
}

TESSERA_SITUATION(BugPaged, CacheTailChangesNoBit) {
  const std::vector<int32_t> used = {32, 64, 96, 48};
  const auto fill_tail = [&](const Tensor& t, double value) {
    for (int64_t b = 0; b < 4; ++b)
      for (int64_t j = used[static_cast<size_t>(b)]; j < 128; ++j)
        for (int64_t h = 0; h < 8; ++h) t.fill_row(b, j, h, value);
  };
  for (const int32_t dtype : offered(kAllTypes))
    for (const int64_t seqlen_q : {1, 5}) {
      SCOPED_TRACE(name_of(dtype));
      Case c = Case::dense(dtype, {.batch = 4, .seqlen_q = seqlen_q, .seqlen_k = 128, .heads_q = 8});
      c.randomize(31);
      c.seqused_k = used;
      fill_tail(c.k, 0), fill_tail(c.v, 0);
      on_every_row(
          c,
          [&] {
            for (const double poison : kPoisons) {
              Case poisoned = c.twin();
              poisoned.k = c.k.clone(), poisoned.v = c.v.clone();
              fill_tail(poisoned.k, poison), fill_tail(poisoned.v, poison);
              run_on(poisoned, c.kernel);
              EXPECT_TRUE(poisoned.o.same_bits(c.o));
              EXPECT_TRUE(poisoned.lse.same_bits(c.lse));
            }
          },
          Rows::library);
    }
}

TESSERA_SITUATION(BugPaged, PageTailChangesNoBit) {
  for (const int32_t dtype : offered(kAllTypes)) {
    SCOPED_TRACE(name_of(dtype));
    Case dense = Case::dense(dtype, {.seqlen_q = 3, .seqlen_k = 13, .heads_q = 2});
    dense.randomize(32);
    Case c = to_pages(dense, 4, 6, {5, 0, 2, 3});
    const auto fill_unused = [&](double value) {
      for (const Tensor* t : {&c.k, &c.v})
        for (int64_t h = 0; h < 2; ++h) {
          for (int64_t slot = 1; slot < 4; ++slot) t->fill_row(3, slot, h, value);  // page 3 ends the sequence
          for (const int64_t page : {1, 4})
            for (int64_t slot = 0; slot < 4; ++slot) t->fill_row(page, slot, h, value);
        }
    };
    fill_unused(0);
    std::vector<std::vector<std::byte>> clean;
    on_every_row(
        c, [&] { clean.push_back(bytes_of(c.o)); }, Rows::library);
    for (const double poison : kPoisons) {
      fill_unused(poison);
      size_t row = 0;
      on_every_row(
          c, [&] { EXPECT_EQ(bytes_of(c.o), clean[row++]); }, Rows::library);
    }
  }
}

// vllm-project/flash-attention#42, flashinfer-ai/flashinfer#320, Dao-AILab/flash-attention#824: a key tile wider than
// the remaining pages read past the table. The table here ends at an inaccessible page.
TESSERA_SITUATION(BugPaged, TableExactlyAsWideAsNeeded) {
  for (const int32_t head_dim : {64, 128})
    for (const int64_t seqlen_q : {1, 33})
      for (const int64_t seqlen_k : {1, 15, 16, 17, 255, 257, 1000}) {
        Case dense = Case::dense(TESSERA_BF16, {.seqlen_q = seqlen_q, .seqlen_k = seqlen_k, .head_dim_qk = head_dim});
        dense.randomize(33);
        for (const int32_t page_size : {1, 16, 24, 64, 256, 512}) {
          SCOPED_TRACE(::testing::Message() << "keys " << seqlen_k << " page " << page_size << " dim " << head_dim);
          const auto pages = static_cast<int32_t>((seqlen_k + page_size - 1) / page_size);
          std::vector<int32_t> table;
          for (int32_t page = 0; page < pages; ++page) table.push_back(pages - 1 - page);
          Case c = to_pages(dense, page_size, pages, table);
          on_every_row(
              c,
              [&] {
                Case unpaged = dense.twin();
                run_on(unpaged, c.kernel);
                EXPECT_TRUE(c.o.same_bits(unpaged.o));
                EXPECT_TRUE(c.lse.same_bits(unpaged.lse));
              },
              Rows::library);
        }
      }
}

// microsoft/onnxruntime#32391, vllm-project/vllm#39643: a prefetch followed garbage ids in unused table slots.
TESSERA_SITUATION(BugPaged, UnusedTableSlotsMayHoldAnything) {
  constexpr int32_t kPages = 40, kPageSize = 16, kWidth = 64;
  for (const int32_t dtype : offered({TESSERA_F32, TESSERA_BF16})) {
    Case dense = Case::dense(dtype, {.batch = 3, .seqlen_q = 2, .seqlen_k = kWidth * kPageSize, .heads_q = 2});
    dense.randomize(34);
    dense.seqused_k = {5, 0, 300};
    const auto table_with = [&](int32_t unused) {
      std::vector<int32_t> table(3 * kWidth, unused);
      table[0] = 17;
      for (int32_t page = 0; page < 19; ++page)
        table[static_cast<size_t>(2 * kWidth + page)] = (page * 7 + 20) % kPages;
      return table;
    };
    Case c = to_pages(dense, kPageSize, kPages, table_with(0));
    on_every_row(
        c,
        [&] {
          for (const int32_t garbage : {-1, INT_MAX, 123456789, 3}) {
            Case other = c.twin();
            other.page_table = table_with(garbage);
            run_on(other, c.kernel);
            EXPECT_TRUE(other.o.same_bits(c.o)) << garbage;
            EXPECT_TRUE(other.lse.same_bits(c.lse)) << garbage;
          }
        },
        Rows::library);
    for (const int32_t bad : {kPages, -1, INT_MAX}) {
      c.page_table = table_with(0);
      c.page_table[2 * kWidth + 18] = bad;
      expect_metadata_refused(c, "page_table");
    }
  }
}

TESSERA_SITUATION(BugPaged, UsedLengthsOutOfRangeAreRefused) {
  Case c = Case::dense(offered(TESSERA_F32), {.batch = 2, .seqlen_q = 1, .seqlen_k = 8});
  c.randomize(35);
  c.seqused_k = {3, 9};
  expect_metadata_refused(c, "seqused_k");
  c.seqused_k = {-1, 8};
  expect_metadata_refused(c, "seqused_k");
  Case paged = to_pages(Case::dense(offered(TESSERA_F32), {.batch = 1, .seqlen_q = 1, .seqlen_k = 32}), 16, 2, {0, 1});
  paged.randomize(36);
  paged.seqused_k = {33};
  expect_metadata_refused(paged, "seqused_k");
}

// pytorch/pytorch#194167; Dao-AILab/flash-attention#2550, #1217; pytorch/torchtitan#3235: with splits only the first
// sequence's rows were written.
Case serving_step(int64_t context) {
  Case dense = Case::dense(TESSERA_BF16, {.batch = 2, .seqlen_q = 1, .seqlen_k = 1024, .heads_q = 4});
  dense.randomize(37);
  dense.seqused_k = {static_cast<int32_t>(context), static_cast<int32_t>(context)};
  Case c = to_pages(dense, 256, 8, {3, 1, 7, 0, 2, 6, 4, 5});
  c.problem.layout_q = TESSERA_PACKED;
  c.problem.total_q = 2;
  c.cu_seqlens_q = {0, 1, 2};
  Tensor q(TESSERA_BF16, {1, 2, 4, 64});
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t h = 0; h < 4; ++h)
      for (int64_t x = 0; x < 64; ++x) q.set(0, b, h, x, dense.q.get(b, 0, h, x));
  c.q = q, c.o = Tensor(TESSERA_BF16, {1, 2, 4, 64}), c.lse = Tensor(TESSERA_F32, {1, 4, 2, 1});
  return c;
}

TESSERA_SITUATION(BugPaged, PackedQueriesOverPagesWithAnySplit) {
  Case c = serving_step(1024);
  for (const int32_t splits : {0, 1, 2, 3, 7, 32}) {
    SCOPED_TRACE(splits);
    c.problem.num_splits = splits;
    check_against_judge(c, Rows::all);
  }
}

TESSERA_SITUATION(BugPaged, GrowingContextNeverLeavesRowsUnwritten) {
  Case c = serving_step(1024);
  for (int32_t context = 1; context <= 600; ++context) {
    SCOPED_TRACE(context);
    c.seqused_k = {context, context};
    c.problem.num_splits = std::array{0, 2, 3, 7, 32}[static_cast<size_t>(context) % 5];
    check_against_judge(c, Rows::native);
  }
}

// Dao-AILab/flash-attention#1795: one length for all sequences expanded to the number of pages.
TESSERA_SITUATION(BugPaged, OneLengthForAllSequences) {
  Case dense = Case::dense(offered(TESSERA_F32), {.batch = 3, .seqlen_q = 2, .seqlen_k = 77, .heads_q = 2});
  dense.randomize(38);
  std::vector<int32_t> table;
  for (int32_t entry = 0; entry < 15; ++entry) table.push_back((entry * 11 + 3) % 40);
  Case c = to_pages(dense, 16, 40, table);
  on_every_row(
      c,
      [&] {
        Case each = c.twin();
        each.seqused_k = {77, 77, 77};
        run_on(each, c.kernel);
        EXPECT_TRUE(each.o.same_bits(c.o));
        EXPECT_TRUE(each.lse.same_bits(c.lse));
      },
      Rows::library);
}

}  // namespace
}  // namespace tessera::test
