// The CPU forward rows where the common cases do not reach: lengths around every tile edge against the judge, results
// that must not depend on threads, chunking or the caller's floating-point mode, and non-finite or extreme operands.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "baselines/operands.hpp"
#include "cpu/thread_pool.hpp"
#include "kernel_entry.hpp"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tessera::test {
namespace {

using baselines::OperandSet;

// The vector rows "cpu.<isa>.forward" that this machine can run: those that take f64, as tiles do not.
std::vector<std::string> forward_rows() {
  std::vector<std::string> rows;
  for (const core::KernelEntry& entry : core::cpu_kernels()) {
    const std::string name = entry.name;
    if (name.size() < 8 || name.substr(name.size() - 8) != ".forward") continue;
    tessera_problem problem;
    if (core::parse_problem("fwd f64 sq8 d8 cpu", &problem, nullptr, nullptr) != TESSERA_OK) continue;
    std::snprintf(problem.kernel, sizeof problem.kernel, "%s", entry.name);
    core::Plan plan;
    if (core::make_plan(problem, {}, &plan, nullptr) == TESSERA_OK) rows.push_back(name);
  }
  EXPECT_FALSE(rows.empty());
  return rows;
}

OperandSet operands(const std::string& text) {
  tessera_status status;
  OperandSet set = baselines::make_operands(text, &status);
  EXPECT_EQ(status.code, TESSERA_OK) << text << ": " << status.message;
  return set;
}

// Plans `set` for `row` and runs it.
core::Plan run(const OperandSet& set, const std::string& row, int32_t threads = 0) {
  tessera_problem problem = set.problem;
  std::snprintf(problem.kernel, sizeof problem.kernel, "%s", row.c_str());
  problem.threads = threads;
  core::Plan plan;
  tessera_status status;
  EXPECT_EQ(core::make_plan(problem, {}, &plan, &status), TESSERA_OK) << status.message;
  const baselines::Buffer workspace(static_cast<size_t>(plan.launch.workspace_bytes), 256);
  std::memset(workspace.data(), 0xFF, workspace.bytes());
  set.poison_outputs();
  EXPECT_EQ(core::run_plan(plan, &set.tensors, workspace.data(), workspace.bytes(), nullptr, &status), TESSERA_OK)
      << status.message;
  EXPECT_TRUE(set.canaries_intact()) << row;
  EXPECT_TRUE(workspace.canaries_intact()) << row << " left its workspace";
  return plan;
}

void check_against_judge(const std::string& text) {
  const OperandSet set = operands(text);
  for (const std::string& row : forward_rows()) {
    const core::Plan plan = run(set, row);
    for (const baselines::Comparison& comparison : baselines::compare(plan.problem, set.tensors)) {
      EXPECT_TRUE(comparison.passed) << text << ' ' << row << ": " << comparison.tensor << " is off by "
                                     << comparison.max_abs_error << ", allowed " << comparison.tolerance;
    }
  }
}

TEST(CpuForward, LengthsAroundStripsAndVectors) {
  for (int64_t sq : {1, 2, 5, 6, 7, 13, 14, 15, 28, 29}) {
    for (int64_t sk : {1, 15, 16, 17, 31, 32, 33, 65}) {
      const std::string sizes = "sq" + std::to_string(sq) + " sk" + std::to_string(sk);
      check_against_judge("fwd f32 b1 hq3 hkv1 " + sizes + " d20 dv18 causal");
      check_against_judge("fwd bf16 b1 hq2 hkv2 " + sizes + " d16 window=9,4");
    }
  }
}

TEST(CpuForward, ChunksSplitsAndTerms) {
  for (const char* dtype : {"f64", "f32", "f16", "bf16"}) {
    for (const char* rest :
         {"sq40 sk255 d64", "sq40 sk256 d64 causal", "sq40 sk257 d64 splits=2", "sq30 sk600 d64 window=300,-1",
          "sq30 sk600 d64 window=0,0 splits=5", "sq20 sk520 d40 causal alibi softcap=3 bias=bh sinks",
          "sq20 sk520 d40 causal mask topleft splits=3 sinks", "sq9 sk70 d576 dv512", "sq9 sk300 d1 dv1",
          "sq70 sk30 d32 causal sinks"}) {
      check_against_judge(std::string("fwd ") + dtype + " b2 hq4 hkv2 " + rest + "");
    }
  }
}

std::vector<std::byte> output_bytes(const OperandSet& set, const core::Plan& plan) {
  const core::Problem& p = plan.problem;
  const size_t rows = static_cast<size_t>(p.batch * p.seqlen_q * p.heads_q);
  const size_t o_bytes = rows * static_cast<size_t>(p.head_dim_v) * core::dtype_bytes(p.o.dtype);
  const size_t lse_bytes = rows * static_cast<size_t>(core::dtype_bytes(core::lse_dtype(p.q.dtype)));
  std::vector<std::byte> bytes(o_bytes + lse_bytes);
  std::memcpy(bytes.data(), set.tensors.o, o_bytes);
  std::memcpy(bytes.data() + o_bytes, set.tensors.lse, lse_bytes);
  return bytes;
}

TEST(CpuForward, ThreadsAndBlockSizesChangeNoBit) {
  // Block rows follow the thread count, so this also compares blocks of different size.
  for (const char* text :
       {"fwd f32 b2 hq3 hkv1 sq265 sk457 d64 causal", "fwd bf16 b1 hq1 sq1 sk1024 d64",
        "fwd f64 b1 hq2 sq333 sk100 d24 window=50,50", "fwd f16 b1 hq8 hkv2 sq130 sk300 d128 splits=3"}) {
    const OperandSet set = operands(text);
    for (const std::string& row : forward_rows()) {
      const auto once = output_bytes(set, run(set, row, 1));
      for (int32_t threads : {2, 3, 5, 8, 64}) {
        EXPECT_EQ(output_bytes(set, run(set, row, threads)), once)
            << text << ' ' << row << ' ' << threads << " threads";
      }
    }
  }
}

TEST(CpuForward, PrefillInPiecesEqualsOnePiece) {
  constexpr int64_t kLength = 448, kDim = 48;
  const OperandSet whole = operands("fwd f32 b1 hq2 sq448 d48 causal");
  for (const std::string& row : forward_rows()) {
    run(whole, row);
    const auto* o = static_cast<const float*>(whole.tensors.o);
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 64}, {64, 320}, {320, 448}}) {
      OperandSet piece =
          operands("fwd f32 b1 hq2 sq" + std::to_string(end - begin) + " sk" + std::to_string(end) + " d48 causal");
      piece.tensors.q = static_cast<const float*>(whole.tensors.q) + begin * 2 * kDim;
      piece.tensors.k = whole.tensors.k;
      piece.tensors.v = whole.tensors.v;
      run(piece, row);
      EXPECT_EQ(std::memcmp(piece.tensors.o, o + begin * 2 * kDim,
                            static_cast<size_t>((end - begin) * 2 * kDim) * sizeof(float)),
                0)
          << row << " rows " << begin << " to " << end << " of " << kLength;
    }
  }
}

