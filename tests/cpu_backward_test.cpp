// The CPU backward rows where the common cases do not reach: lengths around every tile edge, stretches of keys whose dq
// is summed afterwards, every way a bias gradient broadcasts, scores far from zero, and central differences of the
// library's own forward pass. Several suites, each of which an emulated processor ends in time.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cases.hpp"
#include "judged_run.hpp"
#include "sanitized.hpp"

namespace tessera::tests {
namespace {

using baselines::OperandSet;

// The rows "cpu.<isa>.backward" that this machine can run and that take every problem here: those of vectors.
std::vector<std::string> backward_rows() {
  std::vector<std::string> rows;
  const OperandSet operands = operands_of("bwd f64 sq1 sk1 d1");
  for (const core::KernelEntry* entry : library_rows()) {
    if (std::string_view(entry->name).ends_with(".backward") && run_pinned(operands, entry->name).code == TESSERA_OK) {
      rows.emplace_back(entry->name);
    }
  }
  EXPECT_FALSE(rows.empty());
  return rows;
}

void check_vector_rows(const OperandSet& operands, const Judged& judged, const std::string& what) {
  for (const std::string& row : backward_rows()) {
    RunResult result;
    EXPECT_EQ(check_row(operands, judged, row, &result), "") << what;
    EXPECT_EQ(result.code, TESSERA_OK) << what << ": " << result.message;
  }
}
void check(const OperandSet& operands, const std::string& what) {
  const Judged judged = judge(operands);
  check_vector_rows(operands, judged, what);
  for (const char* row : {"cpu.amx.backward", "cpu.amx_emulated.backward"}) {  // run or refuse
    RunResult result;
    EXPECT_EQ(check_row(operands, judged, row, &result), "") << what;
  }
}
void check(const std::string& text) { check(operands_of(text), text); }

TEST(CpuBackward, LengthsAroundStripsAndVectors) {
  int turn = 0;
  for (int64_t sq : {1, 2, 5, 6, 7, 13, 14, 15, 28, 29, 113}) {
    for (int64_t sk : {1, 15, 16, 17, 31, 32, 33, 65, 257}) {
      const std::string sizes = "sq" + std::to_string(sq) + " sk" + std::to_string(sk);
      const char* dtype = ++turn % 2 == 0 ? "f32" : "f64";
      check(std::string("bwd ") + dtype + " b1 hq3 hkv1 " + sizes + " d20 dv18 causal");
      check("bwd bf16 b1 hq2 hkv2 " + sizes + " d16 window=9,4");
    }
  }
}

TEST(CpuBackwardTerms, ChunksStretchesAndTerms) {
  for (const char* dtype : {"f64", "f32", "f16", "bf16"}) {
    for (const char* rest :
         {"sq40 sk255 d64", "sq130 sk256 d64 causal", "sq40 sk257 d64 sinks dlse", "sq30 sk1200 d64 window=300,-1",
          "sq30 sk1100 d64 window=0,0", "sq20 sk520 d40 causal alibi softcap=3 bias=bh dbias sinks dlse",
          "sq20 sk520 d40 causal mask topleft sinks", "sq9 sk70 d576 dv512", "sq90 sk300 d1 dv1",
          "sq70 sk30 d32 causal sinks dlse", "sq33 sk90 d96 dv80", "sq33 sk90 d16 dv112"}) {
      check(std::string("bwd ") + dtype + " b2 hq4 hkv2 " + rest);
    }
  }
}

TEST(CpuBackward, UsedLengthsAndPackedRows) {
  for (const char* dtype : {"f64", "f32", "f16", "bf16"}) {
    for (const char* rest : {"lens=130:0:7", "packed lens=130:0:7", "packed lens=130:1:64 causal alibi sinks dlse",
                             "lens=longtail window=40,0 bias=h dbias", "packed lens=longtail layout=bhsd softcap=4",
                             "lens=0:0:0 sinks dlse bias=1 dbias"}) {
      check(std::string("bwd ") + dtype + " b3 hq6 hkv2 sq130 sk150 d24 " + rest);
    }
  }
}

// Every way in which d_bias shares an element, in each dtype it may have; what no key reaches is 0.
TEST(CpuBackwardBias, BiasGradientsOfEveryBroadcast) {
  for (const char* dtype : {"f32", "bf16", "f64"}) {
    for (int shared = 0; shared < 16; ++shared) {
      tessera_problem problem;
      core::TextExtras extras;
      const std::string text = std::string("bwd ") + dtype + " b2 hq4 hkv2 sq131 sk265 d8 bias dbias window=100,60";
      ASSERT_EQ(core::parse_problem(text, &problem, &extras, nullptr), TESSERA_OK);
      const int64_t extent[4] = {2, 4, 131, 265};
      int64_t stride = 1;
      for (int d = 3; d >= 0; --d) {
        const bool broadcasts = (shared >> d & 1) != 0;
        problem.bias.stride[d] = problem.d_bias.stride[d] = broadcasts ? 0 : stride;
        if (!broadcasts) stride *= extent[d];
      }
      if (shared == 15) continue;  // one number for all: no strides, which text reads as absent
      problem.bias.dtype = shared % 2 == 0 ? problem.q.dtype : TESSERA_F32;
      problem.d_bias.dtype = shared % 3 == 0 ? TESSERA_F32 : problem.bias.dtype;
      check(baselines::make_operands(problem, extras), text + " shared dims " + std::to_string(shared));
    }
  }
}

TEST(CpuBackward, GradientsInFloatOfNarrowInputs) {
  for (const char* dtype : {"f16", "bf16"}) {
    tessera_problem problem;
    core::TextExtras extras;
    ASSERT_EQ(core::parse_problem(std::string("bwd ") + dtype + " b2 hq4 hkv2 sq70 sk90 d40 o=f32 causal", &problem,
                                  &extras, nullptr),
              TESSERA_OK);
    problem.d_o.dtype = problem.q.dtype;
    problem.dq.dtype = problem.dv.dtype = TESSERA_F32;
    check(baselines::make_operands(problem, extras), dtype);
  }
}

// An lse far below -88, where e^lse is 0 in float32, at lengths around tiles of 128.
TEST(CpuBackwardTerms, LseFarBelowZeroAtEveryRemainder) {
  for (const int64_t remainder : {1, 63, 64, 65, 127}) {
    for (const int64_t length : {remainder, 128 + remainder, 256 + remainder}) {
      for (const double shift : {-90.0, -200.0, 200.0, -30000.0}) {
        const char* dtype = length < 128 ? "f64" : length < 256 ? "f32" : "bf16";
        const std::string text =
            std::string("bwd ") + dtype + " b1 hq2 hkv1 sq" + std::to_string(length) + " d16 causal dlse bias=1 dbias";
        tessera_problem problem;
        core::TextExtras extras;
        ASSERT_EQ(core::parse_problem(text, &problem, &extras, nullptr), TESSERA_OK);
        problem.bias.dtype = problem.d_bias.dtype = TESSERA_F32;
        const OperandSet operands = baselines::make_operands(problem, extras);
        auto* bias = static_cast<float*>(const_cast<void*>(operands.tensors.bias));
        for (int64_t i = 0; i < length * length; ++i) bias[i] += static_cast<float>(shift);
        check(operands, text + " shifted by " + std::to_string(shift));
      }
    }
  }
}

// Bytes of the logical rows of dq, dk and dv of the first sequence, heads innermost.
std::vector<std::byte> first_sequence(const OperandSet& operands) {
  const tessera_problem& p = operands.problem;
  const int64_t size = core::dtype_bytes(p.q.dtype);
  std::vector<std::byte> bytes;
  const auto append = [&](const void* data, int64_t count) {
    const auto* from = static_cast<const std::byte*>(data);
    bytes.insert(bytes.end(), from, from + count * size);
  };
  append(operands.tensors.dq, p.seqlen_q * p.heads_q * p.head_dim_qk);
  append(operands.tensors.dk, p.seqlen_k * p.heads_kv * p.head_dim_qk);
  append(operands.tensors.dv, p.seqlen_k * p.heads_kv * p.head_dim_v);
  return bytes;
}

// Few (sequence, key head) pairs for many threads: a task takes a stretch of keys, and dq is summed afterwards. Many
// pairs or one thread: a task takes them all. The bits are the same, alone and with batch mates.
TEST(CpuBackwardBitsFull, StretchesAndBatchMatesChangeNoBit) {
  struct Seen {
    std::vector<std::byte> bytes;
    int in_stretches = 0, whole = 0;
  };
  for (const char* words : {"f32 hq2 hkv1 sq70 sk1700 d32 causal", "bf16 hq1 sq200 sk1024 d64 window=900,20 dlse",
                            "f64 hq2 hkv2 sq40 sk1030 d16 sinks softcap=2"}) {
    std::map<std::string, Seen> seen_of_row;
    for (const int batch : {1, 3, 9}) {
      if (kSanitized && batch == 3) continue;
      OperandSet operands = operands_of(std::string("bwd ") + words + " b" + std::to_string(batch));
      const Judged judged = judge(operands);
      for (const std::string& row : backward_rows()) {
        Seen& seen = seen_of_row[row];
        for (const int threads : {1, 2, 8}) {
          if (kSanitized && threads == 2) continue;
          operands.problem.threads = threads;
          RunResult result;
          EXPECT_EQ(check_row(operands, judged, row, &result), "") << words;
          ++(std::strstr(result.plan.launch.schedule, "stretch") != nullptr ? seen.in_stretches : seen.whole);
          if (seen.bytes.empty()) seen.bytes = first_sequence(operands);
          EXPECT_EQ(first_sequence(operands), seen.bytes) << row << ' ' << words << ' ' << threads << ' ' << batch;
        }
      }
    }
    for (const auto& [row, seen] : seen_of_row) {
      EXPECT_GT(seen.in_stretches, 0) << row;
      EXPECT_GT(seen.whole, 0) << row;
    }
  }
}

TEST(CpuBackwardBitsFull, WhatTheWorkspaceHoldsDoesNotMatter) {
  const OperandSet operands = operands_of("bwd f32 b2 hq2 hkv1 sq70 sk1100 d72 dv40 causal bias=1 dbias sinks dlse");
  const Judged judged = judge(operands);
  for (const std::string& row : backward_rows()) {
    RunResult result;
    EXPECT_EQ(check_row(operands, judged, row, &result), "");  // all bits set
    const std::vector<std::byte> expected = output_bytes(operands);
    const baselines::Buffer workspace(static_cast<size_t>(result.plan.launch.workspace_bytes), 256);
    for (const int fill : {0x00, 0x3f, 0x7f}) {
      std::memset(workspace.data(), fill, workspace.bytes());
      operands.poison_outputs();
      tessera_status status{};
      EXPECT_EQ(core::run_plan(result.plan, &operands.tensors, workspace.data(), workspace.bytes(), nullptr, &status),
                TESSERA_OK)
          << status.message;
      EXPECT_EQ(output_bytes(operands), expected) << row << " after " << fill;
    }
  }
}

// sum(d_o * o) + sum(d_lse * lse) by the library's own forward pass.
class OwnDifferences {
 public:
  OwnDifferences(const std::string& text, const std::string& row) : operands_(operands_of(text)) {
    forward_ = operands_.problem;
    forward_.pass = TESSERA_FORWARD;
    forward_.flags &= ~(TESSERA_FLAG_D_LSE | TESSERA_FLAG_D_SINKS | TESSERA_FLAG_D_BIAS);
    forward_.flags |= TESSERA_FLAG_LSE;
    (void)objective();
    EXPECT_EQ(run_pinned(operands_, row).code, TESSERA_OK) << row;
  }

