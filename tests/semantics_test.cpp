// The scalar rules that every kernel shares, exhaustively against brute force on small sizes.
#include "semantics.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "problem.hpp"

namespace tessera::core {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// The definition, spelled once more on its own.
bool keeps(int64_t sq, int64_t sk, int64_t left, int64_t right, bool top_left, int64_t i, int64_t j) {
  const int64_t d = i + (top_left ? 0 : sk - sq);
  return (left < 0 || j >= d - left) && (right < 0 || j <= d + right);
}

template <class Check>
void for_each_band(int64_t largest, Check check) {
  for (int64_t sq = 0; sq <= largest; ++sq) {
    for (int64_t sk = 0; sk <= largest; ++sk) {
      for (int64_t left = -1; left <= largest; ++left) {
        for (int64_t right = -1; right <= largest; ++right) {
          for (const bool top_left : {false, true}) check(sq, sk, left, right, top_left);
        }
      }
    }
  }
}

TEST(Semantics, BandKeepsWhatTheDefinitionKeeps) {
  for_each_band(7, [](int64_t sq, int64_t sk, int64_t left, int64_t right, bool top_left) {
    const Band band = make_band(sq, sk, left, right, top_left);
    double pairs = 0;
    for (int64_t i = 0; i < sq; ++i) {
      const Range visible = band.visible_keys(i);
      for (int64_t j = 0; j < sk; ++j) {
        const bool kept = keeps(sq, sk, left, right, top_left, i, j);
        ASSERT_EQ(band.keeps(i, j), kept)
            << sq << " " << sk << " " << left << " " << right << " " << top_left << " at " << i << "," << j;
        ASSERT_EQ(j >= visible.begin && j < visible.end, kept);
        pairs += kept;
      }
      ASSERT_GE(visible.begin, 0);
      ASSERT_LE(visible.end, sk);
    }
    ASSERT_EQ(kept_pairs(band), pairs) << sq << " " << sk << " " << left << " " << right << " " << top_left;
  });
}

void check_tiles(const Band& band, int64_t row_begin, int64_t row_end, int64_t tile_n) {
  const TileRange tiles = band.visible_tiles(row_begin, row_end, tile_n);
  ASSERT_LE(tiles.begin, tiles.unmasked_begin);
  ASSERT_LE(tiles.unmasked_begin, tiles.unmasked_end);
  ASSERT_LE(tiles.unmasked_end, std::max(tiles.end, tiles.unmasked_begin));
  const int64_t last_row = std::min(row_end, band.seqlen_q);
  for (int64_t tile = 0; tile * tile_n < band.seqlen_k + tile_n; ++tile) {
    bool some = false, all = row_begin < last_row;
    for (int64_t i = row_begin; i < last_row; ++i) {
      for (int64_t j = tile * tile_n; j < (tile + 1) * tile_n; ++j) {
        const bool kept = band.keeps(i, j);
        some |= kept;
        all &= kept;
      }
    }
    if (some) {
      ASSERT_TRUE(tile >= tiles.begin && tile < tiles.end) << "a seen tile is left out";
    }
    if (tile >= tiles.unmasked_begin && tile < tiles.unmasked_end) {
      ASSERT_TRUE(all) << "an unmasked tile hides keys";
    }
    if (all && tile >= tiles.begin && tile < tiles.end) {
      ASSERT_TRUE(tile >= tiles.unmasked_begin && tile < tiles.unmasked_end) << "a full tile is taken for masked";
    }
  }
}

TEST(Semantics, VisibleTilesMatchBruteForce) {
  for_each_band(6, [](int64_t sq, int64_t sk, int64_t left, int64_t right, bool top_left) {
    const Band band = make_band(sq, sk, left, right, top_left);
    for (int64_t tile_m = 1; tile_m <= 4; ++tile_m) {
      for (int64_t row = 0; row < sq + tile_m; row += tile_m) {
        for (int64_t tile_n = 1; tile_n <= 4; ++tile_n) {
          check_tiles(band, row, row + tile_m, tile_n);
          if (testing::Test::HasFatalFailure()) {
            FAIL() << "sq " << sq << " sk " << sk << " left " << left << " right " << right << " top_left " << top_left
                   << " rows from " << row << " tile " << tile_m << "x" << tile_n;
          }
        }
      }
    }
  });
}

TEST(Semantics, SeeingRowsAreVisibleKeysTheOtherWayRound) {
  for_each_band(6, [](int64_t sq, int64_t sk, int64_t left, int64_t right, bool top_left) {
    const Band band = make_band(sq, sk, left, right, top_left);
    for (int64_t j = 0; j < 8; ++j) {
      const Range rows = band.seeing_rows(j, j + 1);
      ASSERT_GE(rows.begin, 0);
      ASSERT_LE(rows.end, sq);
      for (int64_t i = 0; i < sq; ++i) {
        ASSERT_EQ(i >= rows.begin && i < rows.end, j < sk && keeps(sq, sk, left, right, top_left, i, j))
            << sq << " " << sk << " " << left << " " << right << " " << top_left << " at " << i << "," << j;
      }
    }
  });
}

// Backward's blocks ask by key tile which query tiles see them, and by query tile which key tiles it sees: the turns in
// which dq is added rest on both answers being the same relation.
TEST(Semantics, QueryTilesOfKeyTilesAgreeWithKeyTilesOfQueryTiles) {
  constexpr int64_t kTileM = 2, kTileN = 3;
  for_each_band(7, [](int64_t sq, int64_t sk, int64_t left, int64_t right, bool top_left) {
    const Band band = make_band(sq, sk, left, right, top_left);
    for (int64_t m = 0; m * kTileM < sq; ++m) {
      const TileRange tiles = band.visible_tiles(m * kTileM, (m + 1) * kTileM, kTileN);
      for (int64_t n = 0; n * kTileN < sk + kTileN; ++n) {
        const Range rows = band.seeing_rows(n * kTileN, (n + 1) * kTileN);
        const bool from_key = !rows.empty() && m >= rows.begin / kTileM && m * kTileM < rows.end;
        ASSERT_EQ(from_key, n >= tiles.begin && n < tiles.end)
            << sq << " " << sk << " " << left << " " << right << " " << top_left << " tiles " << m << "," << n;
      }
    }
  });
}

TEST(Semantics, FullySeeingRowsSeeEveryKeyOfATile) {
  constexpr int64_t kTileN = 3;
  for_each_band(7, [](int64_t sq, int64_t sk, int64_t left, int64_t right, bool top_left) {
    const Band band = make_band(sq, sk, left, right, top_left);
    for (int64_t n = 0; n * kTileN < sk + kTileN; ++n) {
      const Range rows = band.fully_seeing_rows(n * kTileN, (n + 1) * kTileN);
      for (int64_t i = 0; i < sq; ++i) {
        bool all = true;
        for (int64_t j = n * kTileN; j < (n + 1) * kTileN; ++j) all &= band.keeps(i, j);
        ASSERT_EQ(i >= rows.begin && i < rows.end, all)
            << sq << " " << sk << " " << left << " " << right << " " << top_left << " at " << i << ", tile " << n;
      }
    }
  });
}

TEST(Semantics, EmptyBlocksSeeNoTiles) {
  const Band band = make_band(4, 4, 0, 0, false);
  for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{{4, 8}, {2, 2}}) {
    const TileRange tiles = band.visible_tiles(begin, end, 2);
    EXPECT_EQ(tiles.begin, 0);
    EXPECT_EQ(tiles.end, 0);
  }
}

