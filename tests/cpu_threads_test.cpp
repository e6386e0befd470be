// Every CPU row gives the same bits for 1 to 64 threads, on problems large enough that the plan does use them. The
// ThreadSanitizer job runs these suites, so they cover decode of every cache type, forward, backward and the tile rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "judged_run.hpp"
#include "sanitized.hpp"

namespace tessera::tests {
namespace {

using baselines::OperandSet;

bool named(const char* row, const char* part) { return std::strstr(row, part) != nullptr; }

// Runs `text` on the rows whose name holds `part` with each count; returns the most threads that a plan had.
int expect_same_bits(const std::string& text, const char* part, const std::vector<int>& counts) {
  OperandSet operands = operands_of(text);
  if (operands.problem.pass == TESSERA_BACKWARD) (void)judge(operands);  // fills o and lse
  int most = 0, ran = 0;
  for (const core::KernelEntry* row : library_rows()) {
    if (!named(row->name, part)) continue;
    operands.problem.threads = 1;
    const RunResult once = run_pinned(operands, row->name);
    if (once.code == TESSERA_UNSUPPORTED) continue;
    EXPECT_EQ(once.code, TESSERA_OK) << once.message;
    const std::vector<std::byte> expected = output_bytes(operands);
    ++ran;
    for (const int threads : counts) {
      operands.problem.threads = threads;
      const RunResult result = run_pinned(operands, row->name);
      EXPECT_EQ(result.code, TESSERA_OK) << result.message;
      EXPECT_EQ(output_bytes(operands), expected) << row->name << ' ' << text << " threads=" << threads;
      most = std::max(most, result.plan.launch.threads);
    }
  }
  EXPECT_GT(ran, 0) << text;
  return most;
}

const std::vector<int> kCounts = kSanitized ? std::vector<int>{2, 5, 64} : std::vector<int>{2, 3, 5, 8, 13, 32, 64};

// Every cache type with every group of heads; layouts in turn, so that each type meets each of them.
TEST(DecodeThreads, EveryCacheAndGroup) {
  constexpr const char* kCaches[] = {"f32", "f16", "bf16", "bf16 kv=int8"};
  constexpr const char* kLayouts[] = {"", "packed", "paged=16 pages=shuffled"};
  int turn = 0;
  for (const char* cache : kCaches) {
    for (const int group : {1, 4, 7, 8}) {
      const int sk = kSanitized ? 1500 : 2500;
      const std::string text = std::string("fwd ") + cache + " b2 hq" + std::to_string(2 * group) + " hkv2 sq1 d64 sk" +
                               std::to_string(sk) + " lens=" + std::to_string(sk) + ":1030 " + kLayouts[turn % 3] +
                               (turn % 2 == 0 ? " splits=5" : "");
      EXPECT_GE(expect_same_bits(text, ".decode", kCounts), 6) << text;
      ++turn;
    }
  }
}

TEST(DecodeThreads, EveryCountFrom1To64) {
  std::vector<int> counts;
  for (int threads = 2; threads <= 64; threads += kSanitized ? 9 : 1) counts.push_back(threads);
  const std::string words = " b1 hq32 hkv4 sq1 sk2600 d64";
  EXPECT_GE(expect_same_bits("fwd bf16" + words + " splits=9", ".decode", counts), 30);
  EXPECT_GE(expect_same_bits("fwd f32 kv=int8" + words, ".decode", counts), 12);
}

TEST(ForwardThreads, EveryTypeAndLayout) {
  constexpr const char* kLayouts[] = {"causal", "packed lens=longtail", "paged=16 pages=shuffled window=90,3",
                                      "splits=3 sinks"};
  int turn = 0;
  for (const char* dtype : {"f32", "f16", "bf16", "f64"}) {
    const std::string text = std::string("fwd ") + dtype + " b3 hq6 hkv2 sq150 sk210 d40 " + kLayouts[turn++ % 4];
    for (const char* row : {"avx512.forward", "avx2.forward", "neon.forward", "portable.forward"}) {
      bool runs = false;
      for (const core::KernelEntry* entry : library_rows())
        runs = runs || (named(entry->name, row) && run_pinned(operands_of(text), entry->name).code == TESSERA_OK);
      if (!runs) continue;
      EXPECT_GE(expect_same_bits(text, row, kCounts), 5) << text;
    }
  }
}

TEST(BackwardThreads, EveryTypeAndLayout) {
  constexpr const char* kLayouts[] = {"causal sinks dlse", "packed lens=longtail", "bias=1 dbias window=90,3",
                                      "lens=150:0:70 softcap=5"};
  int turn = 0;
  for (const char* dtype : {"f32", "f16", "bf16", "f64"}) {
    const std::string text = std::string("bwd ") + dtype + " b3 hq6 hkv2 sq150 sk210 d40 " + kLayouts[turn++ % 4];
    EXPECT_GE(expect_same_bits(text, ".backward", kCounts), 5) << text;
  }
}

TEST(BackwardThreads, EveryCountFrom1To64) {
  std::vector<int> counts;
  for (int threads = 2; threads <= 64; threads += kSanitized ? 9 : 1) counts.push_back(threads);
  // Tasks of whole heads up to a count of threads, of stretches of keys beyond it.
  const int sk = kSanitized ? 1100 : 1800;
  EXPECT_GE(expect_same_bits("bwd f32 b2 hq8 hkv4 sq64 d32 causal sk" + std::to_string(sk), ".backward", counts), 16);
  EXPECT_GE(expect_same_bits("bwd bf16 b1 hq4 hkv1 sq70 sk1100 d24 bias=h dbias sinks dlse", ".backward", counts), 8);
}

// The tile rows: emulated everywhere, with the instructions where the machine has them.
TEST(AmxThreads, EveryTypeAndLayout) {
  constexpr const char* kLayouts[] = {"causal", "packed lens=70:0:33", "paged=16 pages=shuffled window=40,3 sinks"};
  int turn = 0;
  for (const char* dtype : {"bf16", "f16", "f32"}) {
    for (const char* layout : kLayouts) {
      const std::string text = std::string("fwd ") + dtype + " b3 hq4 hkv2 sq70 sk90 d24 " + layout;
      if (kSanitized && ++turn % 2 == 0) continue;
      EXPECT_GE(expect_same_bits(text, ".amx", kCounts), 5) << text;
    }
  }
}

}  // namespace
}  // namespace tessera::tests
