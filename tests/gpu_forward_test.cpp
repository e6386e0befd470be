// Every part of the forward semantics on the CUDA rows against the float64 judge, on random operands between canaries.
#include <cstdio>
#include <random>

#include "cases.hpp"
#include "device_info.hpp"
#include "gpu_support.hpp"

namespace tessera::tests {
namespace {

std::string number(const char* word, int64_t value) { return " " + std::string(word) + std::to_string(value); }

bool is_hopper() { return core::cuda_info(0, nullptr)->arch == 90; }
std::string on_multiprocessors(int count, const std::string& text) {
  return text + " cuda" + number("sm_margin=", core::cuda_info(0, nullptr)->units - count);
}

class GpuForward : public ::testing::TestWithParam<const char*> {};

TEST_P(GpuForward, MatchesTheJudge) {
  TESSERA_NEEDS_GPU();
  for (const char* dtype : {"bf16", "f16"}) {
    const std::string text = "fwd " + std::string(dtype) + " " + GetParam() + " cuda";
    EXPECT_GT(check_on_gpu(text), 0) << "no CUDA row takes " << text;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Words, GpuForward,
    ::testing::Values(
        "b1 hq1 sq1 d8", "b2 hq3 sq64 d64", "b2 hq2 sq128 sk256 d128", "b1 hq2 sq200 sk333 d40",
        "b1 hq2 sq65 sk129 d72 dv96", "b1 hq2 sq100 d96 causal", "b1 hq4 hkv2 sq130 sk257 d192 dv128 causal",
        "b1 hq2 sq77 sk300 d256 causal", "b1 hq2 sq90 sk50 d64 causal", "b1 hq2 sq90 sk50 d64 causal topleft",
        "b2 hq4 hkv1 sq150 d64 window=17,5", "b1 hq2 sq300 d128 window=64,0",
        "b1 hq2 sq150 sk170 d128 window=3,40 topleft", "b1 hq2 sq70 sk90 d64 scale=-0.3",
        "b1 hq2 sq70 sk90 d64 scale=0", "b1 hq2 sq70 sk90 d128 scale=2.5 causal",
        "b2 hq2 sq100 sk130 d64 softcap=5 causal", "b2 hq2 sq100 sk130 d128 alibi causal",
        "b1 hq4 hkv2 sq80 d256 alibi softcap=20", "b2 hq4 sq70 sk190 d64 sinks causal",
        "b1 hq2 sq70 sk40 d128 sinks causal", "b2 hq2 sq65 sk70 d64 bias=bh", "b2 hq2 sq65 sk70 d96 bias=b causal",
        "b2 hq2 sq65 sk70 d128 bias=h alibi", "b2 hq2 sq65 sk70 d192 bias=1 softcap=3", "b2 hq2 sq65 sk70 d64 mask",
        "b1 hq2 sq65 sk170 d256 mask causal", "b2 hq2 sq129 d64 o=f32", "b2 hq2 sq129 d200 dv24 o=f32 causal",
        // Warpgroups of Hopper's kernels whose rows see less than their tile: half a step, several steps, none.
        "b1 hq2 sq320 d128 causal", "b1 hq2 sq600 d64 causal", "b1 hq3 sq200 d256 causal", "b1 hq2 sq64 sk700 d128",
        "b1 hq2 sq20 sk450 d256", "b1 hq2 sq520 d64 window=100,70", "b1 hq2 sq600 d64 window=10,5",
        "b1 hq2 sq300 d256 window=7,3", "b1 hq4 hkv2 sq150 sk200 d128 causal topleft"));

// On two multiprocessors blocks have one piece of work after another; the words above are a piece a block on a large
// device, where Hopper's kernel has tiles of its own for them.
class GpuForwardTickets : public ::testing::TestWithParam<const char*> {};

TEST_P(GpuForwardTickets, MatchesTheJudge) {
  TESSERA_NEEDS_GPU();
  if (!is_hopper()) GTEST_SKIP() << "cuda.sm90.forward needs compute capability 9.0";
  const std::string text = on_multiprocessors(2, std::string("fwd bf16 ") + GetParam());
  EXPECT_GT(check_on_gpu(text), 0) << "no CUDA row takes " << text;
}

INSTANTIATE_TEST_SUITE_P(
    Words, GpuForwardTickets,
    ::testing::Values("b2 hq3 sq64 d64", "b1 hq2 sq300 sk400 d64 causal", "b1 hq3 sq520 d64 window=100,70",
                      "b2 hq2 sq200 sk256 d128", "b1 hq2 sq520 d128 causal", "b1 hq1 sq600 sk520 d128 window=70,9",
                      "b1 hq3 sq200 d256 causal", "b1 hq3 sq130 sk60 d256", "b2 hq8 hkv1 sq40 sk90 d256 causal",
                      "b1 hq128 hkv1 sq3 sk70 d192 causal", "b1 hq3 sq150 sk200 d192 dv128 causal",
                      // Wide and brief tiles.
                      "b1 hq1 sq1000 sk2100 d128", "b1 hq1 sq800 sk2050 d104 causal",
                      "b1 hq1 sq800 sk2060 d128 window=300,7", "b2 hq2 sq530 sk600 d64 causal",
                      "b1 hq4 hkv2 sq520 sk1000 d40 causal topleft", "b1 hq1 sq1024 d64 causal",
                      "b1 hq3 sq512 d128 causal", "b1 hq4 hkv2 sq400 sk512 d104 window=200,30",
                      "b1 hq2 sq512 d128 causal layout=bhsd",
                      // Of whose first key tiles some warpgroups see nothing.
                      "b1 hq2 sq300 sk2060 d128 window=1600,0", "b1 hq2 sq400 sk1200 d64 window=700,3",
                      "b1 hq2 sq700 sk1100 d64 window=100,0", "b1 hq2 sq300 sk600 d256 window=90,20 topleft",
                      "b2 hq8 hkv2 sq520 sk700 d128 window=20,0"));
INSTANTIATE_TEST_SUITE_P(Layouts, GpuForward,
                         ::testing::Values("b3 hq2 sq100 sk140 d64 layout=bhsd causal",
                                           "b4 hq4 hkv2 sq200 d128 packed causal lens=longtail",
                                           "b4 hq2 sq150 sk260 d64 packed lens=longtail",
                                           "b3 hq2 sq60 sk70 d64 packed lens=5:0:60",
                                           "b3 hq4 hkv2 sq64 sk300 d128 paged=16 causal lens=longtail",
                                           "b3 hq4 hkv2 sq64 sk300 d128 paged=1 pages=shuffled",
                                           "b3 hq2 sq70 sk300 d64 paged=17 pages=shuffled causal lens=longtail",
                                           "b2 hq2 sq70 sk300 d256 paged=128 pages=shuffled",
                                           "b2 hq2 sq33 sk300 d192 paged=64 pages=shuffled softcap=9",
                                           "b3 hq2 sq20 sk100 d96 leftpad causal",
                                           "b3 hq2 sq20 sk100 d64 leftpad paged=16 pages=shuffled causal",
                                           "b5 hq8 hkv2 sq1 sk500 d128 paged=16 pages=shuffled lens=longtail"));
INSTANTIATE_TEST_SUITE_P(
    Splits, GpuForward,
    ::testing::Values("b2 hq4 hkv2 sq1 sk1000 d128 splits=4", "b2 hq2 sq130 sk700 d64 splits=3 causal sinks",
                      "b3 hq2 sq40 sk500 d64 splits=16 packed lens=longtail causal",
                      "b2 hq2 sq40 sk300 d256 splits=2 alibi causal", "b2 hq2 sq40 sk300 d128 splits=5 bias=bh",
                      "b2 hq2 sq40 sk100 d128 splits=7 o=f32 window=30,10",
                      "b3 hq2 sq20 sk400 d64 splits=3 paged=16 pages=shuffled lens=longtail causal"));

// With a workspace that is left uninitialised.
void expect_first_row_right(const std::string& text) {
  SCOPED_TRACE(text);
  GpuCase gpu(text);
  gpu.poison_workspace = false;
  const Judged judged = judge(gpu.set);
  tessera_status status{};
  ASSERT_EQ(gpu.run("", &status), TESSERA_OK) << status.message;
  const auto comparisons = baselines::compare(gpu.plan.problem, gpu.set.tensors, &judged.exact, &judged.naive);
  EXPECT_TRUE(baselines::worst(comparisons).passed) << baselines::worst(comparisons).max_abs_error;
  EXPECT_TRUE(gpu.set.canaries_intact());
}

// Every code path of every kernel on the smallest operands, for compute-sanitizer, under which a run takes up to a
// hundred times as long.
TEST(GpuSanitizer, SmallForwardCases) {
  TESSERA_NEEDS_GPU();
  for (const char* text :
       {"fwd bf16 b1 hq2 hkv1 sq129 sk257 d64 causal", "fwd f16 b1 hq1 sq33 sk65 d96 window=20,3",
        "fwd bf16 b2 hq1 sq65 sk70 d128 packed lens=40:0 causal", "fwd f16 b1 hq1 sq65 sk66 d192 o=f32",
        "fwd bf16 b1 hq1 sq65 sk130 d256 dv72 causal",
        "fwd f16 b2 hq2 sq3 sk140 d64 paged=16 pages=shuffled lens=longtail", "fwd bf16 b1 hq2 sq33 sk70 d64 bias=bh",
        "fwd f16 b1 hq1 sq20 sk65 d128 mask alibi", "fwd bf16 b1 hq1 sq20 sk65 d256 softcap=9 sinks",
        "fwd bf16 b2 hq2 sq5 sk300 d128 splits=3 causal sinks",
        "fwd f16 b2 hq2 sq5 sk200 d64 splits=2 paged=1 lens=longtail", "fwd f16 b2 hq1 sq20 sk64 d40 leftpad causal"}) {
    expect_first_row_right(std::string(text) + " cuda");
  }
}

// The tiles that Hopper's kernel has for many whole dense rows: three, on one multiprocessor. With more pieces of work
// than a block holds views of, racecheck reports that the scheduler overwrites one, since it does not count that a lane
// arrives for its warp.
TEST(GpuSanitizer, TilesOfManyDenseRows) {
  TESSERA_NEEDS_GPU();
  if (!is_hopper()) GTEST_SKIP() << "cuda.sm90.forward needs compute capability 9.0";
  for (const char* text : {"fwd bf16 b1 hq1 sq520 d64 causal", "fwd bf16 b1 hq1 sq512 d128 causal",
                           "fwd f16 b1 hq1 sq570 d64", "fwd bf16 b1 hq1 sq400 sk2048 d128"}) {
    expect_first_row_right(on_multiprocessors(1, text));
  }
}

// Whatever lengths and pages hold, see GpuRun.WildMetadataStaysInside.
TEST(GpuSanitizer, WildMetadata) {
  TESSERA_NEEDS_GPU();
  for (const char* text : {"fwd bf16 b3 hq1 sq20 sk100 d64 paged=16 lens=longtail cuda",
                           "fwd bf16 b3 hq1 sq20 sk100 d64 packed lens=longtail splits=2 cuda"}) {
    for (const int32_t wild : {-1, 0x7fffffff}) {
      expect_wild_metadata_stays_inside(text, wild);
    }
  }
}

// The list that the CPU rows run. What no CUDA row takes (other dtypes, head dims that are no multiple of 8) is
// refused.
TEST(GpuEveryCase, ForwardOnEveryRow) {
  TESSERA_NEEDS_GPU();
  int ran = 0, cases = 0;
  for (const Case& one : forward_cases()) {
    ran += check_on_gpu(operands_of(one), one.name());
    ++cases;
  }
  std::printf("%d cases, %d runs of the library's CUDA rows\n", cases, ran);
  EXPECT_GT(ran, cases / 8);
}

TEST(GpuForwardRandom, AgreesWithTheJudge) {
  TESSERA_NEEDS_GPU();
  std::mt19937 random(20240611);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  for (int i = 0; i < repeats(150); ++i) {
    const int group = pick(1, 4), heads_kv = pick(1, 3);
    std::string text = std::string("fwd ") + (pick(0, 1) ? "bf16" : "f16") + number("b", pick(1, 3)) +
                       number("hq", group * heads_kv) + number("hkv", heads_kv) + number("sq", pick(1, 300)) +
                       number("sk", pick(1, 400)) + number("d", 8 * pick(1, 32)) + number("dv", 8 * pick(1, 32));
    const int layout = pick(0, 3);
    if (layout == 1) text += " packed lens=longtail";
    if (layout == 2) text += " pages=shuffled" + number("paged=", pick(1, 70));
    if (layout == 3) text += " layout=bhsd";
    if (pick(0, 1))
      text += " causal";
    else if (pick(0, 1))
      text += " window=" + std::to_string(pick(0, 200)) + "," + std::to_string(pick(0, 50));
    if (pick(0, 3) == 0) text += " topleft";
    if (pick(0, 3) == 0) text += " softcap=10";
    if (pick(0, 3) == 0) text += " alibi";
    if (pick(0, 3) == 0) text += " sinks";
    if (layout != 1 && pick(0, 3) == 0) text += pick(0, 1) ? " mask" : " bias=bh";
    if (pick(0, 3) == 0) text += number("splits=", pick(2, 6));
    if (pick(0, 3) == 0) text += " o=f32";
    text += number("seed=", i) + " cuda";
    EXPECT_GT(check_on_gpu(text), 0) << "no CUDA row takes " << text;
  }
}

}  // namespace
}  // namespace tessera::tests
