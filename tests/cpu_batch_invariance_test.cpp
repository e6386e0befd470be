// TESSERA_FLAG_BATCH_INVARIANT on the CPU's rows: within one row a sequence's result is the same bits whatever its
// batch mates, its position, the maxima of the call and the thread count. Prefill in chunks: chunked_prefill_test.cpp.
#include "support.hpp"

namespace tessera::test {
namespace {

struct Own {
  int32_t queries, keys;
};

// A batch of packed sequences of which number `position` is `own`, with the same rows in every batch.
Case batch_with(int32_t dtype, Own own, const std::vector<Own>& mates, size_t position, const Shape& shape) {
  std::vector<int32_t> cu_q{0}, cu_k{0};
  for (size_t b = 0; b <= mates.size(); ++b) {
    const Own& one = b == position ? own : mates[b - (b > position ? 1 : 0)];
    cu_q.push_back(cu_q.back() + one.queries), cu_k.push_back(cu_k.back() + one.keys);
  }
  Case c = Case::packed(dtype, cu_q, cu_k, shape);
  c.randomize(55);
  const auto place = [&](const Tensor& x, int64_t first, int64_t count, uint64_t seed) {
    const Tensor rows(dtype, {1, count, x.dims()[2], x.dims()[3]});
    rows.fill_random(seed);
    for (int64_t i = 0; i < count; ++i)
      for (int64_t h = 0; h < x.dims()[2]; ++h)
        for (int64_t e = 0; e < x.dims()[3]; ++e) x.set(0, first + i, h, e, rows.get(0, i, h, e));
  };
  place(c.q, cu_q[position], own.queries, 1), place(c.k, cu_k[position], own.keys, 2);
  place(c.v, cu_k[position], own.keys, 3);
  c.problem.flags |= TESSERA_FLAG_BATCH_INVARIANT;
  return c;
}

// o and lse of packed sequence `position`.
std::vector<double> result_of(const Case& c, size_t position) {
  std::vector<double> values;
  for (int64_t i = c.cu_seqlens_q[position]; i < c.cu_seqlens_q[position + 1]; ++i)
    for (int64_t h = 0; h < c.problem.heads_q; ++h) {
      for (int64_t e = 0; e < c.problem.head_dim_v; ++e) values.push_back(c.o.get(0, i, h, e));
      values.push_back(c.lse.get(0, h, i, 0));
    }
  return values;
}

void expect_invariant(int32_t dtype, Own own, const Shape& shape, const std::function<void(Case&)>& options) {
  const std::vector<std::vector<Own>> companies = {{{1, 1300}, {30, 30}}, {{0, 9}, {2, 0}, {17, 300}, {5, 77}}};
  std::vector<std::pair<Case, size_t>> others;
  for (const std::vector<Own>& mates : companies)
    for (const size_t position : {size_t{0}, mates.size()}) {
      Case c = batch_with(dtype, own, mates, position, shape);
      options(c);
      c.problem.threads = static_cast<int32_t>(others.size()) + 2;
      others.emplace_back(c, position);
    }
  Case alone = batch_with(dtype, own, {}, 0, shape);
  options(alone);
  alone.problem.threads = 1;
  int compared = 0;
  on_every_row(
      alone,
      [&] {
        const std::vector<double> right = result_of(alone, 0);
        for (auto& [c, position] : others) {
          tessera_status status{};
          const int code = run(c, {alone.kernel, false}, &status);
          if (code == TESSERA_UNSUPPORTED) continue;  // the larger maxima are another row's
          ASSERT_EQ(code, TESSERA_OK) << status.message;
          EXPECT_EQ(result_of(c, position), right) << c.problem.batch << " sequences, position " << position;
          ++compared;
        }
      },
      Rows::library);
  EXPECT_GT(compared, 5);
}

TEST(CpuBatchInvariance, NeitherMatesNorPositionNorThreadsCount) {
  const Shape shape{.heads_q = 4, .heads_kv = 2, .head_dim_qk = 24};
  int32_t turn = 0;  // each type and each length meets both ways of splitting
  for (const int32_t dtype : kAllTypes)
    for (const Own own : {Own{1, 1100}, Own{3, 70}, Own{20, 130}}) {
      const int32_t splits = turn++ % 2 == 0 ? 0 : 3;
      SCOPED_TRACE(::testing::Message() << name_of(dtype) << ' ' << own.queries << " queries, " << own.keys
                                        << " keys, splits " << splits);
      expect_invariant(dtype, own, shape, [&](Case& c) {
        c.problem.num_splits = splits;
        c.set_causal();
      });
    }
}

TEST(CpuBatchInvariance, UnderAWindowAndWithoutABand) {
  const Shape shape{.heads_q = 8, .heads_kv = 1, .head_dim_qk = 40};
  for (const int32_t dtype : {TESSERA_F32, TESSERA_BF16})
    for (const int64_t left : {-1, 50})
      expect_invariant(dtype, {6, 333}, shape, [&](Case& c) { c.problem.left = left; });
}

}  // namespace
}  // namespace tessera::test