#if defined(__x86_64__)
TEST(CpuForward, CallersFloatModeNeitherActsNorChanges) {
  // Values below the least normal float, which flushing would turn into zeros.
  const OperandSet set = operands("fwd f32 b1 hq1 sq9 sk20 d16");
  auto* v = const_cast<float*>(static_cast<const float*>(set.tensors.v));
  for (int i = 0; i < 20 * 16; ++i) v[i] *= 1e-40f;
  for (const std::string& row : forward_rows()) {
    const auto expected = output_bytes(set, run(set, row, 1));
    const unsigned saved = _mm_getcsr(),
                   flushing = saved | 0x8040u | 0x6000u;  // flush, denormals are zero, toward zero
    _mm_setcsr(flushing);
    const core::Plan plan = run(set, row, 1);
    const unsigned after = _mm_getcsr();
    _mm_setcsr(saved);
    EXPECT_EQ(after & 0xE040u, flushing & 0xE040u) << row;
    EXPECT_EQ(output_bytes(set, plan), expected) << row;
    EXPECT_NE(static_cast<const float*>(set.tensors.o)[0], 0.0f) << row;
  }
}
#endif

TEST(CpuForward, NanInOneQueryStaysInItsRow) {
  const OperandSet set = operands("fwd f32 b1 hq2 sq16 sk40 d8");
  auto* q = const_cast<float*>(static_cast<const float*>(set.tensors.q));
  for (const std::string& row : forward_rows()) {
    run(set, row);
    const auto* o = static_cast<const float*>(set.tensors.o);
    const auto* lse = static_cast<const float*>(set.tensors.lse);
    const std::vector<float> o_before(o, o + 16 * 2 * 8), lse_before(lse, lse + 32);
    const float kept = q[(3 * 2 + 1) * 8 + 2];
    q[(3 * 2 + 1) * 8 + 2] = std::numeric_limits<float>::quiet_NaN();
    run(set, row);
    q[(3 * 2 + 1) * 8 + 2] = kept;
    for (int i = 0; i < 32; ++i) {
      const bool hit = i == 3 * 2 + 1;
      for (int c = 0; c < 8; ++c) {
        EXPECT_TRUE(hit ? std::isnan(o[i * 8 + c]) : o[i * 8 + c] == o_before[i * 8 + c]) << row << ' ' << i;
      }
      const int at = i % 2 * 16 + i / 2;
      EXPECT_TRUE(hit ? std::isnan(lse[at]) : lse[at] == lse_before[at]) << row << ' ' << i;
    }
  }
}

