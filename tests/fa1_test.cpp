// FlashAttention-1's schedule on the CPU (every case runs on it in every_case_test): shapes of several tiles, the tiles
// that a budget gives, the traffic that explain names, what is refused.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "baselines/cpu_fa1.hpp"
#include "judged_run.hpp"

namespace tessera::tests {
namespace {

using baselines::kCpuFa1;
using baselines::kFa1Budgets;

TEST(Fa1, TilesArePaperSizes) {
  // B_c = ceil(M / 4d), B_r = min(B_c, d); M in elements.
  const struct {
    int32_t kib, dim, width, rows, keys;
  } cases[] = {{64, 64, 2, 64, 128}, {200, 64, 2, 64, 400}, {32, 128, 2, 32, 32}, {200, 128, 2, 128, 200},
               {64, 128, 4, 32, 32}, {64, 96, 4, 43, 43},   {32, 576, 8, 2, 2}};
  for (const auto& one : cases) {
    const baselines::Fa1Tile tile = baselines::fa1_tile(one.kib, one.dim, one.width);
    EXPECT_EQ(tile.rows, one.rows) << one.kib << ' ' << one.dim;
    EXPECT_EQ(tile.keys, one.keys) << one.kib << ' ' << one.dim;
  }
}

// Counted one row and tile at a time: a row is updated by the first tile, and by later ones that it sees.
TEST(Fa1, UpdatesAreThoseOfRowsThatSeeATile) {
  for (const char* words : {"sq100 sk100", "sq100 sk100 causal", "sq70 sk130 causal", "sq130 sk70 causal topleft",
                            "sq130 sk70 causal", "sq90 sk90 window=20,7", "sq5 sk0", "sq9 sk16"}) {
    const core::Problem p = validated(operands_of("fwd f32 d8 " + std::string(words)).problem);
    const core::Band band = p.band(p.seqlen_q, p.seqlen_k);
    int updates = 0;
    for (int64_t row = 0; row < p.seqlen_q; ++row) {
      for (int64_t key = 0; key == 0 || key < p.seqlen_k; key += 16) {
        const core::Range seen = band.visible_keys(row);
        updates += key == 0 || (seen.begin < key + 16 && seen.end > key);
      }
    }
    EXPECT_EQ(baselines::fa1_updates(p, 16), updates) << words;
  }
}

TEST(Fa1, ManyTilesAreWithinTheToleranceRule) {
  for (const char* words :
       {"f32 b2 hq4 hkv2 sq150 sk700 d64 causal", "f32 b1 hq2 sq700 sk150 d64 causal", "f64 b1 hq2 sq90 sk500 d40 dv72",
        "f32 b1 hq2 sq300 sk700 d128 causal topleft", "bf16 b1 hq2 sq130 sk600 d64 o=f32", "f16 b1 hq3 sq70 sk600 d20",
        "f32 b1 hq2 sq300 d64 window=40,9", "f32 b1 hq2 sq300 d64 scale=-0.4 causal", "f32 b1 hq1 sq65 d64 scale=0"}) {
    const baselines::OperandSet operands = operands_of("fwd " + std::string(words));
    const Judged judged = judge(operands);
    for (const core::KernelEntry& row : kCpuFa1) {
      RunResult result;
      EXPECT_EQ(check_row(operands, judged, row.name, &result), "") << words << " on " << row.name;
      EXPECT_EQ(result.code, TESSERA_OK) << result.message;
    }
  }
}

TEST(Fa1, EveryInstructionSetAndAnyNumberOfThreads) {
  const char* words = "fwd f32 b2 hq4 hkv2 sq70 sk330 d40 causal";
  const Judged judged = judge(operands_of(words));
  for (const int32_t isa : {TESSERA_ISA_PORTABLE, TESSERA_ISA_AVX2, TESSERA_ISA_AVX512}) {
    std::vector<std::byte> first;
    for (const int threads : {1, 2, 5, 64}) {
      baselines::OperandSet operands = operands_of(words);
      operands.problem.isa = isa;
      operands.problem.threads = threads;
      RunResult result;
      EXPECT_EQ(check_row(operands, judged, "cpu.fa1", &result), "") << isa << ' ' << threads;
      ASSERT_EQ(result.code, TESSERA_OK) << result.message;
      EXPECT_EQ(result.plan.launch.threads, threads < 8 ? threads : 8);  // a task a (batch, head)
      const std::vector<std::byte> bytes = output_bytes(operands);
      if (first.empty()) first = bytes;
      EXPECT_EQ(bytes, first) << isa << ' ' << threads;
    }
  }
}

TEST(Fa1, RunsOnlyWhenPinned) {
  const baselines::OperandSet operands = operands_of("fwd f32 sq40 d16");
  EXPECT_FALSE(run_pinned(operands, "").plan.entry->pinned_only);
  EXPECT_STREQ(run_pinned(operands, "cpu.fa1*").plan.entry->name, "cpu.fa1");
}

TEST(Fa1, ExplainNamesBudgetTileAndTraffic) {
  const RunResult result = run_pinned(operands_of("fwd f32 b2 hq3 sq128 sk256 d64"), "cpu.fa1.128k");
  ASSERT_EQ(result.code, TESSERA_OK) << result.message;
  const core::Launch& launch = result.plan.launch;
  EXPECT_EQ(launch.tile_n, 128);
  EXPECT_LE(launch.tile_m, 64);
  // A head: K and V, Q twice; O, m (4 bytes each) and l (8) written and read once; o.
  const double bytes = 6.0 * (256 * 128 * 4 + 2 * 128 * 64 * 4 + 2 * 128 * (65 * 4 + 8) + 128 * 64 * 4);
  const auto json = nlohmann::json::parse(core::explain(result.plan, baselines::kernels(), true));
  const double lse_bytes = result.plan.problem.has(TESSERA_FLAG_LSE) ? 6.0 * 128 * 4 : 0;
  EXPECT_EQ(json["schedule_bytes"], bytes + lse_bytes);
  const std::string text = core::explain(result.plan, baselines::kernels(), false);
  EXPECT_NE(text.find("128 KiB"), std::string::npos) << text;
  EXPECT_NE(text.find("traffic"), std::string::npos) << text;
}

TEST(Fa1, RefusesWithAReason) {
  const struct {
    const char *text, *expected;
  } cases[] = {{"bwd f32 sq8 d8", "forward schedule"},
               {"fwd f32 sq8 d8 packed", "dense layouts only"},
               {"fwd f32 sq8 sk64 d8 paged=16", "dense layouts only"},
               {"fwd f32 b2 sq8 d8 lens=5:8", "used lengths"},
               {"fwd f32 sq8 d8 bias", "bias"},
               {"fwd f32 sq8 d8 alibi", "ALiBi"},
               {"fwd f32 sq8 d8 sinks", "sinks"},
               {"fwd f32 sq8 d8 softcap=4", "softcap"},
               {"fwd f32 sq8 d8 splits=2", "num_splits=2"},
               {"fwd bf16 sq8 d8 kv=int8", "q's dtype"}};
  for (const auto& one : cases) {
    const RunResult result = run_pinned(operands_of(one.text), "cpu.fa1");
    EXPECT_EQ(result.code, TESSERA_UNSUPPORTED) << one.text;
    EXPECT_NE(result.message.find(one.expected), std::string::npos) << one.text << ": " << result.message;
  }
}

}  // namespace
}  // namespace tessera::tests
