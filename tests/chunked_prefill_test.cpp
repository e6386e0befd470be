// A prefill in chunks gives the bits of one piece, within one row, on the CPU and on a GPU.
#include "support.hpp"

namespace tessera::test {
namespace {

constexpr int64_t kLength = 300;

Case prefill(int32_t dtype, int64_t queries, int64_t keys, int64_t left) {
  Case c = Case::dense(dtype, {.seqlen_q = queries, .seqlen_k = keys, .heads_q = 4, .heads_kv = 2, .head_dim_qk = 32});
  c.problem.flags |= TESSERA_FLAG_BATCH_INVARIANT;
  c.problem.left = left, c.problem.right = 0;
  return c;
}

// Queries begin to end over the keys up to `end`, on the row that `whole` ran on: numbers that differ from its.
void expect_piece(const Case& whole, int64_t begin, int64_t end, int32_t threads) {
  Case piece = prefill(whole.q.dtype(), end - begin, end, whole.problem.left);
  piece.q.fill([&](int64_t, int64_t i, int64_t h, int64_t e) { return whole.q.get(0, begin + i, h, e); });
  piece.k.fill([&](int64_t, int64_t j, int64_t h, int64_t e) { return whole.k.get(0, j, h, e); });
  piece.v.fill([&](int64_t, int64_t j, int64_t h, int64_t e) { return whole.v.get(0, j, h, e); });
  piece.problem.threads = threads;
  tessera_status status{};
  ASSERT_EQ(run(piece, {whole.kernel, false}, &status), TESSERA_OK) << status.message;
  int64_t different = 0;
  for (int64_t i = 0; i < end - begin; ++i)
    for (int64_t h = 0; h < 4; ++h) {
      different += lse_at(piece, 0, i, h) != lse_at(whole, 0, begin + i, h);
      for (int64_t e = 0; e < 32; ++e) different += piece.o.get(0, i, h, e) != whole.o.get(0, begin + i, h, e);
    }
  EXPECT_EQ(different, 0) << "queries " << begin << " to " << end;
}

// Where pieces begin and end: multiples of 64, that are multiples of tiles and that are not.
const std::vector<std::vector<int64_t>> kCuts = {
#ifndef TESSERA_EMULATED
    {0, 64, 128, 192, 256, kLength},
    {0, 128, 256, kLength},
#endif
    {0, 192, kLength}};

// Causal queries in pieces, each over the keys up to its end.
TESSERA_SITUATION(ChunkedPrefill, EqualsOnePiece) {
  for (const int32_t dtype : offered(kAllTypes))
    for (const int64_t left : {-1, 90}) {
      SCOPED_TRACE(::testing::Message() << name_of(dtype) << " left " << left);
      Case whole = prefill(dtype, kLength, kLength, left);
      whole.randomize(57);
      int compared = 0;
      on_every_row(
          whole,
          [&] {
            for (const std::vector<int64_t>& bounds : kCuts)
              for (size_t n = 0; n + 1 < bounds.size(); ++n) {
                expect_piece(whole, bounds[n], bounds[n + 1], static_cast<int32_t>(n) + 1);
                ++compared;
              }
          },
          Rows::library);
      EXPECT_GT(compared, 0);
    }
}

}  // namespace
}  // namespace tessera::test
