// The backward rows on matrix tiles against the judge: emulated on any machine, with the instructions where the CPU and
// the kernel permit them. Their cases go around units of 32 rows and keys, and around what bf16 parts can hold.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "element.hpp"
#include "judged_run.hpp"
#include "sanitized.hpp"
#include "tile_rows.hpp"

namespace tessera::tests {
namespace {

using baselines::OperandSet;

constexpr const char* kEmulated = "cpu.amx_emulated.backward";
constexpr const char* kNative = "cpu.amx.backward";

void check(const OperandSet& operands, const std::string& what) { check_tile_rows(operands, "backward", what); }
void check(const std::string& text) { check(operands_of(text), text); }

TEST(AmxBackward, BandsAndTerms) {
  int turn = 0;
  const auto check_terms = [&](const std::string& words) {
    for (const char* dtype : {"f32", "bf16", "f16"})
      check(std::string("bwd ") + dtype + " b2 hq4 hkv2 " + kTileSizes[turn++ % 6] + " d32 " + words);
  };
  for (const char* words : kTileTerms) check_terms(words);
  for (const char* words : {"topleft causal", "sinks window=3,0", "window=5,9", "bias=h"})
    check_terms(std::string(words) + " dlse");
  check_terms("alibi softcap=7 bias=b causal");
  check_terms("alibi softcap=7 sinks causal dlse");
}

TEST(AmxBackward, HeadDimsAndGroups) {
  constexpr const char* kTypes[] = {"f32", "bf16", "f16"};
  int turn = 0;
  for (const char* dims : kTileDims) {
    check(std::string("bwd ") + kTypes[turn % 3] + " b1 " + kTileHeads[turn % 4] + " sq37 sk70 causal " + dims);
    ++turn;
  }
}

TEST(AmxBackward, LayoutsLengthsAndEmptyRows) {
  constexpr const char* kWords[] = {"packed lens=longtail causal",
                                    "packed lens=70:0:1",
                                    "packed lens=0:0:0",
                                    "lens=70:1:0",
                                    "lens=17:70:64 causal",
                                    "layout=bhsd causal",
                                    "packed layout=bhsd lens=70:3:40 window=9,2 dlse"};
  for (const char* words : kWords)
    for (const char* dtype : {"f32", "bf16"})
      check(std::string("bwd ") + dtype + " b3 hq4 hkv2 sq70 sk70 d24 " + words);
  for (const char* text : {"bf16 hq2 sq90 sk20 d16 causal", "f32 hq2 sq40 sk8 d16 window=0,0 topleft",
                           "f32 hq2 sq40 sk0 d16", "f16 hq2 sq40 sk0 d16 sinks dlse", "f32 hq2 sq0 sk40 d16"})
    check(std::string("bwd ") + text);
}

// One key takes all of a row, whose gradient is 0 but for rounding; scores far from 0, where exp turns their absolute
// error into a relative one. In float32 it is larger heads that need the first parts' products last, and the rounding
// of lse itself passes the tolerance from a scale of 3 or 10 on, in every row.
TEST(AmxBackward, OneKeyAndLargeScores) {
  for (const char* dtype : {"f32", "f16", "bf16"}) {
    check(std::string("bwd ") + dtype + " hq2 sq70 sk1 d64");
    for (const char* scale : {"1", "3", "10", "30", "100"})
      if (std::strcmp(dtype, "f32") != 0 || std::strcmp(scale, "1") == 0)
        check(std::string("bwd ") + dtype + " sq96 sk160 d128 hq2 causal scale=" + scale);
  }
  for (const char* text : {"sq100 sk256 d256 scale=1", "sq100 sk256 d256 scale=3", "sq96 sk160 d64 hq2 scale=3",
                           "sq33 sk65 d256 dv16 hq2 scale=3", "sq64 sk33 d72 hq3 window=5,50 alibi scale=3"})
    check(std::string("bwd f32 ") + text);
}

void multiply_floats(const OperandSet& operands, const void* data, float factor) {
  for (const baselines::Buffer& buffer : operands.buffers) {
    if (buffer.data() != data) continue;
    for (size_t i = 0; i + sizeof(float) <= buffer.bytes(); i += sizeof(float)) {
      float value;
      std::memcpy(&value, buffer.data() + i, sizeof value);
      if (!std::isfinite(value)) continue;
      value *= factor;
      std::memcpy(buffer.data() + i, &value, sizeof value);
    }
  }
}

// Magnitudes at which the lower parts of a float leave the normal numbers, or the first is near the largest.
TEST(AmxBackward, HugeAndTinyInputs) {
  for (const float power : {0x1p-60f, 0x1p-90f, 0x1p60f, 0x1p90f}) {
    const OperandSet scaled = operands_of("bwd f32 hq2 sq40 sk70 d24 causal");
    multiply_floats(scaled, scaled.tensors.q, power);
    multiply_floats(scaled, scaled.tensors.k, 1 / power);
    check(scaled, "q times " + std::to_string(std::log2(power)) + " powers of two, k the rest");
  }
  for (const float power : {0x1p-100f, 0x1p-125f}) {
    const OperandSet small = operands_of("bwd f32 hq2 sq40 sk70 d24 causal");
    multiply_floats(small, small.tensors.d_o, power);
    check(small, "tiny d_o");
  }
  const OperandSet large = operands_of("bwd f32 hq2 sq40 sk70 d24");
  multiply_floats(large, large.tensors.k, 0x1p-120f);
  for (const baselines::Buffer& buffer : large.buffers) {
    if (buffer.data() != large.tensors.q) continue;
    const float most = std::numeric_limits<float>::max();
    std::memcpy(buffer.data(), &most, sizeof most);
  }
  check(large, "the largest float in q");
}

#if defined(__x86_64__)
// Rows and keys that a NaN or an infinity in an input reaches, as on vectors: all of them hold no number after it, and
// nothing that the band keeps apart by a tile does.
TEST(AmxBackward, InputsThatAreNotFiniteReachTheirRows) {
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()}) {
    for (const int which : {0, 1, 2, 3}) {
      OperandSet operands = operands_of("bwd f32 sq128 sk128 d32 causal");
      (void)judge(operands);
      const void* const inputs[] = {operands.tensors.q, operands.tensors.k, operands.tensors.v, operands.tensors.d_o};
      constexpr int64_t kRow = 70, kDim = 32;  // in the third unit: what it reaches lies in the last two
      std::memcpy(static_cast<std::byte*>(const_cast<void*>(inputs[which])) + kRow * kDim * 4, &value, sizeof value);
      const auto finite_rows = [&](const std::string& row) {
        const RunResult result = run_pinned(operands, row);
        EXPECT_EQ(result.code, TESSERA_OK) << result.message;
        std::vector<bool> finite;
        for (const void* data : {operands.tensors.dq, operands.tensors.dk, operands.tensors.dv}) {
          const auto* values = static_cast<const float*>(data);
          for (int64_t r = 0; r < 128; ++r) {
            bool all = true;
            for (int64_t c = 0; c < kDim; ++c) all = all && std::isfinite(values[r * kDim + c]);
            finite.push_back(all);
          }
        }
        return finite;
      };
      const std::vector<bool> vectors = finite_rows("cpu.portable.backward"), tiles = finite_rows(kEmulated);
      for (size_t i = 0; i < vectors.size(); ++i) {
        const std::string at = "input " + std::to_string(which) + ", gradient row " + std::to_string(i);
        const bool is_query = i < 128, before = is_query && i % 128 < 64;
        EXPECT_TRUE(tiles[i] || !before) << at;
        const bool own = which == 0 || which == 3 ? is_query && i % 128 == kRow : is_query && i % 128 >= kRow;
        EXPECT_FALSE(own && !vectors[i] && tiles[i]) << at;
      }
    }
  }
}
#endif

