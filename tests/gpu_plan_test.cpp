// Host-side logic of the CUDA rows, on machines without a device too: planning for named GPUs, refusals that name what
// they refuse, and the order of blocks.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <set>
#include <string>
#include <utility>

#include "cuda/tile/scheduler.cuh"
#include "judged_run.hpp"
#include "problem_text.hpp"

namespace tessera::tests {
namespace {

int plan_for(const std::string& text, const char* device, core::Plan* plan, tessera_status* status,
             void (*adjust)(tessera_problem*) = nullptr) {
  tessera_problem problem;
  EXPECT_EQ(core::parse_problem(text, &problem, nullptr, status), TESSERA_OK) << status->message;
  std::strcpy(problem.device_name, device);
  if (adjust != nullptr) adjust(&problem);
  return core::make_plan(problem, {}, plan, status);
}

TEST(CudaPlan, NamedDevicesPlanEveryBucket) {
  for (const char* device : {"h200", "h100", "a100", "rtx4090", "b200"}) {
    for (const char* dtype : {"f16", "bf16"}) {
      for (int dim = 8; dim <= 256; dim += 8) {
        for (const char* score : {"causal", "softcap=20"}) {
          core::Plan plan;
          tessera_status status{};
          const std::string text =
              std::string("fwd ") + dtype + " b2 hq4 hkv2 sq300 d" + std::to_string(dim) + " " + score + " cuda";
          ASSERT_EQ(plan_for(text, device, &plan, &status), TESSERA_OK) << device << ": " << status.message;
          EXPECT_STREQ(plan.entry->name, plan.device->arch == 90 ? "cuda.sm90.forward" : "cuda.sm80.forward");
          EXPECT_LE(plan.launch.shared_bytes, plan.device->shared_bytes_per_block);
          EXPECT_GT(plan.launch.seconds, 0);
          EXPECT_EQ(plan.launch.workspace_bytes > 0, plan.launch.num_splits > 1);
          EXPECT_EQ(plan.passed_over, plan.device->arch == 90 ? 1 : 2) << plan.first_reason;
        }
      }
    }
  }
}

// The lines behind the command in docs/serving.md.
TEST(CudaPlan, TheServingPageShowsWhatExplainSays) {
  std::ifstream page(std::string(TESSERA_SOURCE_DIR) + "/docs/serving.md");
  if (!page) GTEST_SKIP() << "docs/serving.md is not beside this binary";
  std::string line, text;
  while (std::getline(page, line) && line.find("tessera explain \"") != 0) {
  }
  ASSERT_TRUE(page) << "no command in docs/serving.md";
  const size_t begin = line.find('"') + 1;
  core::Plan plan;
  tessera_status status{};
  ASSERT_EQ(plan_for(line.substr(begin, line.rfind('"') - begin), "h200", &plan, &status), TESSERA_OK)
      << status.message;
  const std::string explained = core::explain(plan, {}, false);
  int lines = 0;
  while (std::getline(page, line) && line != "```text") {
  }
  for (; std::getline(page, line) && line != "```"; ++lines)
    EXPECT_NE(explained.find(line + "\n"), std::string::npos) << line << "\n" << explained;
  EXPECT_EQ(lines, 5);
}

TEST(CudaPlan, SmallHeadsTakeNarrowTilesFromComputeCapability12On) {
  tessera_problem problem;
  tessera_status status{};
  ASSERT_EQ(core::parse_problem("fwd bf16 b2 hq4 sq300 d64 cuda", &problem, nullptr, &status), TESSERA_OK);
  std::strcpy(problem.device_name, "rtx4090");
  core::Plan plan;
  ASSERT_EQ(core::make_plan(problem, {}, &plan, &status), TESSERA_OK) << status.message;
  core::DeviceInfo device = *plan.device;
  EXPECT_EQ(plan.entry->configure(plan.problem, device).tile_n, 128);
  device.arch = 120;
  EXPECT_EQ(plan.entry->configure(plan.problem, device).tile_n, 64);
  EXPECT_FALSE(plan.entry->refuse(plan.problem, device));
}

TEST(CudaPlan, RefusalsNameWhatTheyRefuse) {
  const struct {
    const char* text;
    void (*adjust)(tessera_problem*);
    const char* expected;
  } cases[] = {
      {"fwd bf16 sq64 d257 cuda", nullptr, "head_dim_qk=257"},
      {"fwd bf16 sq64 d60 cuda", nullptr, "head_dim_qk=60"},
      {"fwd bf16 sq64 d64 dv20 cuda", nullptr, "head_dim_v=20"},
      {"fwd f32 sq64 d64 cuda", nullptr, "f16 and bf16"},
      {"bwd bf16 sq64 d64 cuda kernel=cuda.sm80.forward", nullptr, "forward pass only"},
      {"fwd bf16 sq64 d64 cuda kernel=cuda.sm80.backward", nullptr, "backward pass only"},
      {"bwd f32 sq64 d64 cuda", nullptr, "f16 and bf16"},
      {"bwd bf16 sq64 d64 cuda", [](tessera_problem* p) { p->d_o.dtype = TESSERA_F32; }, "d_o.dtype="},
      {"bwd bf16 sq64 d64 cuda", [](tessera_problem* p) { p->dk.align = 8; }, "dk.align=8"},
      {"bwd bf16 sq64 d64 cuda splits=2", nullptr, "num_splits=2"},
      {"fwd bf16 hq2 sq64 d64 cuda", [](tessera_problem* p) { p->k.align = 8; }, "k.align=8"},
      {"fwd bf16 hq2 sq64 d64 cuda",
       [](tessera_problem* p) {
         const int64_t strides[] = {64 * 132, 132, 66, 1};
         std::memcpy(p->v.stride, strides, sizeof strides);
       },
       "v.row stride=132"},
      {"fwd bf16 sq64 d64 cuda", [](tessera_problem* p) { p->sm_margin = 4; }, "sm_margin=4"},
  };
  for (const auto& one : cases) {
    core::Plan plan;
    tessera_status status{};
    EXPECT_EQ(plan_for(one.text, "a100", &plan, &status, one.adjust), TESSERA_UNSUPPORTED) << one.text;
    EXPECT_NE(std::string(status.message).find(one.expected), std::string::npos) << one.text << ": " << status.message;
  }
}

// Devices that the build cannot serve are refused before anything is launched, in numbers.
TEST(CudaPlan, DevicesThatAreTooSmallOrTooOldAreRefused) {
  core::Plan plan;
  tessera_status status{};
  for (const char* row : {"sm80", "sm90"}) {
    const std::string text = "fwd bf16 sq64 d256 cuda kernel=cuda." + std::string(row) + ".forward";
    ASSERT_EQ(plan_for(text, "h200", &plan, &status), TESSERA_OK) << status.message;
    core::DeviceInfo device = *plan.device;
    device.arch = 75;
    EXPECT_NE(core::format_refusal(plan.entry->refuse(plan.problem, device)).find("arch=75"), std::string::npos);
    device = *plan.device;
    device.shared_bytes_per_block = 64 * 1024;
    const std::string reason = core::format_refusal(plan.entry->refuse(plan.problem, device));
    EXPECT_NE(reason.find("shared_bytes=" + std::to_string(plan.launch.shared_bytes)), std::string::npos) << reason;
  }
}

// The backward's rows and shapes: Hopper has its own but for bias and ALiBi, and 64 keys a block past d 128; a device
// with 99 KB of shared memory a block gets smaller ones from d 128 on, one with 227 KB a second stage at d 256.
TEST(CudaPlan, BackwardTakesTheTilesThatFit) {
  const struct {
    const char *device, *text, *kernel;
    int32_t tile_m, tile_n, stages;
  } cases[] = {
      {"h200", "bwd bf16 sq300 d64", "cuda.sm90.backward", 128, 128, 2},
      {"h200", "bwd bf16 sq300 d64 softcap=9", "cuda.sm90.backward", 64, 128, 2},
      {"h200", "bwd bf16 sq300 d96", "cuda.sm90.backward", 64, 128, 2},
      {"h200", "bwd bf16 sq300 d192 dv128", "cuda.sm90.backward", 64, 64, 2},
      {"h200", "bwd f16 sq300 d64 dv256", "cuda.sm90.backward", 64, 64, 2},
      {"h200", "bwd bf16 sq300 d64 alibi", "cuda.sm80.backward", 64, 64, 2},
      {"rtx4090", "bwd bf16 sq300 d64", "cuda.sm80.backward", 64, 128, 2},
      {"a100", "bwd f16 sq300 d128", "cuda.sm80.backward", 64, 128, 2},
      {"rtx4090", "bwd f16 sq300 d128", "cuda.sm80.backward", 64, 64, 1},
      {"h200", "bwd bf16 sq300 d256 alibi", "cuda.sm80.backward", 64, 64, 2},
      {"b200", "bwd f16 sq300 d256", "cuda.sm80.backward", 64, 64, 2},
      {"a100", "bwd bf16 sq300 d256", "cuda.sm80.backward", 64, 64, 1},
      {"rtx4090", "bwd bf16 sq300 d256", "cuda.sm80.backward", 32, 32, 1},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(std::string(one.device) + " " + one.text);
    core::Plan plan;
    tessera_status status{};
    ASSERT_EQ(plan_for(std::string(one.text) + " cuda", one.device, &plan, &status), TESSERA_OK) << status.message;
    EXPECT_STREQ(plan.entry->name, one.kernel);
    EXPECT_EQ(plan.launch.tile_m, one.tile_m);
    EXPECT_EQ(plan.launch.tile_n, one.tile_n);
    EXPECT_EQ(plan.launch.stages, one.stages);
  }
}

// Heads of a backward go together as far as they fit a quarter of L2. Under a band, where a head's first key tiles
// weigh most, a wave of blocks is the least: else the last head's start when the others are nearly done. In a fixed
// order eight wait less for each other, and two waves where blocks walk through the heads of a group.
TEST(CudaPlan, BackwardKeepsAWaveTogether) {
  const struct {
    const char* text;
    int32_t heads;
  } cases[] = {
      {"bwd bf16 b4 hq64 hkv8 sq4096 d128", 1},
      {"bwd bf16 b4 hq64 hkv8 sq4096 d128 causal", 132 / 32},
      {"bwd bf16 b4 hq64 hkv8 sq4096 d128 deterministic", 8},
      {"bwd bf16 b4 hq64 hkv8 sq4096 d128 causal deterministic", 2 * 132 / 32},
      {"bwd bf16 b5 hq64 hkv8 sq4096 d128 causal deterministic", 8},
      {"bwd bf16 b3 hq8 hkv2 sq8192 d256 causal deterministic", 2},
      {"bwd bf16 b4 hq64 hkv8 sq4096 d128 window=512,0 deterministic", 1},
      {"bwd bf16 b4 hq64 hkv8 sq4096 d128 packed causal deterministic", 1},
      {"bwd bf16 b4 hq16 hkv16 sq4096 d128 causal deterministic", 6},
      {"bwd bf16 b2 hq16 sq8192 d128 causal", 132 / 64},
      {"bwd bf16 b1 hq16 sq65536 d128 causal", 1},
      {"bwd bf16 b1 hq2 sq128 d128 causal", 2},
  };
  for (const auto& one : cases) {
    core::Plan plan;
    tessera_status status{};
    ASSERT_EQ(plan_for(std::string(one.text) + " cuda", "h200", &plan, &status), TESSERA_OK) << status.message;
    EXPECT_EQ(plan.launch.variant, one.heads) << one.text;
  }
}

// Which backward's blocks go on to further key tiles.
TEST(CudaPlan, BackwardSaysWhetherBlocksArePersistent) {
  const struct {
    const char *device, *text;
    bool persistent;
  } cases[] = {{"h200", "bwd bf16 sq300 d128", true},
               {"h200", "bwd f16 sq300 d96 deterministic", true},
               {"h200", "bwd bf16 sq300 d128 softcap=9", false},
               {"h200", "bwd bf16 sq300 d64", true},
               {"h200", "bwd bf16 sq300 d64 softcap=9", false},
               {"h200", "bwd bf16 sq300 d192", false},
               {"a100", "bwd bf16 sq300 d128", false}};
  for (const auto& one : cases) {
    core::Plan plan;
    tessera_status status{};
    ASSERT_EQ(plan_for(std::string(one.text) + " cuda", one.device, &plan, &status), TESSERA_OK) << status.message;
    EXPECT_EQ(std::string(plan.launch.schedule).find("persistent") != std::string::npos, one.persistent) << one.text;
  }
}

// float32 sums of dq and two statistics a row, rows rounded up to 128 a sequence: linear in the lengths. Persistent
// blocks have a ticket.
TEST(CudaPlan, BackwardScratchIsLinear) {
  const auto workspace = [](const char* text) {
    core::Plan plan;
    tessera_status status{};
    EXPECT_EQ(plan_for(text, "h200", &plan, &status), TESSERA_OK) << status.message;
    return plan.launch.workspace_bytes;
  };
  constexpr int64_t kTicket = 256, kProgress = 256;  // 16 bytes a head of a sequence, in whole 256
  EXPECT_EQ(workspace("bwd bf16 b2 hq4 sq1000 d64 cuda"), 2 * 4 * 1024 * (64 + 2) * 4 + kTicket + kProgress);
  EXPECT_EQ(workspace("bwd bf16 b2 hq4 sq16384 d64 cuda"), int64_t{2} * 4 * 16384 * (64 + 2) * 4 + kTicket + kProgress);
  EXPECT_EQ(workspace("bwd bf16 b2 hq4 sq1000 d64 softcap=9 cuda"), 2 * 4 * 1024 * (64 + 2) * 4 + kProgress);
  EXPECT_GT(workspace("bwd bf16 b2 hq4 sq1000 d64 deterministic cuda"), workspace("bwd bf16 b2 hq4 sq1000 d64 cuda"));
}

TEST(CudaPlan, SplitsTakeAWorkspace) {
  core::Plan plan;
  tessera_status status{};
  ASSERT_EQ(plan_for("fwd bf16 b2 hq4 sq10 sk1000 d64 splits=3 cuda kernel=cuda.sm80.forward", "a100", &plan, &status),
            TESSERA_OK)
      << status.message;
  EXPECT_EQ(plan.launch.num_splits, 3);
  EXPECT_EQ(plan.launch.workspace_bytes, 3 * 2 * 4 * 10 * 64 * 4 + 1024);  // o, then lse in whole 256 bytes
}

TEST(CudaPlan, DecodeTakesFewRowsOfManyKeys) {
  const struct {
    const char *text, *row;
  } cases[] = {
      {"hq32 hkv8 sq1 sk1 d128", "decode"},        {"hq32 hkv8 sq16 sk4096 d128", "decode"},
      {"hq32 hkv8 sq17 sk4096 d128", "forward"},   {"hq4 sq64 sk4096 d256 causal", "decode"},
      {"hq4 sq65 sk4096 d256 causal", "forward"},  {"hq4 sq16 sk63 d64", "forward"},
      {"hq4 sq16 sk64 d64 softcap=9", "decode"},   {"hq128 hkv1 sq1 sk4096 d64", "forward"},
      {"hq4 sq1 sk99 d64 sm_margin=1", "forward"},
  };
  for (const char* device : {"h200", "b200"}) {
    for (const auto& one : cases) {
      core::Plan plan;
      tessera_status status{};
      const int code = plan_for(std::string("fwd bf16 ") + one.text + " cuda", device, &plan, &status);
      if (code == TESSERA_UNSUPPORTED) continue;  // sm_margin
      ASSERT_EQ(code, TESSERA_OK) << one.text << ": " << status.message;
      const std::string name = plan.entry->name;
      EXPECT_EQ(name.substr(name.rfind('.') + 1), one.row) << one.text;
      EXPECT_LE(plan.launch.shared_bytes, plan.device->shared_bytes_per_block);
    }
  }
}

// As many splits as fill the device, none where heads do; a fixed size under batch-invariant; as many as are asked for,
// as far as there are 64 keys for each.
TEST(CudaPlan, DecodeSplitsFillTheDevice) {
  const auto planned = [](const std::string& words) {
    core::Plan plan;
    tessera_status status{};
    EXPECT_EQ(plan_for("fwd bf16 " + words + " cuda", "h200", &plan, &status), TESSERA_OK) << status.message;
    EXPECT_STREQ(plan.entry->name, "cuda.sm80.decode");
    EXPECT_EQ(plan.launch.workspace_bytes > 0, plan.launch.num_splits > 1) << words;
    return plan;
  };
  for (const char* words :
       {"hq32 hkv8 sq1 sk8192 d128", "hq32 hkv8 sq1 sk65536 d128", "b2 hq64 hkv8 sq1 sk65536 d64"}) {
    const core::Plan plan = planned(words);
    const int64_t blocks = plan.problem.batch * 8 * plan.launch.num_splits;
    EXPECT_GE(blocks, 120) << words;
    EXPECT_LE(blocks, 4 * 264 + 16) << words;
    EXPECT_LT(plan.launch.seconds, planned(std::string(words) + " splits=1").launch.seconds);
    // Not below what the data sheet's bandwidth allows, nor far above it and the fixed costs: launch, start, merge.
    const double bound = core::count_work(plan.problem).bytes / plan.device->bandwidth;
    EXPECT_GT(plan.launch.seconds, bound);
    EXPECT_LT(plan.launch.seconds, 1.3 * bound + 15e-6);
  }
  EXPECT_EQ(planned("b128 hq32 hkv8 sq1 sk2048 d128").launch.num_splits, 1);
  // A block a multiprocessor is enough for bytes, too, where all keys have one scale.
  EXPECT_EQ(planned("hq32 hkv8 sq1 sk65536 d128 kv=e4m3").launch.num_splits, 16);
  EXPECT_EQ(planned("hq8 sq1 sk5000 d64 batch-invariant").launch.num_splits, 5);
  EXPECT_EQ(planned("b256 hq8 sq1 sk5000 d64 batch-invariant").launch.num_splits, 5);
  EXPECT_EQ(planned("hq8 sq1 sk5000 d64 splits=7").launch.num_splits, 7);
  EXPECT_EQ(planned("hq8 sq1 sk500 d64 splits=70").launch.num_splits, 8);
  EXPECT_EQ(planned("b4 hq8 sq1 sk1000000 d64 splits=1").launch.num_splits, 1);
}

// Every block of every group, once; within a group from the last query block to the first.
TEST(CudaPlan, ScheduleVisitsEveryBlockOnce) {
  for (uint32_t query_blocks = 1; query_blocks <= 5; ++query_blocks) {
    for (uint32_t heads = 1; heads <= 12; ++heads) {
      for (uint32_t group = 1; group <= heads; ++group) {
        const cuda::Schedule schedule{query_blocks, heads, group};
        std::set<std::pair<uint32_t, uint32_t>> seen;
        uint32_t last_block = query_blocks, last_group = ~0u;
        for (uint32_t block = 0; block < query_blocks * heads; ++block) {
          const cuda::WorkItem item = cuda::locate_block(schedule, block);
          ASSERT_LT(item.query_block, query_blocks);
          ASSERT_LT(item.head_batch, heads);
          ASSERT_TRUE(seen.emplace(item.query_block, item.head_batch).second);
          const uint32_t r = schedule.remainder;
          const uint32_t in_group = item.head_batch < r ? 0 : 1 + (item.head_batch - r) / group;
          if (in_group == last_group) {
            ASSERT_LE(item.query_block, last_block);
          }
          last_block = item.query_block;
          last_group = in_group;
        }
        EXPECT_EQ(seen.size(), query_blocks * heads);
      }
    }
  }
}

// Metadata of any value gives ranges inside the arrays.
TEST(CudaPlan, WildMetadataStaysInside) {
  for (const int32_t a : {-2147483647, -1, 0, 5, 2147483647}) {
    for (const int32_t b : {-2147483647, -1, 0, 3, 9, 2147483647}) {
      const int32_t cu[] = {a, b}, used[] = {b}, pad[] = {a}, row[] = {b};
      cuda::ForwardParams p{};
      p.cu_seqlens_q = p.cu_seqlens_k = cu;
      p.seqused_k = used;
      p.leftpad = pad;
      p.total_q = p.total_k = 10;
      p.left = p.right = -1;
      p.num_splits = 1;
      const cuda::SequenceView packed = cuda::locate_sequence(p, 0, 0);
      EXPECT_GE(packed.q_row, 0);
      EXPECT_GE(packed.rows_q, 0);
      EXPECT_LE(packed.q_row + packed.rows_q, 10);
      EXPECT_GE(packed.band.seqlen_k, 0);
      EXPECT_LE(packed.kv_row + packed.band.seqlen_k, 10);
      p.cu_seqlens_q = p.cu_seqlens_k = nullptr;
      p.seqlen_q = p.seqlen_k = 10;
      p.batch_kv = 4;
      p.batch_idx = row;
      const cuda::SequenceView dense = cuda::locate_sequence(p, 0, 0);
      EXPECT_GE(dense.kv_batch, 0);
      EXPECT_LT(dense.kv_batch, 4);
      EXPECT_LE(dense.kv_row + dense.band.seqlen_k, 10);
    }
  }
}

}  // namespace
}  // namespace tessera::tests
