// Public bug situations at their reported size: above 4 GB or a minute. The library chooses the kernel.
#include <cmath>
#include <cstring>

#include "support.hpp"

namespace tessera::test {
namespace {

void zero(const Tensor& t) {
  size_t bytes = t.dtype() == TESSERA_F32 ? 4 : 2;
  for (const int64_t extent : t.dims()) bytes *= static_cast<size_t>(extent);
  std::memset(t.data(), 0, bytes);
}

// pytorch/pytorch#142228, SandAI-org/MagiAttention#40: more query tiles than a grid dimension allows.
TESSERA_SITUATION(BugsBig, MoreQueryTilesThanAGridDimension) {
  constexpr int64_t kQueries = 64 * 65535 + 1;
  Case c = Case::dense(TESSERA_F16, {.seqlen_q = kQueries, .seqlen_k = 8, .head_dim_qk = 16});
  zero(c.q), c.k.fill_random(201);
  c.v.fill([](int64_t, int64_t j, int64_t, int64_t x) { return static_cast<double>(j * 16 + x); });
  run_on(c);
  for (const int64_t i : {int64_t{0}, int64_t{65535}, int64_t{65536}, kQueries - 2, kQueries - 1})
    for (int64_t x = 0; x < 16; ++x) EXPECT_NEAR(c.o.get(0, i, 0, x), 56.0 + static_cast<double>(x), 0.03125);
}

// Dao-AILab/flash-attention#2562 at its reported lengths.
TESSERA_SITUATION(BugsBig, ZeroLengthQueriesBesideRealKeys) {
  for (const int32_t head_dim : {64, 128, 256}) {
    Case c = Case::packed(TESSERA_BF16, {0, 0, 1208, 2048, 2048}, {0, 2538, 4280, 5120, 8192},
                          {.heads_q = 4, .heads_kv = 1, .head_dim_qk = head_dim});
    c.randomize(202);
    c.problem.seqlen_k = 3072;
    check_against_judge(c);
  }
}

// Dao-AILab/flash-attention#2662, commit 74dfa43c: a count of bytes in 32 bits turned negative.
TESSERA_SITUATION(BugsBig, FourMillionKeys) {
  constexpr int64_t kQueries = 2048, kKeys = 4194304, kMarked = 1024;
  Case c = Case::dense(TESSERA_BF16,
                       {.seqlen_q = kQueries, .seqlen_k = kKeys, .heads_q = 8, .heads_kv = 1, .head_dim_qk = 128});
  c.q.fill_random(203);
  zero(c.k), zero(c.v);
  for (int64_t j = kKeys - kMarked; j < kKeys; ++j) c.v.fill_row(0, j, 0, 1);
  c.set_causal();
  run_on(c);
  for (const int64_t i : {int64_t{0}, int64_t{1023}, int64_t{1024}, int64_t{1500}, kQueries - 1})
    for (int64_t h = 0; h < 8; ++h) {
      const double seen = static_cast<double>(kKeys - kQueries + i + 1);
      const double want = static_cast<double>(std::max<int64_t>(0, i - (kQueries - kMarked - 1))) / seen;
      for (int64_t x = 0; x < 128; ++x) EXPECT_NEAR(c.o.get(0, i, h, x), want, 2 * 0x1p-8 * want);
      EXPECT_NEAR(lse_at(c, 0, i, h), std::log(seen), 1e-4);
    }
}

// ml-explore/mlx#3360: one head larger than the cache.
TESSERA_SITUATION(BugsBig, CausalRowsOf262144Keys) {
  constexpr int64_t kLength = 262144;
  Case c = Case::dense(TESSERA_BF16, {.seqlen_q = kLength, .seqlen_k = kLength, .heads_q = 2, .head_dim_qk = 256});
  c.q.fill([](int64_t, int64_t i, int64_t, int64_t x) { return static_cast<double>((i + x) % 5) - 2; });
  zero(c.k);
  c.v.fill([](int64_t, int64_t j, int64_t, int64_t) { return j % 2 == 0 ? 1.0 : 0.0; });
  c.set_causal();
  run_on(c);
  for (int64_t h = 0; h < 2; ++h) {
    expect_row(c.o, 0, 0, h, 1.0);
    for (const int64_t i : {int64_t{1}, int64_t{63}, int64_t{64}, int64_t{65535}, kLength - 1}) {
      const double want = static_cast<double>(i / 2 + 1) / static_cast<double>(i + 1);
      expect_row(c.o, 0, i, h, want, 2);
      EXPECT_NEAR(lse_at(c, 0, i, h), std::log(static_cast<double>(i + 1)), 1e-4);
    }
  }
}

}  // namespace
}  // namespace tessera::test