// Few (sequence, key head) pairs for many threads: stretches of keys, whose dq is summed afterwards. The bits are those
// of one thread, and do not depend on what the workspace held.
TEST(AmxBackwardFull, ThreadsBatchMatesAndWorkspaceChangeNoBit) {
  for (const char* words : {"f32 hq2 hkv1 sq70 sk1700 d32 causal", "bf16 hq1 sq200 sk1100 d64 window=900,20 dlse",
                            "f16 hq6 hkv2 sq40 sk1100 d16 sinks softcap=2"}) {
    for (const char* row : {kEmulated, kNative}) {
      std::vector<std::byte> expected;
      bool in_stretches = false, whole = false;
      for (const int threads : {1, 8}) {
        OperandSet operands = operands_of(std::string("bwd b2 ") + words);
        const Judged judged = judge(operands);
        operands.problem.threads = threads;
        RunResult result;
        EXPECT_EQ(check_row(operands, judged, row, &result), "") << words;
        if (result.code != TESSERA_OK) continue;
        const bool stretches = std::strstr(result.plan.launch.schedule, "stretch") != nullptr;
        in_stretches = in_stretches || stretches;
        whole = whole || !stretches;
        if (expected.empty()) expected = output_bytes(operands);
        EXPECT_EQ(output_bytes(operands), expected) << row << ' ' << words << ' ' << threads;
        const baselines::Buffer workspace(static_cast<size_t>(result.plan.launch.workspace_bytes), 256);
        std::memset(workspace.data(), 0x3f, workspace.bytes());
        operands.poison_outputs();
        EXPECT_EQ(core::run_plan(result.plan, &operands.tensors, workspace.data(), workspace.bytes(), nullptr, nullptr),
                  TESSERA_OK);
        EXPECT_EQ(output_bytes(operands), expected) << row << ' ' << words;
      }
      EXPECT_TRUE((in_stretches && whole) || expected.empty()) << row << ' ' << words;
    }
  }
}