TEST(Semantics, WideBoundsAreUnbounded) {
  const Band wide = make_band(7, 7, INT64_MAX, INT64_MAX, false);
  EXPECT_EQ(wide.left, kUnbounded);
  EXPECT_EQ(wide.right, kUnbounded);
  for (int64_t i = 0; i < 7; ++i) EXPECT_EQ(wide.visible_keys(i).size(), 7);
  // A bound of exactly the reach still acts on nothing; one below it may.
  EXPECT_EQ(make_band(7, 7, 14, 0, false).left, 14);
  EXPECT_EQ(make_band(7, 7, 15, 0, false).left, kUnbounded);
}

TEST(Semantics, SplitsCoverTheKeysOnce) {
  for (const int64_t keys : {0, 1, 63, 64, 65, 300, 4096, 4097}) {
    for (const int64_t splits : {1, 2, 3, 7, 8, 32, 100}) {
      EXPECT_EQ(split_size(keys, splits), 64 * ((((keys + 63) / 64) + splits - 1) / splits));
      int64_t next = 0;
      for (int64_t s = 0; s < splits; ++s) {
        const Range range = split_keys(keys, splits, s);
        if (range.empty()) continue;
        EXPECT_EQ(range.begin, next);
        next = range.end;
      }
      EXPECT_EQ(next, keys) << keys << " keys in " << splits;
    }
  }
}

