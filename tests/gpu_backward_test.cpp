// Every part of the backward semantics on the CUDA rows against the float64 judge, on random operands between canaries.
#include <algorithm>
#include <cstring>
#include <random>

#include "cases.hpp"
#include "gpu_support.hpp"

namespace tessera::tests {
namespace {

// Checks the problem in both modes: dq summed in any order, and in a fixed one.
void check_backward(const std::string& text) {
  for (const char* mode : {"", " deterministic"}) {
    EXPECT_GT(check_on_gpu(text + mode + " cuda"), 0) << "no CUDA row takes " << text << mode;
  }
}

class GpuBackward : public ::testing::TestWithParam<const char*> {};

TEST_P(GpuBackward, MatchesTheJudge) {
  TESSERA_NEEDS_GPU();
  for (const char* dtype : {"bf16", "f16"}) check_backward("bwd " + std::string(dtype) + " " + GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    Words, GpuBackward,
    ::testing::Values("b1 hq1 sq1 d8", "b2 hq3 sq64 d64", "b2 hq2 sq128 sk256 d128", "b1 hq2 sq200 sk333 d40",
                      "b1 hq2 sq65 sk129 d72 dv96", "b1 hq2 sq100 d96 causal",
                      "b1 hq4 hkv2 sq130 sk257 d192 dv128 causal", "b1 hq2 sq77 sk300 d256 causal",
                      "b1 hq2 sq90 sk50 d64 causal", "b1 hq2 sq90 sk50 d64 causal topleft",
                      "b2 hq4 hkv1 sq150 d64 window=17,5", "b1 hq2 sq300 d128 window=64,0",
                      "b1 hq2 sq150 sk170 d128 window=3,40 topleft", "b1 hq2 sq70 sk90 d64 scale=-0.3",
                      "b1 hq2 sq70 sk90 d64 scale=0", "b1 hq2 sq70 sk90 d128 scale=2.5 causal",
                      // Rows of one key each: P is 1, also where rounding puts x above lse.
                      "b1 hq1 sq65 sk193 d64 causal scale=100 seed=3", "b2 hq2 sq100 sk130 d64 softcap=5 causal",
                      "b2 hq2 sq100 sk130 d128 alibi causal", "b1 hq4 hkv2 sq80 d256 alibi softcap=20",
                      "b2 hq4 sq70 sk190 d64 sinks causal", "b1 hq2 sq130 sk70 d128 sinks causal",
                      "b2 hq2 sq65 sk70 d64 dlse", "b1 hq8 hkv1 sq70 sk90 d64 dlse", "b2 hq2 sq65 sk70 d96 mask causal",
                      "b1 hq3 sq65 sk170 d256 mask", "b1 hq2 sq129 sk140 d200 dv24 causal"));
INSTANTIATE_TEST_SUITE_P(Biases, GpuBackward,
                         ::testing::Values("b2 hq2 sq65 sk70 d64 bias=bh dbias",
                                           "b2 hq2 sq65 sk170 d96 bias=b dbias causal",
                                           "b3 hq4 hkv2 sq65 sk70 d128 bias=h dbias alibi",
                                           "b2 hq2 sq65 sk70 d192 bias=1 dbias softcap=3",
                                           "b2 hq2 sq100 sk150 d256 bias=h dbias window=30,20"));
INSTANTIATE_TEST_SUITE_P(Layouts, GpuBackward,
                         ::testing::Values("b3 hq2 sq100 sk140 d64 layout=bhsd causal",
                                           "b4 hq4 hkv2 sq200 d128 packed causal lens=longtail",
                                           "b4 hq2 sq150 sk260 d64 packed lens=longtail",
                                           "b9 hq6 hkv3 sq300 d128 packed causal lens=0:300:130:1:0:257:128:64:0",
                                           "b6 hq2 sq40 sk400 d112 packed lens=40:3:0:17:1:40",
                                           "b3 hq2 sq60 sk70 d64 packed lens=5:0:60",
                                           "b3 hq2 sq100 sk140 d96 lens=longtail sinks dlse",
                                           "b3 hq4 hkv2 sq130 sk150 d64 lens=130:0:7 causal bias=h dbias"));

// Lengths that nobody checked on the way: longer than the problem's maxima, falling, negative. Nothing outside of the
// operands is touched, and nobody waits for a turn that never comes.
TEST(GpuBackwardWild, MetadataStaysInsideAndEnds) {
  TESSERA_NEEDS_GPU();
  for (const int dim : {64, 128}) {
    for (const char* mode : {"", " deterministic"}) {
      for (const int longest : {64, 128}) {
        for (const int32_t wild : {-1000, 0, 150, 1 << 30}) {
          const std::string text = "bwd bf16 b3 hq2 hkv1 sq300 sk400 d" + std::to_string(dim) +
                                   " packed causal lens=300:7:130" + std::string(mode);
          SCOPED_TRACE(text + " longest " + std::to_string(longest) + " wild " + std::to_string(wild));
          for (const std::string& row : gpu_rows()) {
            baselines::OperandSet operands = operands_of(text + " cuda");
            judge(operands);  // o and lse
            operands.problem.seqlen_q = operands.problem.seqlen_k = longest;
            const_cast<int32_t*>(operands.tensors.cu_seqlens_q)[2] = wild;
            const_cast<int32_t*>(operands.tensors.cu_seqlens_k)[1] = wild;
            GpuCase gpu(std::move(operands));
            tessera_status status{};
            const int code = gpu.run(row, &status);
            if (code == TESSERA_UNSUPPORTED) continue;
            ASSERT_EQ(code, TESSERA_OK) << status.message;
            EXPECT_TRUE(gpu.set.canaries_intact());
          }
        }
      }
    }
  }
}

// The Hopper row is not passed over in silence: where it can run it takes what it says it takes, and no more.
TEST(GpuBackwardRows, HopperTakesWhatItSays) {
  TESSERA_NEEDS_GPU();
  if (core::cuda_info(0, nullptr)->arch != 90) GTEST_SKIP() << "cuda.sm90.backward needs compute capability 9.0";
  const struct {
    const char* text;
    int code;
  } cases[] = {{"d64 causal", TESSERA_OK},          {"d128 softcap=9", TESSERA_OK},
               {"d96 dv40 window=5,5", TESSERA_OK}, {"d64 packed sinks dlse deterministic", TESSERA_OK},
               {"d192 dv128 causal", TESSERA_OK},   {"d256 softcap=9 deterministic", TESSERA_OK},
               {"d64 bias=h", TESSERA_UNSUPPORTED}, {"d64 alibi", TESSERA_UNSUPPORTED}};
  for (const auto& one : cases) {
    SCOPED_TRACE(one.text);
    baselines::OperandSet operands = operands_of(std::string("bwd bf16 b2 hq2 sq70 sk90 ") + one.text + " cuda");
    judge(operands);  // o and lse
    GpuCase gpu(std::move(operands));
    tessera_status status{};
    EXPECT_EQ(gpu.run("cuda.sm90.backward", &status), one.code) << status.message;
  }
}

// Twice as many key tiles as multiprocessors and more, where Hopper's blocks go on from one to the next: such that no
// query sees, that lie behind a used length, that nobody owns. `text` has `tiles` of 128 keys, two batches.
struct TicketCase {
  const char* text;
  int tiles;
};
class GpuBackwardTickets : public ::testing::TestWithParam<TicketCase> {};

TEST_P(GpuBackwardTickets, BlocksGoOnToFurtherKeyTiles) {
  TESSERA_NEEDS_GPU();
  const int heads = core::cuda_info(0, nullptr)->units / GetParam().tiles + 1;
  const std::string count = "hq" + std::to_string(2 * heads) + " hkv" + std::to_string(heads) + " ";
  check_backward("bwd bf16 b2 " + count + GetParam().text);
}

INSTANTIATE_TEST_SUITE_P(Words, GpuBackwardTickets,
                         ::testing::Values(TicketCase{"sq65 sk129 d128", 2}, TicketCase{"sq200 sk300 d96 causal", 3},
                                           TicketCase{"sq70 sk600 d128 window=64,0", 5},
                                           TicketCase{"sq70 sk400 d128 causal topleft", 4},
                                           TicketCase{"sq20 sk300 d128 dv72 window=5,5 dlse", 3},
                                           TicketCase{"sq130 sk260 d128 lens=7:130 causal", 3},
                                           TicketCase{"sq150 sk260 d128 packed lens=150:0", 3},
                                           TicketCase{"sq150 sk260 d128 packed causal lens=longtail dlse", 3},
                                           TicketCase{"sq300 sk300 d64 causal", 3},
                                           TicketCase{"sq70 sk600 d64 window=64,0", 5},
                                           TicketCase{"sq130 sk260 d40 lens=7:130 dlse", 3}));

// More key tiles than multiprocessors under a causal mask, where in a fixed order Hopper's blocks take those of the
// last heads, or with grouped heads of all, from the first keys on and walk down the queries. The bits are the same
// each time. `text` has `tiles` of 64 keys.
struct OrderCase {
  const char* text;
  int group, tiles;
};
class GpuBackwardOrder : public ::testing::TestWithParam<OrderCase> {};

TEST_P(GpuBackwardOrder, SameBitsUnderACausalMask) {
  TESSERA_NEEDS_GPU();
  const int heads = 2 * core::cuda_info(0, nullptr)->units / GetParam().tiles + 3;
  const std::string text = "bwd bf16 b1 hq" + std::to_string(GetParam().group * heads) + " hkv" +
                           std::to_string(heads) + " " + GetParam().text + " causal deterministic cuda";
  EXPECT_GT(check_on_gpu(text), 0);
  baselines::OperandSet operands = operands_of(text);
  judge(operands);  // o and lse
  GpuCase gpu(std::move(operands));
  const core::Problem& p = gpu.plan.problem;
  std::vector<std::byte> first;
  for (int run = 0; run < 2; ++run) {
    tessera_status status{};
    ASSERT_EQ(gpu.run("", &status), TESSERA_OK) << status.message;
    const auto* dq = static_cast<const std::byte*>(gpu.set.tensors.dq);
    const std::vector<std::byte> bits(dq, dq + 2 * p.batch * p.seqlen_q * p.heads_q * p.head_dim_qk);
    if (run == 0) first = bits;
    EXPECT_TRUE(bits == first);
  }
}

INSTANTIATE_TEST_SUITE_P(Words, GpuBackwardOrder,
                         ::testing::Values(OrderCase{"sq200 sk300 d64", 1, 5}, OrderCase{"sq300 sk300 d128", 1, 5},
                                           OrderCase{"sq150 sk150 d256", 1, 3}, OrderCase{"sq300 sk200 d64", 3, 4},
                                           OrderCase{"sq200 sk270 d128 dlse", 4, 5},
                                           OrderCase{"sq150 sk190 d256", 4, 3},
                                           OrderCase{"sq130 sk130 d192 softcap=9", 2, 3}));

// So many heads that Hopper's blocks zero dq's sums of later ones and, past d 128 and with 1024 query rows a key/value
// head, convert those of earlier ones: three groups of heads and one more, where a group fits a quarter of L2 or, under
// a causal mask, makes a wave of blocks. `text` has `bytes` of Q, dO and sums a head, if causal three key tiles, one
// batch.
struct HeadsCase {
  const char* text;
  int group;  // query heads of a key/value head
  int64_t bytes;
};
class GpuBackwardHeads : public ::testing::TestWithParam<HeadsCase> {};

TEST_P(GpuBackwardHeads, SumsOfOtherHeads) {
  TESSERA_NEEDS_GPU();
  const core::DeviceInfo& device = *core::cuda_info(0, nullptr);
  const std::string text = GetParam().text;
  int64_t together = std::max<int64_t>(device.l2_bytes / 4 / (GetParam().group * GetParam().bytes), 1);
  if (text.find("causal") != std::string::npos) together = std::max<int64_t>(together, device.units / 3);
  const int64_t heads = 3 * together + 1;
  check_backward("bwd bf16 b1 hq" + std::to_string(GetParam().group * heads) + " hkv" + std::to_string(heads) + " " +
                 text);
}

INSTANTIATE_TEST_SUITE_P(Words, GpuBackwardHeads,
                         ::testing::Values(HeadsCase{"sq130 sk100 d248", 8, 130 * 1984},
                                           HeadsCase{"sq94 sk70 d192 dv128 softcap=9 dlse", 11, 94 * 1408},
                                           HeadsCase{"sq150 sk150 d256 causal", 1, 150 * 2048},
                                           HeadsCase{"sq200 sk270 d128", 2, 200 * 1024},
                                           HeadsCase{"sq270 sk270 d64 causal", 1, 270 * 512}));

// Heads of which no query sees a key, between others and beyond the heads that preprocess would zero: their dq is 0.
TEST(GpuBackwardUnseen, HeadsAmongOthers) {
  TESSERA_NEEDS_GPU();
  const core::DeviceInfo& device = *core::cuda_info(0, nullptr);
  for (const char* text : {"sq130 d256 lens=130:0:0:130", "sq130 d128 lens=130:0:0:130", "sq130 sk0 d256"}) {
    const int64_t heads = std::max<int64_t>(device.l2_bytes / 4 / (int64_t{130} * 2048), 1);
    const std::string many = std::to_string(heads);
    check_backward("bwd bf16 b4 hq" + many + " hkv" + many + " " + text);
  }
}

// Every way in which d_bias shares an element, in each dtype it may have; what no key reaches is 0.
TEST(GpuBackwardBias, EveryBroadcast) {
  TESSERA_NEEDS_GPU();
  for (int shared = 0; shared < 15; ++shared) {
    tessera_problem problem;
    core::TextExtras extras;
    const std::string text = "bwd bf16 b2 hq4 hkv2 sq131 sk165 d8 bias dbias window=100,60 cuda";
    ASSERT_EQ(core::parse_problem(text, &problem, &extras, nullptr), TESSERA_OK);
    const int64_t extent[4] = {2, 4, 131, 165};
    int64_t stride = 1;
    for (int d = 3; d >= 0; --d) {
      const bool broadcasts = (shared >> d & 1) != 0;
      problem.bias.stride[d] = problem.d_bias.stride[d] = broadcasts ? 0 : stride;
      if (!broadcasts) stride *= extent[d];
    }
    problem.bias.dtype = shared % 2 == 0 ? problem.q.dtype : TESSERA_F32;
    problem.d_bias.dtype = shared % 3 == 0 ? TESSERA_F32 : problem.bias.dtype;
    EXPECT_GT(check_on_gpu(baselines::make_operands(problem, extras), text + " shared dims " + std::to_string(shared)),
              0);
  }
}

TEST(GpuBackwardTypes, FloatGradientsOfNarrowInputs) {
  TESSERA_NEEDS_GPU();
  for (const char* dtype : {"f16", "bf16"}) {
    for (const char* dims : {"d40", "d96", "d128 dv64", "d256"}) {
      tessera_problem problem;
      core::TextExtras extras;
      const std::string text = std::string("bwd ") + dtype + " b2 hq4 hkv2 sq70 sk90 " + dims + " o=f32 causal cuda";
      ASSERT_EQ(core::parse_problem(text, &problem, &extras, nullptr), TESSERA_OK);
      problem.d_o.dtype = problem.q.dtype;
      problem.dq.dtype = problem.dk.dtype = problem.dv.dtype = TESSERA_F32;
      EXPECT_GT(check_on_gpu(baselines::make_operands(problem, extras), text), 0);
    }
  }
}

// An lse far below -88, where e^lse is 0 in float32, at lengths around tiles of 128.
TEST(GpuBackwardTerms, LseFarBelowZeroAtEveryRemainder) {
  TESSERA_NEEDS_GPU();
  for (const int64_t remainder : {1, 63, 64, 65, 127}) {
    for (const int64_t length : {remainder, 128 + remainder}) {
      const std::string text =
          "bwd bf16 b1 hq2 sq" + std::to_string(length) + " sk" + std::to_string(length) + " d64 causal bias=h";
      baselines::OperandSet operands = operands_of(text + " cuda");
      auto* bias = static_cast<uint16_t*>(const_cast<void*>(operands.tensors.bias));
      for (int64_t i = 0; i < 2 * length * length; ++i) bias[i] = 0xc348;  // -200 in bf16
      EXPECT_GT(check_on_gpu(std::move(operands), text), 0);
    }
  }
}

// Lengths around every tile edge, in small.
TEST(GpuBackwardSizes, AroundTileEdges) {
  TESSERA_NEEDS_GPU();
  for (const int64_t sq : {1, 31, 33, 63, 64, 65, 129}) {
    for (const int64_t sk : {1, 15, 17, 63, 65, 127, 129}) {
      const std::string sizes = "sq" + std::to_string(sq) + " sk" + std::to_string(sk);
      check_backward("bwd bf16 b1 hq2 hkv1 " + sizes + " d32 causal");
      check_backward("bwd f16 b1 hq1 hkv1 " + sizes + " d128 window=9,4");
    }
  }
}

// Every code path of every kernel on the smallest operands, for compute-sanitizer. Workspaces are left uninitialised.
TEST(GpuSanitizer, SmallBackwardCases) {
  TESSERA_NEEDS_GPU();
  for (const char* text :
       {"bwd bf16 b1 hq2 hkv1 sq129 sk257 d64 causal", "bwd f16 b1 hq2 hkv2 sq70 sk130 d64 deterministic",
        "bwd bf16 b1 hq1 sq33 sk65 d96 window=20,3", "bwd f16 b2 hq1 sq65 sk70 d128 packed lens=40:0 causal",
        "bwd bf16 b1 hq2 hkv1 sq65 sk260 d128 causal deterministic", "bwd f16 b1 hq1 sq65 sk66 d192",
        "bwd bf16 b1 hq1 sq65 sk130 d256 dv72 causal", "bwd bf16 b1 hq2 sq33 sk70 d64 bias=1 dbias",
        "bwd f16 b1 hq1 sq20 sk65 d128 alibi bias=bh dbias", "bwd bf16 b1 hq1 sq20 sk65 d256 softcap=9 sinks dlse",
        "bwd bf16 b1 hq2 sq66 sk130 d64 softcap=9"}) {
    SCOPED_TRACE(text);
    for (const std::string& row : gpu_rows()) {
      if (row == "cuda.textbook") continue;  // cuBLAS is not ours to check
      SCOPED_TRACE(row);
      GpuCase gpu(std::string(text) + " cuda");
      gpu.poison_workspace = false;
      const Judged judged = judge(gpu.set);
      tessera_status status{};
      const int code = gpu.run(row, &status);
      if (code == TESSERA_UNSUPPORTED) continue;
      ASSERT_EQ(code, TESSERA_OK) << status.message;
      const auto comparisons = baselines::compare(gpu.plan.problem, gpu.set.tensors, &judged.exact, &judged.naive);
      EXPECT_TRUE(baselines::worst(comparisons).passed) << baselines::worst(comparisons).max_abs_error;
      EXPECT_TRUE(gpu.set.canaries_intact());
    }
  }
}

#ifdef TESSERA_EMULATED
constexpr int kRepeats = 2;  // under one seed of the emulator's orders they are the same run
#else
constexpr int kRepeats = 30;
#endif

// Nothing but dq may differ between runs, and in deterministic mode nothing does.
TEST(GpuBackwardRepeats, BitsOfRepeatedRuns) {
  TESSERA_NEEDS_GPU();
  const int heads = core::cuda_info(0, nullptr)->units / 2 + 1;  // three key tiles a multiprocessor
  for (const std::string& words :
       {std::string("b2 hq4 hkv2 sq300 sk400 d128 causal"),
        std::string("b2 hq4 hkv2 sq200 sk260 d64 sinks dlse softcap=8"),
        std::string("b3 hq2 sq150 sk170 d256 packed lens=longtail"), std::string("b1 hq2 sq90 sk200 d192 bias=1 dbias"),
        "b2 hq" + std::to_string(heads) + " sq130 sk260 d128 causal"}) {
    for (const bool deterministic : {false, true}) {
      SCOPED_TRACE(words + (deterministic ? " deterministic" : ""));
      GpuCase gpu("bwd bf16 " + words + (deterministic ? " deterministic" : "") + " cuda");
      std::vector<std::vector<std::byte>> first;
      for (int run = 0; run < kRepeats; ++run) {
        tessera_status status{};
        ASSERT_EQ(gpu.run("", &status), TESSERA_OK) << status.message;
        std::vector<std::vector<std::byte>> bits;
        for (const size_t index : gpu.set.outputs) {
          const baselines::Buffer& buffer = gpu.set.buffers[index];
          if (!deterministic && buffer.data() == gpu.set.tensors.dq) continue;
          bits.emplace_back(buffer.data(), buffer.data() + buffer.bytes());
        }
        if (run == 0) first = bits;
        ASSERT_TRUE(bits == first) << "run " << run;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::tests
