// Appending and attending in one call, on the CPU and on a GPU: it equals two calls, bit for bit, on every row, and is
// right against float64 while a cache grows.
#include <array>

#include "append_case.hpp"

namespace tessera::test {
namespace {

TESSERA_SITUATION(AppendAttention, OneCallEqualsTwoOnEveryRow) {
  for (const char* layout : {"dense", "batch_idx", "leftpad", "paged"})
    for (const int32_t dtype : offered(kAllTypes))
      for (const bool rotary : {false, true}) {
        SCOPED_TRACE(::testing::Message() << layout << ' ' << name_of(dtype) << " rotary " << rotary);
        AppendCase one = serving_case(layout, dtype);
        if (rotary) one.make_rotary(16, 99, 0, true);
        one.c.problem.num_splits = on_gpu() && rotary ? 3 : 0;
        AppendCase two = one;
        two.c.k = one.c.k.clone(), two.c.v = one.c.v.clone();
        if (rotary) two.q_rotated = one.q_rotated.clone();
        Case apart = after_append(two);
        int ran = 0;
        on_every_row(
            apart,
            [&] {
              std::snprintf(one.c.problem.kernel, sizeof one.c.problem.kernel, "%s", apart.kernel.c_str());
              tessera_status status{};
              ASSERT_EQ(one.attend(&status), TESSERA_OK) << status.message;
              EXPECT_TRUE(one.c.o.same_bits(apart.o));
              EXPECT_TRUE(one.c.lse.same_bits(apart.lse));
              EXPECT_TRUE(one.c.k.same_bits(apart.k) && one.c.v.same_bits(apart.v));
              ++ran;
            },
            Rows::library);
        EXPECT_GT(ran, 0);
      }
}

#ifdef TESSERA_EMULATED
constexpr int32_t kLengthStep = 61;
#else
constexpr int32_t kLengthStep = 1;
#endif

// pytorch/pytorch#194167 and growing caches at large: every length of 1 to 600 keys, appended a token at a time in the
// call that attends. A GPU takes every split count at each length, the CPU, on which each is slow, one in turn.
void grow(AppendCase& a, const std::array<int32_t, 6>& splits) {
  if (kLengthStep > 1) a.c.randomize(999);  // in place of what would have been appended
  for (int32_t length = 1; length <= 600; length += kLengthStep) {
    a.make_rows(a.c.q.dtype(), 1, 1000 + static_cast<uint64_t>(length));
    a.c.q.fill_random(static_cast<uint64_t>(length));
    Case grown;
    Judge right;
    for (size_t n = 0; n < (on_gpu() ? splits.size() : 1); ++n) {
      a.c.problem.num_splits = splits[(static_cast<size_t>(length) + n) % splits.size()];
      SCOPED_TRACE(::testing::Message() << length << " keys, splits " << a.c.problem.num_splits);
      a.c.seqused_k = {length - 1, (length - 1) / 2};
      tessera_status status{};
      ASSERT_EQ(a.attend(&status), TESSERA_OK) << status.message;
      grown = a.c;
      grown.seqused_k = {length, (length - 1) / 2 + 1};
      if (n == 0) right = judge(grown);
      expect_close(grown, right);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

// A GPU rounds probabilities as the plain evaluation does, whose largest error of few numbers can be half of a right
// one's: of the 64 that are enough on the CPU, once in some thousand outputs.
int32_t head_dim() { return on_gpu() ? 64 : 16; }

TESSERA_SITUATION(AppendGrowth, TokenByTokenInPages) {
  for (const int32_t page_size : {1, 16, 64}) {
    SCOPED_TRACE(page_size);
    const int64_t pages = (600 + page_size - 1) / page_size;
    AppendCase a;
    const Shape shape{
        .batch = 2, .seqlen_q = 1, .seqlen_k = 600, .heads_q = 4, .heads_kv = 2, .head_dim_qk = head_dim()};
    const int32_t dtype = page_size == 16 ? offered(TESSERA_F32) : TESSERA_BF16;
    a.c = Case::paged(dtype, shape, page_size, 2 * pages, backwards(2 * pages));
    grow(a, {0, 1, 2, 3, 7, 32});
  }
}

TESSERA_SITUATION(AppendGrowth, TokenByTokenInADenseCache) {
  AppendCase a;
  a.c = Case::dense(TESSERA_F16, {.batch = 2, .seqlen_k = 600, .heads_q = 4, .heads_kv = 2, .head_dim_qk = head_dim()});
  grow(a, {32, 7, 3, 2, 1, 0});
}

}  // namespace
}  // namespace tessera::test