TEST(Semantics, SoftcapAndItsDerivative) {
  for (const double cap : {1e-3, 2.0, 50.0}) {
    for (double score = -3 * cap; score <= 3 * cap; score += cap / 7) {
      const double h = 1e-6 * cap;
      const double numeric = (apply_softcap(score + h, cap) - apply_softcap(score - h, cap)) / (2 * h);
      EXPECT_NEAR(softcap_derivative(apply_softcap(score, cap), cap), numeric, 1e-8);
      EXPECT_LE(std::abs(apply_softcap(score, cap)), cap);
    }
  }
  EXPECT_EQ(apply_softcap(1e4f, 50.0f), 50.0f);
  EXPECT_EQ(softcap_derivative(50.0f, 50.0f), 0.0f);
}

TEST(Semantics, AlibiIsSymmetricAboutTheDiagonal) {
  EXPECT_EQ(alibi_bias(0.5f, 10, 10), 0.0f);
  EXPECT_EQ(alibi_bias(0.5f, 10, 7), -1.5f);
  EXPECT_EQ(alibi_bias(0.5f, 10, 13), -1.5f);
}

TEST(Semantics, LseLeavesInBaseE) {
  EXPECT_EQ(lse_from_base2(0.0f, 0.0f), -kInf);
  EXPECT_NEAR(lse_from_base2(0.0, 1000.0), 6.907755278982137, 1e-14);
  EXPECT_NEAR(lse_from_base2(std::log2(3.0), 2.0), std::log(6.0), 1e-14);
}

TEST(Semantics, MergeOfLseHasANeutralElement) {
  EXPECT_EQ(merge_lse(-kInf, -kInf), -kInf);
  for (const float lse : {-50.0f, 0.0f, 3.5f, 1e5f}) {
    EXPECT_EQ(merge_lse(-kInf, lse), lse);
    EXPECT_EQ(merge_lse(lse, -kInf), lse);
  }
  EXPECT_EQ(merge_lse(-50.0f, 120.0f), 120.0f);
  EXPECT_EQ(merge_lse(120.0f, -50.0f), 120.0f);
  EXPECT_NEAR(merge_lse(1.0, 1.0), 1.0 + std::log(2.0), 1e-15);
  EXPECT_EQ(merge_weight(-kInf, -kInf), 0.0f);
  EXPECT_EQ(merge_weight(5.0f, 5.0f), 1.0f);
  EXPECT_TRUE(std::isnan(merge_lse(NAN, 1.0f)));
  EXPECT_TRUE(std::isnan(merge_lse(1.0f, NAN)));
  EXPECT_TRUE(std::isnan(merge_lse(NAN, -kInf)));
  EXPECT_TRUE(std::isnan(merge_lse(-kInf, NAN)));
}

}  // namespace
}  // namespace tessera::core