TEST(CpuForward, LowestBiasIsAValueAndMinusInfinityMasks) {
  constexpr float kLowest = std::numeric_limits<float>::lowest(), kInf = std::numeric_limits<float>::infinity();
  const OperandSet set = operands("fwd f32 b1 hq1 sq3 sk40 d4 bias=bh");
  auto* bias = static_cast<float*>(const_cast<void*>(set.tensors.bias));
  auto* k = static_cast<float*>(const_cast<void*>(set.tensors.k));
  auto* v = static_cast<float*>(const_cast<void*>(set.tensors.v));
  std::fill(v, v + 160, 2.5f);
  k[4 * 5] = std::numeric_limits<float>::quiet_NaN();  // key 5 is masked everywhere
  for (int j = 0; j < 40; ++j) {
    bias[j] = kLowest;                       // all alike: an ordinary row
    bias[40 + j] = -kInf;                    // an empty row
    bias[80 + j] = j < 20 ? 0.0f : kLowest;  // the last 20 weigh nothing
  }
  for (int i = 0; i < 3; ++i) bias[40 * i + 5] = -kInf;
  for (const std::string& row : forward_rows()) {
    run(set, row);
    const auto* o = static_cast<const float*>(set.tensors.o);
    const auto* lse = static_cast<const float*>(set.tensors.lse);
    for (int c = 0; c < 4; ++c) {
      EXPECT_EQ(o[c], 2.5f) << row;
      EXPECT_EQ(o[4 + c], 0.0f) << row;
      EXPECT_NEAR(o[8 + c], 2.5f, 1e-6f) << row;
    }
    EXPECT_EQ(lse[0], kLowest) << row;
    EXPECT_EQ(lse[1], -kInf) << row;
    EXPECT_LT(std::fabs(lse[2]), 20.0f) << row;
  }
}

TEST(CpuForward, LongUniformRowsSumExactly) {
  for (int64_t sk : {65535, 65536, 65537}) {
    const OperandSet set = operands("fwd f32 b1 hq1 sq2 sk" + std::to_string(sk) + " d2");
    auto* q = static_cast<float*>(const_cast<void*>(set.tensors.q));
    auto* v = static_cast<float*>(const_cast<void*>(set.tensors.v));
    std::fill(q, q + 4, 0.0f);
    for (int64_t j = 0; j < sk; ++j) {
      v[2 * j] = 1.0f;
      v[2 * j + 1] = j % 2 == 0 ? 1.0f : -1.0f;
    }
    for (const std::string& row : forward_rows()) {
      run(set, row);
      EXPECT_EQ(static_cast<const float*>(set.tensors.o)[0], 1.0f) << row << ' ' << sk;
      EXPECT_NEAR(static_cast<const float*>(set.tensors.o)[1], sk % 2 == 0 ? 0.0 : 1.0 / double(sk), 1e-6)
          << row << ' ' << sk;
      EXPECT_NEAR(static_cast<const float*>(set.tensors.lse)[0], std::log(double(sk)), 1e-5) << row << ' ' << sk;
    }
  }
}

TEST(CpuForward, WorkspaceDoesNotGrowWithTheSequences) {
  // 32768 x 32768 in float32: S alone would be 4 GiB.
  tessera_problem problem;
  ASSERT_EQ(core::parse_problem("fwd f32 sq32768 d64 threads=2 cpu", &problem, nullptr, nullptr), TESSERA_OK);
  for (const std::string& row : forward_rows()) {
    std::snprintf(problem.kernel, sizeof problem.kernel, "%s", row.c_str());
    core::Plan plan;
    ASSERT_EQ(core::make_plan(problem, {}, &plan, nullptr), TESSERA_OK);
    EXPECT_LT(plan.launch.workspace_bytes, 4 << 20) << row;
  }
}

}  // namespace
}  // namespace tessera::test