TEST(AmxBackward, StridesWithGaps) {
  for (const char* dtype : {"f32", "bf16"}) {
    tessera_problem problem;
    core::TextExtras extras;
    const std::string text = std::string("bwd ") + dtype + " b3 hq4 hkv2 sq40 sk75 d48 causal lens=40:9:33";
    ASSERT_EQ(core::parse_problem(text, &problem, &extras, nullptr), TESSERA_OK);
    for (tessera_desc* desc :
         {&problem.q, &problem.k, &problem.v, &problem.o, &problem.d_o, &problem.dq, &problem.dk, &problem.dv}) {
      desc->align = 2 * (desc->dtype == TESSERA_F32 ? 2 : 1);  // gaps between rows and no more than an element's
      desc->stride[3] = 1;
      desc->stride[1] = 51;
      desc->stride[0] = 51 * 80;
      desc->stride[2] = 51 * 80 * 6 + 1;
    }
    check(baselines::make_operands(problem, extras), text + " with gaps");
  }
}

#if defined(__x86_64__)
TEST(AmxBackward, RefusalsNameTheirReason) {
  const auto refusal = [](const std::string& text, core::Isa isa = core::Isa::amx, bool has_amx = true,
                          int32_t cap = TESSERA_ISA_AUTO) -> std::string {
    core::DeviceInfo device = core::cpu_info();
    device.isa = isa;
    device.has_amx_bf16 = has_amx;
    tessera_problem problem;
    EXPECT_EQ(core::parse_problem(text, &problem, nullptr, nullptr), TESSERA_OK) << text;
    problem.isa = cap;
    for (const core::KernelEntry& row : core::cpu_kernels())
      if (std::strcmp(row.name, kNative) == 0) {
        const core::Refusal answer = row.refuse(validated(problem), device);
        return answer ? core::format_refusal(answer) : "";
      }
    return "no such row";
  };
  for (const char* dtype : {"f32", "f16", "bf16"}) EXPECT_EQ(refusal(std::string("bwd sq64 d64 ") + dtype), "");
  EXPECT_EQ(refusal("bwd bf16 sq64 d8"), "");
  EXPECT_EQ(refusal("bwd bf16 hq32 hkv1 sq1 d64"), "");
  EXPECT_EQ(refusal("bwd bf16 sq64 d64", core::Isa::avx512),
            "this CPU has no AMX, the system does not permit it, or TESSERA_ISA caps it");
  EXPECT_EQ(refusal("bwd bf16 sq64 d64", core::Isa::amx, false),
            "this CPU has no AMX, the system does not permit it, or TESSERA_ISA caps it");
  EXPECT_EQ(refusal("bwd bf16 sq64 d64", core::Isa::amx, true, TESSERA_ISA_AVX512),
            "isa= caps the instruction set below amx");
  EXPECT_EQ(refusal("fwd bf16 sq64 d64"), "runs the backward pass only (pass=fwd)");
  EXPECT_EQ(refusal("bwd f64 sq64 d64"), "takes f32, f16 and bf16 (q.dtype=f64)");
  EXPECT_EQ(refusal("bwd bf16 sq64 d64 bias=bh"), "");
  EXPECT_EQ(refusal("bwd bf16 sq64 d64 bias=bh dbias"), "leaves the gradient of a bias to the vector rows");
  EXPECT_EQ(refusal("bwd bf16 hq2 hkv1 sq15 d64"),
            "fewer than 32 rows of a key head leave its tiles empty (seqlen_q * group=30)");
  EXPECT_EQ(refusal("bwd f32 sq64 d32"), "head dims of f32 that add up to less than 80 (head_dim_qk + head_dim_v=64)");
}
#endif

}  // namespace
}  // namespace tessera::tests
