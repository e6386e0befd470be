// Few queries over long caches on the CUDA decode row against the float64 judge: groups, queries, splits, pages, caches
// and lengths that differ or grow, on random operands between canaries.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "element.hpp"
#include "gpu_support.hpp"

namespace tessera::tests {
namespace {

constexpr char kDecode[] = "cuda.sm80.decode";

// Runs a case on the decode row alone.
void check_decode(const std::string& text) {
  SCOPED_TRACE(text);
  const Judged judged = judge(operands_of(text));
  GpuCase gpu(text);
  tessera_status status{};
  ASSERT_EQ(gpu.run(kDecode, &status), TESSERA_OK) << status.message;
  const auto comparisons = baselines::compare(gpu.plan.problem, gpu.set.tensors, &judged.exact, &judged.naive);
  const baselines::Comparison& worst = baselines::worst(comparisons);
  EXPECT_TRUE(worst.passed) << worst.tensor << " errs by " << worst.max_abs_error << ", allowed " << worst.tolerance;
  EXPECT_TRUE(gpu.set.canaries_intact()) << "wrote outside a buffer";
  EXPECT_TRUE(gpu.set.gaps_intact(gpu.plan.problem)) << "wrote between the rows of an output";
}

class GpuDecode : public ::testing::TestWithParam<const char*> {};

TEST_P(GpuDecode, MatchesTheJudge) {
  TESSERA_NEEDS_GPU();
  check_decode(std::string("fwd ") + GetParam() + " cuda");
}

INSTANTIATE_TEST_SUITE_P(
    Groups, GpuDecode,
    ::testing::Values("bf16 b1 hq1 sq1 sk70 d64", "f16 b2 hq4 hkv1 sq1 sk200 d128", "bf16 b1 hq14 hkv2 sq1 sk130 d64",
                      "f16 b1 hq8 hkv1 sq1 sk100 d96", "bf16 b1 hq16 hkv1 sq1 sk90 d192 dv128",
                      "bf16 b1 hq2 hkv1 sq16 sk150 d64 causal", "f16 b1 hq7 hkv1 sq3 sk129 d256 causal",
                      "bf16 b1 hq8 hkv1 sq5 sk200 d128", "bf16 b1 hq4 hkv1 sq16 sk140 d128 causal",
                      "f16 b1 hq2 sq64 sk256 d64 causal", "bf16 b1 hq4 hkv1 sq16 sk80 d256 window=30,2"));
INSTANTIATE_TEST_SUITE_P(Splits, GpuDecode,
                         ::testing::Values("bf16 b2 hq4 hkv2 sq1 sk300 d128 splits=2",
                                           "f16 b1 hq2 sq2 sk500 d64 splits=8",
                                           "bf16 b2 hq8 hkv1 sq3 sk400 d64 splits=5 sinks causal",
                                           "bf16 b1 hq2 sq1 sk640 d64 splits=64",
                                           "f16 b2 hq2 sq1 sk1500 d64 batch-invariant",
                                           "bf16 b3 hq4 hkv2 sq2 sk300 d128 splits=3 packed lens=longtail causal",
                                           "bf16 b1 hq1 sq1 sk300 d64 splits=1 window=100,0"));
INSTANTIATE_TEST_SUITE_P(
    Pages, GpuDecode,
    ::testing::Values("bf16 b3 hq4 hkv2 sq1 sk200 d128 paged=1 pages=shuffled lens=longtail",
                      "f16 b2 hq4 hkv2 sq2 sk200 d64 paged=3 pages=shuffled lens=longtail causal",
                      "bf16 b3 hq7 hkv1 sq1 sk300 d64 paged=16 pages=shuffled lens=0:7:300 splits=4",
                      "f16 b2 hq2 sq1 sk300 d256 paged=64 pages=shuffled lens=longtail",
                      "bf16 b2 hq2 sq2 sk120 d64 paged=16 leftpad causal"));
// More tiles than a warp holds entries of, of 32 keys at d 256.
INSTANTIATE_TEST_SUITE_P(ManyPages, GpuDecode,
                         ::testing::Values("bf16 b1 hq1 sq1 sk2310 d256 paged=16 pages=shuffled splits=1",
                                           "f16 b1 hq9 hkv1 sq1 sk1050 d256 paged=48 pages=shuffled splits=1",
                                           "bf16 b2 hq1 sq1 sk1100 d256 kv=int8 paged=32 pages=shuffled splits=1",
                                           "f16 b2 hq1 sq1 sk1100 d64 paged=5 pages=shuffled lens=longtail splits=2",
                                           "bf16 b1 hq4 hkv2 sq1 sk9000 d64 paged=16 pages=shuffled splits=2"));
INSTANTIATE_TEST_SUITE_P(Scores, GpuDecode,
                         ::testing::Values("bf16 b1 hq4 hkv2 sq2 sk150 d64 softcap=5 causal",
                                           "f16 b2 hq4 hkv2 sq3 sk150 d64 alibi causal splits=2",
                                           "bf16 b2 hq4 hkv2 sq2 sk100 d64 bias=bh",
                                           "bf16 b1 hq4 hkv2 sq2 sk100 d128 mask",
                                           "f16 b2 hq4 hkv2 sq2 sk100 d64 scale=-0.4 sinks o=f32",
                                           "bf16 b2 hq2 sq4 sk16 d64 paged=4 lens=2:0 causal sinks"));

INSTANTIATE_TEST_SUITE_P(
    Bytes, GpuDecode,
    ::testing::Values(
        "bf16 b2 hq8 hkv2 sq1 sk200 d128 kv=int8", "f16 b2 hq4 hkv2 sq2 sk150 d64 kv=int8 causal splits=2",
        "bf16 b2 hq4 hkv2 sq1 sk200 d128 kv=e4m3 splits=3", "f16 b1 hq7 hkv1 sq1 sk150 d64 kv=e4m3",
        "bf16 b1 hq8 hkv1 sq1 sk200 d128 kv=e4m3 scale=1e-3", "bf16 b1 hq9 hkv1 sq1 sk200 d128 kv=e4m3 splits=2",
        "bf16 b2 hq4 hkv2 sq1 sk100 d256 dv64 kv=int8 paged=3 pages=shuffled lens=longtail",
        "f16 b3 hq4 hkv2 sq1 sk200 d96 kv=e4m3 paged=16 pages=shuffled lens=longtail sinks",
        "bf16 b1 hq8 hkv1 sq12 sk150 d128 kv=int8 softcap=9 causal", "f16 b1 hq4 hkv2 sq40 sk50 d64 kv=int8 causal",
        "bf16 b2 hq4 hkv2 sq2 sk90 d64 kv=e4m3 packed lens=longtail causal"));

std::string bytes_of(const GpuCase& gpu) {
  const std::vector<std::byte> bytes = output_bytes(gpu.set);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// One plan for every length of a growing cache.
TEST(GpuDecodeRuns, OnePlanServesAGrowingCache) {
  TESSERA_NEEDS_GPU();
  for (const char* text : {"fwd bf16 b2 hq4 hkv2 sq1 sk400 d64 paged=16 lens=400:400 splits=3 cuda",
                           "fwd f16 b2 hq4 hkv2 sq1 sk400 d64 paged=16 lens=400:400 batch-invariant cuda"}) {
    GpuCase gpu(text);
    auto* lengths = const_cast<int32_t*>(gpu.set.tensors.seqused_k);
    for (const int32_t length : {0, 1, 63, 64, 65, 200, 399, 400}) {
      SCOPED_TRACE(length);
      lengths[0] = length, lengths[1] = 400 - length;
      tessera_status status{};
      ASSERT_EQ(gpu.run(kDecode, &status), TESSERA_OK) << status.message;
      const auto comparisons = baselines::compare(gpu.plan.problem, gpu.set.tensors);
      EXPECT_TRUE(baselines::worst(comparisons).passed) << baselines::worst(comparisons).max_abs_error;
    }
  }
}

// The last block of a head merges, whichever it is: the same bits each time, on memory that holds anything.
TEST(GpuDecodeRuns, RepeatsBitwiseOnAnyWorkspace) {
  TESSERA_NEEDS_GPU();
  GpuCase gpu("fwd bf16 b2 hq8 hkv2 sq1 sk900 d64 splits=7 cuda");
  std::string first;
  for (int i = 0; i < repeats(40); ++i) {
    tessera_status status{};
    gpu.poison_workspace = i % 2 == 0;
    ASSERT_EQ(gpu.run(kDecode, &status), TESSERA_OK) << status.message;
    if (first.empty()) first = bytes_of(gpu);
    ASSERT_TRUE(bytes_of(gpu) == first) << "run " << i;
  }
}

// batch-invariant: neither the mates nor the maxima of a plan change a sequence's bits.
TEST(GpuDecodeRuns, BatchInvariantKeepsASequencesBits) {
  TESSERA_NEEDS_GPU();
  GpuCase many("fwd bf16 b3 hq4 hkv2 sq1 sk3000 d64 batch-invariant lens=100:1300:3000 paged=64 seed=3 cuda");
  GpuCase one("fwd bf16 b1 hq4 hkv2 sq1 sk1300 d64 batch-invariant lens=1300 paged=64 seed=3 cuda");
  const size_t q_bytes = 4 * 64 * 2, page_bytes = size_t{64} * 2 * 64 * 2;
  std::memcpy(const_cast<void*>(one.set.tensors.q), static_cast<const std::byte*>(many.set.tensors.q) + q_bytes,
              q_bytes);
  const core::Problem p = validated(many.set.problem);
  for (int i = 0; i < 21; ++i) {
    const auto from = static_cast<size_t>(many.set.tensors.page_table[p.page_table_stride + i]);
    const auto to = static_cast<size_t>(one.set.tensors.page_table[i]);
    for (const auto& [to_tensor, from_tensor] :
         {std::pair{one.set.tensors.k, many.set.tensors.k}, std::pair{one.set.tensors.v, many.set.tensors.v}}) {
      std::memcpy(static_cast<std::byte*>(const_cast<void*>(to_tensor)) + to * page_bytes,
                  static_cast<const std::byte*>(from_tensor) + from * page_bytes, page_bytes);
    }
  }
  tessera_status status{};
  ASSERT_EQ(many.run(kDecode, &status), TESSERA_OK) << status.message;
  ASSERT_EQ(one.run(kDecode, &status), TESSERA_OK) << status.message;
  EXPECT_EQ(std::memcmp(one.set.tensors.o, static_cast<std::byte*>(many.set.tensors.o) + q_bytes, q_bytes), 0);
}

// e4m3 has a NaN and no infinity; the largest numbers beside it are numbers.
TEST(GpuDecodeRuns, NotANumberOfE4m3) {
  TESSERA_NEEDS_GPU();
  for (const char* dtype : {"bf16", "f16"}) {
    GpuCase gpu("fwd " + std::string(dtype) + " b1 hq2 sq1 sk70 d64 kv=e4m3 o=f32 cuda");
    auto* v = static_cast<uint8_t*>(const_cast<void*>(gpu.set.tensors.v));
    const auto* o = static_cast<const float*>(gpu.set.tensors.o);
    v[(5 * 2 + 1) * 64 + 3] = 0x7f, v[(6 * 2 + 1) * 64 + 4] = 0xff;
    v[(7 * 2 + 1) * 64 + 5] = 0x7e, v[(8 * 2 + 1) * 64 + 6] = 0xfe;
    tessera_status status{};
    ASSERT_EQ(gpu.run(kDecode, &status), TESSERA_OK) << status.message;
    for (int c = 0; c < 128; ++c) EXPECT_EQ(std::isnan(o[c]), c == 64 + 3 || c == 64 + 4) << dtype << " " << c;
  }
}

// Scales of every granularity, by more than f16 holds apart, on all layouts.
TEST(GpuDecodeRuns, ScalesOfBytes) {
  TESSERA_NEEDS_GPU();
  std::mt19937 random(11);
  std::uniform_real_distribution<float> exponent(-9.0f, 9.0f);
  for (const char* dtype : {"bf16", "f16"}) {
    for (const char* cache : {"int8", "e4m3"}) {
      for (const char* layout : {"", " paged=16 pages=shuffled lens=longtail", " packed lens=longtail", " leftpad"}) {
        for (const int32_t rows : {0, 1, 128, 16}) {
          const bool paged = std::strstr(layout, "paged") != nullptr;
          if (rows == 16 && !paged) continue;
          const std::string text =
              std::string("fwd ") + dtype + " b2 hq4 hkv2 sq2 sk160 d64 causal kv=" + cache + layout;
          SCOPED_TRACE(text + " rows " + std::to_string(rows));
          baselines::OperandSet operands = operands_of(text);
          tessera_problem& p = operands.problem;
          const int64_t length = paged ? p.page_size : p.seqlen_k, blocks = rows == 0 ? 1 : (length + rows - 1) / rows;
          const int64_t outer = paged ? p.num_pages : p.batch;
          std::vector<float> scales[2];
          for (auto& scale : scales) {
            for (int64_t i = 0; i < outer * blocks * p.heads_kv; ++i)
              scale.push_back(std::exp2(&scale == scales ? exponent(random) / 9 - 6 : exponent(random)));
          }
          for (tessera_desc* desc : {&p.k_scale, &p.v_scale}) {
            const int64_t strides[] = {blocks * p.heads_kv, p.heads_kv, 1, 0};
            std::copy(strides, strides + 4, desc->stride);
          }
          p.k_scale_rows = p.v_scale_rows = rows;
          operands.tensors.k_scale = scales[0].data(), operands.tensors.v_scale = scales[1].data();
          const Judged judged = judge(operands);
          GpuCase gpu(std::move(operands));
          for (const auto& scale : scales) gpu.mirror.add(scale.data(), scale.size() * sizeof(float));
          tessera_status status{};
          ASSERT_EQ(gpu.run(kDecode, &status), TESSERA_OK) << status.message;
          const auto comparisons = baselines::compare(gpu.plan.problem, gpu.set.tensors, &judged.exact, &judged.naive);
          const baselines::Comparison& worst = baselines::worst(comparisons);
          EXPECT_TRUE(worst.passed) << worst.tensor << " errs by " << worst.max_abs_error << ", allowed "
                                    << worst.tolerance;
        }
      }
    }
  }
}

// bf16 queries over bytes are multiplied as f16, whose range they may leave.
TEST(GpuDecodeRuns, QueriesBeyondF16OverBytes) {
  TESSERA_NEEDS_GPU();
  for (const char* cache : {"int8", "e4m3"}) {
    for (const float power : {0x1p60f, 0x1p-60f, 0x1p-126f}) {
      SCOPED_TRACE(std::string(cache) + " " + std::to_string(std::log2(power)));
      baselines::OperandSet operands = operands_of(std::string("fwd bf16 b1 hq4 sq1 sk150 d64 cuda kv=") + cache);
      auto* q = static_cast<uint16_t*>(const_cast<void*>(operands.tensors.q));
      for (int i = 0; i < 4 * 64; ++i) {
        if (i / 64 % 2 == 0) q[i] = core::float_to_bf16(core::bf16_to_float(q[i]) * power);
      }
      std::vector<float> scales;
      for (int head = 0; head < 4; ++head) scales.push_back(0x1p-6f / (head % 2 == 0 ? power : 1.0f));
      tessera_problem& p = operands.problem;
      const int64_t strides[] = {4, 4, 1, 0};
      std::copy(strides, strides + 4, p.k_scale.stride);
      p.k_scale_rows = 0;
      operands.tensors.k_scale = scales.data();
      const Judged judged = judge(operands);
      GpuCase gpu(std::move(operands));
      gpu.mirror.add(scales.data(), scales.size() * sizeof(float));
      tessera_status status{};
      ASSERT_EQ(gpu.run(kDecode, &status), TESSERA_OK) << status.message;
      const auto comparisons = baselines::compare(gpu.plan.problem, gpu.set.tensors, &judged.exact, &judged.naive);
      EXPECT_TRUE(baselines::worst(comparisons).passed) << baselines::worst(comparisons).max_abs_error;
    }
  }
}

// Every code path on the smallest operands, for compute-sanitizer. Workspaces are left uninitialised.
TEST(GpuSanitizer, SmallDecodeCases) {
  TESSERA_NEEDS_GPU();
  for (const char* text : {"fwd bf16 b1 hq4 hkv1 sq1 sk130 d64", "fwd f16 b2 hq2 sq2 sk140 d128 splits=3 causal",
                           "fwd bf16 b2 hq4 hkv1 sq5 sk70 d64 paged=3 lens=longtail splits=2",
                           "fwd f16 b1 hq4 hkv1 sq10 sk70 d256 softcap=9", "fwd bf16 b1 hq4 hkv1 sq1 sk80 d64 kv=int8",
                           "fwd f16 b1 hq8 hkv1 sq3 sk80 d128 kv=e4m3 splits=2"}) {
    SCOPED_TRACE(text);
    GpuCase gpu(std::string(text) + " cuda");
    gpu.poison_workspace = false;
    tessera_status status{};
    ASSERT_EQ(gpu.run(kDecode, &status), TESSERA_OK) << status.message;
    const auto comparisons = baselines::compare(gpu.plan.problem, gpu.set.tensors);
    EXPECT_TRUE(baselines::worst(comparisons).passed) << baselines::worst(comparisons).max_abs_error;
    EXPECT_TRUE(gpu.set.canaries_intact());
  }
}

}  // namespace
}  // namespace tessera::tests