  void check(const char* name, const void* input, const void* gradient, int64_t count) {
    constexpr double kStep = 0x1p-17;
    auto* values = static_cast<double*>(const_cast<void*>(input));
    const std::vector<double> got(static_cast<const double*>(gradient), static_cast<const double*>(gradient) + count);
    for (int64_t i = 0; i < count; ++i) {
      const double before = values[i];
      if (!std::isfinite(before)) continue;
      values[i] = before + kStep;
      const double above = objective();
      values[i] = before - kStep;
      const double below = objective();
      values[i] = before;
      EXPECT_NEAR(got[static_cast<size_t>(i)], (above - below) / (2 * kStep), 2e-7) << name << ' ' << i;
    }
  }

  void check_all() {
    const tessera_problem& p = operands_.problem;
    const tessera_tensors& t = operands_.tensors;
    check("dq", t.q, t.dq, p.batch * p.seqlen_q * p.heads_q * p.head_dim_qk);
    check("dk", t.k, t.dk, p.batch * p.seqlen_k * p.heads_kv * p.head_dim_qk);
    check("dv", t.v, t.dv, p.batch * p.seqlen_k * p.heads_kv * p.head_dim_v);
    if (t.d_bias != nullptr) check("d_bias", t.bias, t.d_bias, p.heads_q * p.seqlen_q * p.seqlen_k);
  }

