// Planning of cuda.sm90.forward and cuda.sm90.forward_fp8 for named GPUs, no device needed: which tile a problem takes,
// when heads share one, what the workspace holds, what is refused, and in which order pieces of work are handed out.
#include <gtest/gtest.h>

#include <cstring>
#include <initializer_list>
#include <set>
#include <string>
#include <tuple>

#include "cuda/sm90/fp8_config.hpp"
#include "cuda/tile/scheduler.cuh"
#include "kernel_entry.hpp"
#include "problem_text.hpp"

namespace tessera::tests {
namespace {

using cuda::sm90::ForwardConfig;

constexpr int kH200Units = 132;

struct Planned : core::Plan {
  int code;
  tessera_status status{};
  explicit Planned(const std::string& text, const char* gpu = "h200", void (*adjust)(tessera_problem*) = nullptr)
      : Plan{} {
    tessera_problem asked;
    // Among the forward rows: decode rows, which stand before them, would take short queries.
    const char* pin = text.find("kernel=") == std::string::npos ? " cuda kernel=cuda.*.forward" : " cuda";
    code = core::parse_problem(text + pin, &asked, nullptr, &status);
    EXPECT_EQ(code, TESSERA_OK) << text << ": " << status.message;
    if (code != TESSERA_OK) return;
    std::strcpy(asked.device_name, gpu);
    if (adjust != nullptr) adjust(&asked);
    code = core::make_plan(asked, {}, this, &status);
  }
  std::string row() const { return code == TESSERA_OK ? entry->name : status.message; }
};

template <class Config>
void expect_shape(const core::Launch& launch) {
  EXPECT_EQ(launch.tile_m, 64 * Config::kGroups);
  EXPECT_EQ(launch.tile_n, Config::kTileN);
  EXPECT_EQ(launch.stages, Config::kStages);
  EXPECT_EQ(launch.threads, 128 * (Config::kGroups + 1));
  EXPECT_EQ(launch.registers, Config::kConsumerRegisters);
  const int64_t q = int64_t{Config::kQueryStages} * launch.tile_m * Config::kDimQk;
  const int64_t k_v = int64_t{launch.stages} * launch.tile_n * (Config::kDimQk + Config::kDimV);
  const int64_t o = int64_t{launch.tile_m} * Config::kSpan;  // a span of every consumer warp's rows on their way out
  EXPECT_EQ(launch.shared_bytes, 2 * (q + k_v) + o + Config::kControlBytes);
}

template <class Config>
void expect_shapes(std::initializer_list<const char*> problems) {
  for (const char* problem : problems) {
    SCOPED_TRACE(problem);
    const Planned plan(std::string("fwd bf16 ") + problem);
    ASSERT_EQ(plan.row(), "cuda.sm90.forward");
    expect_shape<Config>(plan.launch);
  }
}

template <int kDimQk, int kDimV>
void expect_bucket(int dim_qk, int dim_v) {
  for (const char* dtype : {"f16", "bf16"}) {
    const std::string text =
        std::string("fwd ") + dtype + " b8 hq8 sq300 d" + std::to_string(dim_qk) + " dv" + std::to_string(dim_v);
    SCOPED_TRACE(text);
    const Planned plain(text), general(text + " softcap=20");
    ASSERT_EQ(plain.row(), "cuda.sm90.forward");
    ASSERT_EQ(general.row(), "cuda.sm90.forward");
    expect_shape<typename ForwardConfig<kDimQk, kDimV>::Plain>(plain.launch);
    expect_shape<typename ForwardConfig<kDimQk, kDimV>::General>(general.launch);
    EXPECT_STREQ(plain.launch.instructions, "wgmma, tma");
    EXPECT_STREQ(general.launch.instructions, "wgmma, tma; general scores");
  }
}

TEST(CudaPlanSm90, HeadDimsTakeTheSmallestBucketThatHoldsBoth) {
  expect_bucket<64, 64>(8, 8);
  expect_bucket<64, 64>(64, 64);
  expect_bucket<96, 96>(72, 8);
  expect_bucket<96, 96>(8, 96);
  expect_bucket<128, 128>(104, 104);
  expect_bucket<128, 128>(64, 128);
  expect_bucket<192, 128>(136, 8);
  expect_bucket<192, 128>(192, 128);
  expect_bucket<192, 192>(128, 136);
  expect_bucket<192, 192>(192, 192);
  expect_bucket<256, 256>(200, 8);
  expect_bucket<256, 256>(8, 256);
}

TEST(CudaPlanSm90, WideTilesAreForDenseRowsWhereTheyPay) {
  using Shapes = ForwardConfig<64, 64>;
  using Shapes128 = ForwardConfig<128, 128>;
  expect_shapes<Shapes::Wide>({"b4 hq32 sq2048 d64", "b4 hq32 sq2048 d64 causal", "b1 hq32 sq16384 d40",
                               "b32 hq32 sq512 d64", "b16 hq32 sq1000 d64", "b16 hq32 sq1025 d64 causal",
                               "b32 hq32 sq1025 d64 causal batch-invariant"});
  expect_shapes<Shapes128::Wide>({"b4 hq16 sq2048 d128", "b4 hq16 sq2048 d104 causal", "b1 hq16 sq16384 d128"});
  // Short keys, few tiles, all of which something is looked up, and steps of other keys where bits must not differ.
  expect_shapes<Shapes::Plain>({"b4 hq32 sq2048 sk511 d64", "b4 hq32 sq2048 sk511 d64 causal",
                                "b1 hq10 sq2048 d64 causal", "b4 hq32 sq2048 d64 packed", "b4 hq32 sq2048 d64 paged=16",
                                "b4 hq32 sq2048 d64 leftpad", "b4 hq32 sq2048 d64 splits=2",
                                "b4 hq32 sq2048 d64 lens=longtail"});
  expect_shapes<Shapes128::Plain>(
      {"b4 hq16 sq2047 d128", "b4 hq16 sq2048 d128 batch-invariant", "b1 hq10 sq2048 d128 causal"});
  const Planned longer("fwd bf16 b4 hq32 sq4096 d96");
  ASSERT_EQ(longer.code, TESSERA_OK);
  EXPECT_EQ(longer.launch.tile_m, 128);
}

TEST(CudaPlanSm90, BriefTilesAreForFewKeysUnderAMask) {
  using Shapes = ForwardConfig<64, 64>;
  using Shapes128 = ForwardConfig<128, 128>;
  expect_shapes<Shapes::Brief>(
      {"b32 hq32 sq512 d64 causal", "b16 hq32 sq1024 d64 causal", "b16 hq32 sq700 d8 window=50,9"});
  // Fewer tiles, where they leave none for a second round.
  expect_shapes<Shapes::Brief>({"b1 hq16 sq2048 d64", "b1 hq9 sq2048 d64"});
  expect_shapes<Shapes128::Brief>(
      {"b1 hq8 sq3072 d128", "b32 hq16 sq512 d128 causal", "b64 hq16 sq400 sk512 d104 causal"});
  expect_shapes<Shapes::Plain>({"b32 hq32 sq511 d64 causal", "b32 hq32 sq512 d64 causal packed"});
  expect_shapes<Shapes::Wide>({"b32 hq32 sq512 d64", "b32 hq32 sq512 d64 batch-invariant"});
  expect_shapes<Shapes128::Plain>({"b32 hq16 sq512 d128", "b32 hq16 sq513 d128 causal", "b1 hq32 sq512 d128 causal",
                                   "b32 hq16 sq512 d128 causal batch-invariant"});
}

TEST(CudaPlanSm90, NarrowTilesAreForDenseRowsThatLeaveMultiprocessorsIdle) {
  using Shapes = ForwardConfig<64, 64>;
  using Shapes128 = ForwardConfig<128, 128>;
  expect_shapes<Shapes::Narrow>(
      {"b1 hq4 sq64 d64", "b1 hq4 sq2048 d64", "b1 hq4 sq2048 d64 causal batch-invariant", "b1 hq132 sq64 sk4096 d64"});
  expect_shapes<Shapes128::Narrow>({"b1 hq16 sq512 d128", "b2 hq1 sq4000 d128 causal", "b4 hq32 hkv8 sq1 sk100 d128"});
  expect_shapes<Shapes::Plain>(
      {"b1 hq133 sq64 d64", "b1 hq4 sq64 d64 packed", "b1 hq4 sq64 d64 paged=16", "b1 hq4 sq64 d64 splits=2"});
  expect_shapes<Shapes128::Plain>({"b1 hq16 sq577 d128", "b1 hq16 sq512 d128 sm_margin=5", "hq4 sq64 sk65536 d128"});
  expect_shapes<ForwardConfig<256, 256>::Plain>({"b1 hq4 sq64 d256"});
}

// Pieces of work of a problem in one split: the fewest multiprocessors that need no tickets to share them out.
int pieces(const std::string& text) {
  for (int workers = 1; workers <= kH200Units; ++workers) {
    // Tiles of other keys, which make fewer pieces, are not for batch-invariant.
    const Planned plan(text + " batch-invariant splits=1 sm_margin=" + std::to_string(kH200Units - workers));
    EXPECT_EQ(plan.row(), "cuda.sm90.forward");
    if (plan.code != TESSERA_OK || plan.launch.workspace_bytes == 0) return workers;
    EXPECT_EQ(plan.launch.workspace_bytes, 256);
  }
  return kH200Units + 1;
}

TEST(CudaPlanSm90, ShortQueriesOfAGroupShareATile) {
  for (int seqlen_q = 1; seqlen_q <= 64; ++seqlen_q) {
    const std::string rest = " hkv2 sq" + std::to_string(seqlen_q) + " sk1000 d128";
    EXPECT_EQ(pieces("fwd bf16 b2 hq16" + rest), 4 * ((seqlen_q + 15) / 16)) << seqlen_q;
    EXPECT_EQ(pieces("fwd bf16 b2 hq16 causal" + rest), 4 * ((seqlen_q + 15) / 16)) << seqlen_q;
  }
}

TEST(CudaPlanSm90, HeadsShareNoTileWhereItSavesNoneOrTheyDiffer) {
  EXPECT_EQ(pieces("fwd bf16 hq8 hkv8 sq8 sk1000 d128"), 8);             // no group
  EXPECT_EQ(pieces("fwd bf16 hq8 hkv1 sq8 sk1000 d128 softcap=20"), 8);  // scores of their own
  EXPECT_EQ(pieces("fwd bf16 hq8 hkv1 sq8 sk1000 d128 alibi"), 8);
  EXPECT_EQ(pieces("fwd bf16 hq6 hkv1 sq8 sk1000 d128"), 6);      // 6 does not divide 128 rows
  EXPECT_EQ(pieces("fwd bf16 hq8 hkv1 sq1024 sk1024 d128"), 64);  // whole tiles already
  EXPECT_EQ(pieces("fwd bf16 hq8 hkv1 sq130 sk1024 d128"), 9);    // 16 tiles of one head each
}

TEST(CudaPlanSm90, MarginsLeaveMultiprocessors) {
  EXPECT_EQ(Planned("fwd bf16 sq64 d64 sm_margin=131").row(), "cuda.sm90.forward");
  const Planned all("fwd bf16 sq64 d64 sm_margin=132");
  EXPECT_EQ(all.code, TESSERA_UNSUPPORTED);
  EXPECT_NE(std::string(all.status.message).find("sm_margin=132"), std::string::npos) << all.status.message;
  // What is left takes longer.
  const std::string text = "fwd bf16 b8 hq16 sq2048 d128";
  EXPECT_GT(Planned(text + " sm_margin=66").launch.seconds, 1.5 * Planned(text).launch.seconds);
}

// The row's own words when it is asked for by name, and what the next row's plan says of it.
void expect_passed_over(const std::string& text, const char* gpu, void (*adjust)(tessera_problem*),
                        const std::string& reason, const std::string& value) {
  SCOPED_TRACE(value);
  const Planned pinned(text + " kernel=cuda.sm90.forward", gpu, adjust), plan(text, gpu, adjust);
  EXPECT_EQ(pinned.code, TESSERA_UNSUPPORTED);
  EXPECT_NE(std::string(pinned.status.message).find(reason + " (" + value + ")"), std::string::npos)
      << pinned.status.message;
  EXPECT_EQ(plan.row(), "cuda.sm80.forward");
  EXPECT_EQ(plan.passed_over, 1);
  EXPECT_EQ(plan.first_reason, reason);
}

template <size_t kSize>
void set_strides(tessera_desc* desc, const int64_t (&strides)[kSize]) {
  static_assert(sizeof desc->stride == sizeof strides);
  std::memcpy(desc->stride, strides, sizeof strides);
}

TEST(CudaPlanSm90, StridesThatTmaDoesNotTakeGoToTheNextRow) {
  const struct {
    void (*adjust)(tessera_problem*);
    const char* value;
  } cases[] = {
      {[](tessera_problem* p) {
         set_strides(&p->q, {int64_t{1} << 39, 128, 64, 1});
       },
       "q.batch stride=549755813888"},
      {[](tessera_problem* p) {
         set_strides(&p->q, {1 << 20, 128, int64_t{1} << 39, 1});
       },
       "q.head stride=549755813888"},
      {[](tessera_problem* p) {
         set_strides(&p->k, {128, int64_t{1} << 39, 64, 1});
       },
       "k.row stride=549755813888"},
      {[](tessera_problem* p) {
         set_strides(&p->v, {int64_t{1} << 40, 128, 64, 1});
       },
       "v.batch stride=1099511627776"},
  };
  for (const auto& one : cases) {
    expect_passed_over("fwd bf16 b2 hq2 sq64 d64", "h200", one.adjust,
                       "copies by tensor maps, whose strides are below 2^39 elements", one.value);
  }
  // The largest that it takes, and any stride of one batch, which nothing uses.
  const auto below = [](tessera_problem* p) { set_strides(&p->k, {(int64_t{1} << 39) - 8, 128, 64, 1}); };
  EXPECT_EQ(Planned("fwd bf16 b2 hq2 sq64 d64", "h200", below).row(), "cuda.sm90.forward");
  const auto unused = [](tessera_problem* p) { set_strides(&p->k, {int64_t{1} << 41, 128, 64, 1}); };
  EXPECT_EQ(Planned("fwd bf16 b1 hq2 sq64 d64", "h200", unused).row(), "cuda.sm90.forward");
}

TEST(CudaPlanSm90, OtherGenerationsPassItOver) {
  const std::string text = "fwd bf16 b2 hq4 sq300 d128", reason = "needs compute capability 9.0 (Hopper)";
  expect_passed_over(text, "a100", nullptr, reason, "arch=80");
  expect_passed_over(text, "rtx4090", nullptr, reason, "arch=89");
  expect_passed_over(text, "b200", nullptr, reason, "arch=100");
}

TEST(CudaPlanSm90, SplitsTakeTheirPartialStatesAndTickets) {
  const int64_t states = 3 * 2 * 4 * 10 * 64 * 4 + 1024;  // o, then lse in whole 256 bytes
  const Planned alone("fwd bf16 b2 hq4 sq10 sk1000 d64 splits=3");
  ASSERT_EQ(alone.row(), "cuda.sm90.forward");
  EXPECT_EQ(alone.launch.num_splits, 3);
  EXPECT_EQ(alone.launch.workspace_bytes, states);
  // 24 pieces of work on 23 multiprocessors.
  const Planned shared("fwd bf16 b2 hq4 sq10 sk1000 d64 splits=3 sm_margin=109");
  EXPECT_EQ(shared.launch.workspace_bytes, states + 256);
}

TEST(CudaPlanSm90, IdleMultiprocessorsAreGivenSplitsWhereThatIsFaster) {
  for (const char* text : {"fwd bf16 hq4 sq64 sk65536 d128", "fwd f16 b3 hq16 hkv2 sq1 sk32768 d64"}) {
    const Planned free(text), one(std::string(text) + " splits=1"), invariant(std::string(text) + " batch-invariant");
    ASSERT_EQ(free.row(), "cuda.sm90.forward");
    EXPECT_GT(free.launch.num_splits, 1);
    EXPECT_LT(free.launch.seconds, one.launch.seconds);
    EXPECT_GT(free.launch.workspace_bytes, 0);
    EXPECT_EQ(one.launch.num_splits, 1);
    EXPECT_EQ(invariant.launch.num_splits, 1);
  }
  EXPECT_EQ(Planned("fwd bf16 b8 hq32 sq1024 d128").launch.num_splits, 1);
  EXPECT_EQ(Planned("fwd bf16 hq4 sq64 sk64 d128").launch.num_splits, 1);
}

TEST(CudaPlanSm90, EstimatesGrowWithTheWork) {
  for (const char* rest : {" d64", " d128 causal", " d256", " d192 dv128 causal", " d128 softcap=20"}) {
    double before = 0;
    for (int sq = 512; sq <= 65536; sq *= 2) {
      const Planned plan("fwd bf16 b4 hq32 sq" + std::to_string(sq) + rest);
      ASSERT_EQ(plan.row(), "cuda.sm90.forward");
      EXPECT_GT(plan.launch.seconds, before) << sq << rest;
      // The time of the products alone at the peak of the data sheet.
      const core::Work work = core::count_work(plan.problem);
      EXPECT_GT(plan.launch.seconds, work.flops / plan.device->peak_16bit) << sq << rest;
      before = plan.launch.seconds;
    }
    double smaller = 0;
    for (int batch = 8; batch <= 64; batch *= 2) {
      const Planned plan("fwd bf16 hq32 sq1024 b" + std::to_string(batch) + rest);
      EXPECT_GT(plan.launch.seconds, smaller) << batch << rest;
      smaller = plan.launch.seconds;
    }
  }
  EXPECT_LT(Planned("fwd bf16 b4 hq32 sq8192 d128 causal").launch.seconds,
            0.7 * Planned("fwd bf16 b4 hq32 sq8192 d128").launch.seconds);
}

// The order of a launch as the kernel reads it: head-batches are packs of heads, `variant` of them a section.
TEST(CudaPlanSm90, EveryTileOfEveryPackOnceHeavyOnesFirst) {
  const struct {
    const char* text;
    uint32_t tiles, packs, batches;
  } cases[] = {
      {"fwd bf16 b3 hq16 hkv2 sq40 sk4096 d128 causal", 3, 2, 3},
      {"fwd bf16 b2 hq8 hkv8 sq4096 d128 causal", 32, 8, 2},
      {"fwd bf16 b4 hq6 hkv2 sq1000 sk50000 d128 causal", 8, 6, 4},
      {"fwd bf16 b5 hq7 sq3000 d64", 24, 7, 5},
      {"fwd bf16 b1 hq8 hkv1 sq130 sk200000 d256", 9, 1, 1},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(one.text);
    const Planned plan(one.text);
    ASSERT_EQ(plan.row(), "cuda.sm90.forward");
    const uint32_t heads = one.packs * one.batches, group = static_cast<uint32_t>(plan.launch.variant);
    ASSERT_GE(group, 1u);
    ASSERT_LE(group, heads);
    const cuda::Schedule schedule{one.tiles, heads, group};
    std::set<std::tuple<uint32_t, uint32_t, uint32_t>> seen;
    uint32_t last_tile = 0, last_section = ~0u;
    for (uint32_t piece = 0; piece < one.tiles * heads; ++piece) {
      const cuda::WorkItem item = cuda::locate_block(schedule, piece);
      const uint32_t batch = item.head_batch / one.packs, pack = item.head_batch % one.packs;
      ASSERT_LT(batch, one.batches);
      ASSERT_LT(item.query_block, one.tiles);
      ASSERT_TRUE(seen.emplace(batch, pack, item.query_block).second);
      const uint32_t r = schedule.remainder;
      const uint32_t section = item.head_batch < r ? 0 : 1 + (item.head_batch - r) / group;
      // A section starts at the last tile of the longest rows, and never goes back up.
      if (section != last_section) {
        EXPECT_EQ(item.query_block, one.tiles - 1);
      } else {
        EXPECT_LE(item.query_block, last_tile);
      }
      last_tile = item.query_block;
      last_section = section;
    }
    EXPECT_EQ(seen.size(), size_t{one.tiles} * heads);
  }
}

// Steps of 64 keys mask the least of a short window's keys; for long ones the tile that is fastest without a mask is.
TEST(CudaPlanSm90, ShortWindowsTakeStepsOf64Keys) {
  const struct {
    const char* text;
    int tile_m, tile_n;
  } cases[] = {
      {"fwd bf16 b1 hq16 sq16384 d128 window=1024,0", 192, 64},
      {"fwd bf16 b1 hq16 sq16384 d128 window=0,1535", 192, 64},
      {"fwd bf16 b1 hq16 sq16384 d128 window=1536,0", 192, 80},
      {"fwd bf16 b1 hq16 sq16384 d128 window=4096,0", 192, 80},
      {"fwd f16 b1 hq32 sq16384 d64 window=300,300", 256, 64},
      {"fwd f16 b1 hq32 sq16384 d64 window=639,1", 192, 128},
      {"fwd bf16 b1 hq8 sq16384 d256 window=100,0", 128, 64},
      {"fwd bf16 b1 hq1 sq1024 d128 window=100,0", 64, 128},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(one.text);
    const Planned plan(one.text);
    EXPECT_EQ(plan.launch.tile_m, one.tile_m);
    EXPECT_EQ(plan.launch.tile_n, one.tile_n);
  }
  const Planned invariant("fwd bf16 b1 hq16 sq16384 d128 window=100,0 batch-invariant");
  EXPECT_EQ(invariant.launch.tile_n, 128);
}

constexpr const char* kFp8 = " kernel=cuda.sm90.forward_fp8";

TEST(CudaPlanSm90, E4m3TakesItsOwnRow) {
  const auto expect = [](const std::string& text, int tile_m, int tile_n, int shared, int stages = 3) {
    SCOPED_TRACE(text);
    // Of all rows too: no other takes e4m3 queries.
    for (const char* pin : {kFp8, " kernel=cuda.*"}) {
      const Planned plan(text + pin);
      ASSERT_EQ(plan.row(), "cuda.sm90.forward_fp8");
      EXPECT_EQ(plan.launch.tile_m, tile_m);
      EXPECT_EQ(plan.launch.tile_n, tile_n);
      EXPECT_EQ(plan.launch.shared_bytes, shared);
      EXPECT_EQ(plan.launch.stages, stages);
    }
  };
  using D64 = cuda::sm90::Fp8Config<64>::Plain;
  using D128 = cuda::sm90::Fp8Config<128>::Plain;
  using D256 = cuda::sm90::Fp8Config<256>::Plain;
  expect("fwd e4m3 b2 hq4 sq300 d64", 192, 128, D64::kSharedBytes);
  expect("fwd e4m3 b2 hq4 sq300 d16 dv64 causal", 192, 128, D64::kSharedBytes);
  expect("fwd e4m3 b2 hq4 sq300 d80 window=5,0", 128, 128, D128::kSharedBytes);
  expect("fwd e4m3 b2 hq4 sq300 d64 dv128 o=f16 sinks", 128, 128, D128::kSharedBytes);
  expect("fwd e4m3 b2 hq4 sq300 d128 packed lens=longtail", 128, 128, D128::kSharedBytes);
  expect("fwd e4m3 b2 hq4 sq300 d144 dv16", 128, 128, D256::kSharedBytes, 2);
  expect("fwd e4m3 b2 hq4 sq300 d16 dv256 causal packed lens=longtail", 128, 128, D256::kSharedBytes, 2);
  // Two Q tiles; three of K, V and V^T with eight rows of ones; barriers; 48 bytes a consumer's thread for each of two
  // pieces of work.
  EXPECT_EQ(D128::kSharedBytes, 2 * 16384 + 3 * (16384 + 16384 + 17408) + 2048 + 2 * 12288);
  EXPECT_EQ(D64::kSharedBytes, 2 * 12288 + 3 * (8192 + 8192 + 9216) + 2048 + 2 * 18432);
  // One Q tile, two of K, one of V, two of V^T; one piece.
  EXPECT_EQ(D256::kSharedBytes, 32768 + 2 * 32768 + 32768 + 2 * 33792 + 2048 + 12288);
  const Planned rows(std::string("fwd e4m3 sq300 d64") + kFp8);
  const Planned ordered(std::string("fwd e4m3 sq300 d64") + kFp8, "h200", [](tessera_problem* p) { p->v_order = 1; });
  ASSERT_EQ(ordered.row(), "cuda.sm90.forward_fp8");
  const std::string sums = "wgmma e4m3, float32 sums over tiles of keys since its own keep few bits, tma";
  EXPECT_EQ(rows.launch.instructions, sums + "; v transposed in shared memory");
  EXPECT_EQ(ordered.launch.instructions, sums);
}

TEST(CudaPlanSm90, E4m3SaysWhatItDoesNotTake) {
  const struct {
    const char *text, *gpu;
    void (*adjust)(tessera_problem*);
    const char* reason;
  } cases[] = {
      {"fwd bf16 sq64 d64", "h200", nullptr, "takes e4m3 (q.dtype=bf16)"},
      {"fwd e4m3 sq64 d64", "a100", nullptr, "needs compute capability 9.0 (Hopper) (arch=80)"},
      {"fwd e4m3 sq64 d64", "b200", nullptr, "needs compute capability 9.0 (Hopper) (arch=100)"},
      {"bwd e4m3 sq64 d64", "h200", nullptr, "forward pass only"},
      {"fwd e4m3 sq64 d272", "h200", nullptr, "takes head_dim_qk 16 to 256 in multiples of 16 (head_dim_qk=272)"},
      {"fwd e4m3 sq64 d72", "h200", nullptr, "takes head_dim_qk 16 to 256 in multiples of 16 (head_dim_qk=72)"},
      {"fwd e4m3 sq64 d64 dv272", "h200", nullptr, "takes head_dim_v 16 to 256 in multiples of 16 (head_dim_v=272)"},
      {"fwd e4m3 sq64 d64 softcap=20", "h200", nullptr, "takes no softcap"},
      {"fwd e4m3 sq64 d64 alibi", "h200", nullptr, "takes no ALiBi slopes"},
      {"fwd e4m3 sq64 d64 bias", "h200", nullptr, "takes no bias"},
      {"fwd e4m3 sq64 d64 mask", "h200", nullptr, "takes no bias"},
      {"fwd e4m3 sq64 d64 leftpad", "h200", [](tessera_problem* p) { p->v_order = 1; },
       "takes no leftpad under v_order 1"},
      {"fwd e4m3 sq64 d64", "h200",
       [](tessera_problem* p) { p->v_order = 1, p->v.stride[3] = 1, p->v.stride[2] = 72, p->v.stride[1] = 64 * 72; },
       "v.row stride"},
      {"fwd e4m3 sq200 d64", "h200", [](tessera_problem* p) { p->k_scale_rows = 128, p->k_scale.stride[1] = 1; },
       "takes one scale of k and of v for all rows of a head (k_scale_rows=128)"},
      {"fwd e4m3 sq200 d64", "h200", [](tessera_problem* p) { p->v_scale_rows = 1, p->v_scale.stride[1] = 1; },
       "takes one scale of k and of v for all rows of a head (v_scale_rows=1)"},
      {"fwd e4m3 b2 sq200 d64 paged=16", "h200", [](tessera_problem* p) { p->k_scale.stride[0] = 1; },
       "takes one scale of k and of v for all pages (k_scale.stride[0]=1)"},
      {"fwd e4m3 sq64 d64 sm_margin=132", "h200", nullptr, "sm_margin=132"},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(one.text);
    const Planned plan(std::string(one.text) + kFp8, one.gpu, one.adjust);
    EXPECT_EQ(plan.code, TESSERA_UNSUPPORTED);
    EXPECT_NE(std::string(plan.status.message).find(one.reason), std::string::npos) << plan.status.message;
  }
}

}  // namespace
}  // namespace tessera::tests