 private:
  double objective() {
    core::Plan plan;
    tessera_status status{};
    EXPECT_EQ(core::make_plan(forward_, {}, &plan, &status), TESSERA_OK) << status.message;
    const baselines::Buffer workspace(static_cast<size_t>(plan.launch.workspace_bytes), 256);
    EXPECT_EQ(core::run_plan(plan, &operands_.tensors, workspace.data(), workspace.bytes(), nullptr, &status),
              TESSERA_OK)
        << status.message;
    const tessera_problem& p = operands_.problem;
    const auto *o = static_cast<const double*>(operands_.tensors.o), *lse = static_cast<double*>(operands_.tensors.lse),
               *d_o = static_cast<const double*>(operands_.tensors.d_o),
               *d_lse = static_cast<const double*>(operands_.tensors.d_lse);
    const int64_t rows = p.batch * p.seqlen_q * p.heads_q;
    double sum = 0;
    for (int64_t i = 0; i < rows * p.head_dim_v; ++i) sum += d_o[i] * o[i];
    for (int64_t i = 0; d_lse != nullptr && i < rows; ++i) {
      if (std::isfinite(lse[i])) sum += d_lse[i] * lse[i];
    }
    return sum;
  }

  OperandSet operands_;
  tessera_problem forward_;
};

TEST(CpuBackward, AgreesWithCentralDifferencesOfForward) {
  for (const std::string& row : backward_rows()) {
    for (const char* words : {"", "causal dlse", "window=2,1 softcap=1.5", "alibi sinks dlse causal",
                              "bias=h dbias softcap=1 dlse", "mask causal", "scale=-0.8 topleft causal"}) {
      SCOPED_TRACE(row + ' ' + words);
      OwnDifferences(std::string("bwd f64 b2 hq4 hkv2 sq5 sk6 d3 dv2 ") + words, row).check_all();
    }
    OwnDifferences("bwd f64 b1 hq2 hkv1 sq6 sk3 d2 causal sinks dlse", row).check_all();
  }
}

TEST(CpuBackward, WorkspaceGrowsWithTheRowsAlone) {
  // 32768 x 32768 in float32: S alone would be 4 GiB; q is 8 MiB a head.
  for (const std::string& row : backward_rows()) {
    for (const char* words : {"hq1", "hq16 threads=2", "hq32 threads=64"}) {
      tessera_problem problem;
      const std::string text = std::string("bwd f32 sq32768 d64 cpu ") + words;
      ASSERT_EQ(core::parse_problem(text, &problem, nullptr, nullptr), TESSERA_OK);
      std::snprintf(problem.kernel, sizeof problem.kernel, "%s", row.c_str());
      core::Plan plan;
      ASSERT_EQ(core::make_plan(problem, {}, &plan, nullptr), TESSERA_OK);
      const int64_t heads = problem.heads_q;
      EXPECT_LT(plan.launch.workspace_bytes, (int64_t{36} * 8 << 20) + heads * (int64_t{9} << 20) + (4 << 20)) << text;
    }
  }
}

TEST(CpuBackward, RefusesByName) {
  const struct {
    const char *text, *reason;
  } refusals[] = {
      {"fwd f32 sq8 d8", "runs the backward pass only (pass=fwd)"},
      {"bwd f32 sq8 d577", "head_dim_qk above 576 (head_dim_qk=577)"},
      {"bwd f32 sq8 d8 dv513", "head_dim_v above 512 (head_dim_v=513)"},
      {"bwd f32 sq8 d8 splits=2", "takes no splits"},
      {"bwd f32 hq1048576 hkv1 sq2147483647 d64", "past 2^60 bytes for these queries (seqlen_q=2147483647)"},
      {"bwd bf16 sq8 d8 kv=int8", "takes k in q's dtype (k.dtype=int8)"}};
  for (const auto& [text, reason] : refusals) {
    for (const std::string& row : backward_rows()) {
      tessera_problem problem;
      ASSERT_EQ(core::parse_problem(text, &problem, nullptr, nullptr), TESSERA_OK);
      std::snprintf(problem.kernel, sizeof problem.kernel, "%s", row.c_str());
      core::Plan plan;
      tessera_status status{};
      EXPECT_EQ(core::make_plan(problem, {}, &plan, &status), TESSERA_UNSUPPORTED) << text;
      EXPECT_NE(std::string_view(status.message).find(reason), std::string_view::npos) << status.message;
    }
  }
}

TEST(CpuBackwardFull, EveryPairOfLengthsAroundTiles) {
  const int sizes[] = {1, 2, 63, 64, 65, 79, 80, 81, 127, 128, 129, 191, 192, 193, 255, 256, 257};
  int turn = 0;
  for (const int sq : sizes) {
    for (const int sk : sizes) {
      if (++turn % 3 != 0 && kSanitized) continue;  // of 17 sizes each with five or six others
      const char* dim = turn % 7 == 0 ? " d128" : turn % 11 == 0 ? " d192" : " d64";
      const char* dtype = turn / 3 % 3 == 0 ? "f32" : turn / 3 % 3 == 1 ? "f16" : "bf16";
      check(std::string("bwd ") + dtype + " sq" + std::to_string(sq) + " sk" + std::to_string(sk) + dim +
            (turn % 2 == 0 ? " causal" : ""));
    }
  }
  check("bwd f16 hq16 sq3 sk7 d192 scale=0.1147 causal");
}

// Dao-AILab/flash-attention#2402: a capped causal backward pass that never ended; dense and packed.
TEST(CpuBackwardFull, CappedCausalGradientsEnd) {
  check(std::string("bwd f16 b1 sq1024 d128 softcap=10 causal hq") + (kSanitized ? "1" : "4"));
  check("bwd f16 b2 hq2 sq1024 d128 softcap=10 causal packed lens=1024:500");
}

// Dao-AILab/flash-attention#2562: the lengths as reported.
TEST(CpuBackwardSizesFull, SequencesWithoutQueriesAsReported) {
  tessera_problem problem;
  core::TextExtras extras;
  const std::string words = std::string("bwd bf16 b4 hkv1 sq1208 sk3072 d64 packed hq") + (kSanitized ? "1" : "4");
  ASSERT_EQ(core::parse_problem(words.c_str(), &problem, &extras, nullptr), TESSERA_OK);
  extras.lens = {0, 1208, 840, 0};
  extras.lens_k = {2538, 1742, 840, 3072};
  problem.total_q = 2048;
  problem.total_k = 8192;
  check(baselines::make_operands(problem, extras), "cu_q 0 0 1208 2048 2048");
}

// pytorch/pytorch#142228: more batches or heads than a grid has blocks. The tiles refuse single queries, and emulated
// they would take minutes for 32 rows of each.
TEST(CpuBackwardSizesFull, MoreBatchesOrHeadsThanAGrid) {
  for (const char* text : {"bwd f16 b65537 hq2 sq1 d16", "bwd f16 b1 hq65537 sq1 d16"}) {
    const OperandSet operands = operands_of(text);
    check_vector_rows(operands, judge(operands), text);
  }
}

}  // namespace
}  // namespace tessera::tests
