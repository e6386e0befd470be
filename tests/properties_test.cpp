// What must hold for every row of the library whatever the numbers: sizes around tiles, split counts, page order,
// strides, batch mates, thread counts and bytes outside the lengths change nothing, or nothing beyond rounding.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "judged_run.hpp"

namespace tessera::tests {
namespace {

using baselines::OperandSet;

// Outputs of `kernel` on operands, or nothing where it refuses; any other failure fails the test.
std::vector<std::byte> outputs_of(const OperandSet& operands, const std::string& kernel) {
  const RunResult result = run_pinned(operands, kernel);
  if (result.code == TESSERA_UNSUPPORTED) return {};
  EXPECT_EQ(result.code, TESSERA_OK) << kernel << ": " << result.message;
  EXPECT_TRUE(operands.canaries_intact()) << kernel;
  return output_bytes(operands);
}

// Logical rows of o and lse, whatever their strides, as numbers; NaN compares equal to nothing, so bits are kept.
std::vector<double> logical_outputs(const OperandSet& operands) {
  std::vector<double> values;
  for (const baselines::OutputView& view : baselines::output_views(validated(operands.problem), operands.tensors)) {
    for (int64_t row = 0; row < view.rows(); ++row) {
      for (int64_t c = 0; c < view.extent[3]; ++c) {
        values.push_back(baselines::load_element(view.dtype, view.data, view.row_offset(row) + c * view.stride[3]));
      }
    }
  }
  return values;
}

TEST(Properties, SizesAroundTiles) {
  const int sizes[] = {1, 2, 63, 64, 65, 79, 80, 81, 127, 128, 129, 191, 192, 193, 255, 256, 257};
  int turn = 0;
  for (const int sq : sizes) {
    for (const int sk : sizes) {
      // Every pair at d 64; d 128 and 192, causal and the dtypes take turns.
      ++turn;
      const char* dim = turn % 7 == 0 ? " d128" : turn % 11 == 0 ? " d192" : " d64";
      const char* dtype = turn % 3 == 0 ? "f32" : turn % 3 == 1 ? "f16" : "bf16";
      const std::string text = std::string("fwd ") + dtype + " sq" + std::to_string(sq) + " sk" + std::to_string(sk) +
                               dim + (turn % 2 == 0 ? " causal" : "");
      const OperandSet operands = operands_of(text);
      const Judged judged = judge(operands);
      for (const core::KernelEntry* row : library_rows()) {
        // The emulation of matrix tiles is slow: every fifth pair.
        if (std::strstr(row->name, "emulated") != nullptr && turn % 5 != 0) continue;
        RunResult result;
        EXPECT_EQ(check_row(operands, judged, row->name, &result), "") << text;
      }
    }
  }
}

TEST(Properties, ManyHeadsOfAnOddSize) {
  const OperandSet operands = operands_of("fwd f16 hq16 sq3 sk7 d192 scale=0.1147 causal");
  const Judged judged = judge(operands);
  for (const core::KernelEntry* row : library_rows()) {
    RunResult result;
    EXPECT_EQ(check_row(operands, judged, row->name, &result), "");
  }
}

TEST(Properties, AnySplitCountIsRight) {
  for (const char* words : {"f32 b4 hq4 hkv2 sq1 sk4096 d32 lens=0:5:300:4096 window=127,0",
                            "bf16 b4 hq4 hkv1 sq1 sk1000 d64 lens=1000:64:65:1 sinks alibi",
                            "f16 b2 hq2 sq33 sk500 d40 causal paged=16 pages=shuffled", "f64 b1 hq2 sq5 sk130 d16"}) {
    for (const int splits : {1, 2, 3, 7, 32}) {
      const std::string text = std::string("fwd ") + words + " splits=" + std::to_string(splits);
      const OperandSet operands = operands_of(text);
      const Judged judged = judge(operands);
      for (const core::KernelEntry* row : library_rows()) {
        RunResult result;
        EXPECT_EQ(check_row(operands, judged, row->name, &result), "") << text;
      }
    }
  }
}

TEST(Properties, PageOrderAndUnusedPagesChangeNoBit) {
  for (const char* words :
       {"f32 b3 hq4 hkv2 sq9 sk75 d40 paged=16 lens=9:0:75 causal", "bf16 b2 hq2 sq1 sk130 d64 paged=5"}) {
    const std::string text = std::string("fwd ") + words;
    const OperandSet in_order = operands_of(text), shuffled = operands_of(text + " pages=shuffled");
    ASSERT_FALSE(std::equal(in_order.tensors.page_table, in_order.tensors.page_table + in_order.problem.max_pages,
                            shuffled.tensors.page_table));
    for (const core::KernelEntry* row : library_rows()) {
      EXPECT_EQ(outputs_of(in_order, row->name), outputs_of(shuffled, row->name)) << row->name << ' ' << text;
    }
  }
}

TEST(Properties, BytesOutsideTheLengthsChangeNoBit) {
  // Tails, spare pages and left padding hold NaN; then infinity and a large number.
  for (const char* words :
       {"f32 b3 hq4 hkv2 sq9 sk75 d40 lens=9:3:70 causal", "f16 b2 hq4 hkv1 sq1 sk130 d64 lens=100:7",
        "bf16 b2 hq2 sq20 sk130 d64 paged=16 leftpad lens=20:100"}) {
    const OperandSet operands = operands_of(std::string("fwd ") + words);
    // The operands' own NaN marks what lies outside: no input inside is NaN.
    const auto fill_outside = [&](const void* data, const tessera_desc& desc, double value) {
      for (const baselines::Buffer& buffer : operands.buffers) {
        if (buffer.data() != data) continue;
        const int64_t count = static_cast<int64_t>(buffer.bytes()) / core::dtype_bytes(desc.dtype);
        for (int64_t i = 0; i < count; ++i) {
          const double now = baselines::load_element(desc.dtype, data, i);
          if (!std::isfinite(now) || std::fabs(now) > 1000)
            baselines::store_element(desc.dtype, buffer.data(), i, value);
        }
      }
    };
    for (const core::KernelEntry* row : library_rows()) {
      const std::vector<std::byte> expected = outputs_of(operands, row->name);
      for (const double value : {static_cast<double>(INFINITY), -30000.0, static_cast<double>(NAN)}) {
        fill_outside(operands.tensors.q, operands.problem.q, value);
        fill_outside(operands.tensors.k, operands.problem.k, value);
        fill_outside(operands.tensors.v, operands.problem.v, value);
        EXPECT_EQ(outputs_of(operands, row->name), expected) << row->name << ' ' << words << ' ' << value;
      }
    }
  }
}

TEST(Properties, StridesChangeNoBit) {
  for (const char* dtype : {"f32", "bf16", "f64"}) {
    const std::string text = std::string("fwd ") + dtype + " b2 hq4 hkv2 sq19 sk70 d24 dv40 causal";
    const OperandSet plain = operands_of(text), heads_first = operands_of(text + " layout=bhsd");
    tessera_problem spread = plain.problem;
    for (tessera_desc* desc : {&spread.q, &spread.k, &spread.v, &spread.o}) {
      // Dims in the order heads, batch, rows with gaps, and no alignment beyond an element's.
      desc->align = core::dtype_bytes(desc->dtype);
      desc->stride[3] = 1;
      desc->stride[1] = 43;
      desc->stride[0] = 43 * 71;
      desc->stride[2] = 43 * 71 * 2 + 1;
    }
    const OperandSet gaps = baselines::make_operands(spread, {});
    for (const core::KernelEntry* row : library_rows()) {
      if (outputs_of(plain, row->name).empty()) continue;
      const std::vector<double> expected = logical_outputs(plain);
      for (const OperandSet* other : {&heads_first, &gaps}) {
        ASSERT_FALSE(outputs_of(*other, row->name).empty());
        EXPECT_EQ(logical_outputs(*other), expected) << row->name << ' ' << dtype;
        EXPECT_TRUE(other->gaps_intact(validated(other->problem)));
      }
    }
  }
}

TEST(Properties, AnyNumberOfThreadsGivesTheSameBits) {
  for (const char* words :
       {"f32 hq1 sq1 sk4096 d64", "bf16 hq1 sq1 sk4096 d64 splits=7", "f32 b2 hq3 sq65 sk257 d40 causal",
        "bf16 b2 hq4 hkv2 sq65 sk257 d64 window=31,5 sinks", "f16 b3 hq2 sq1 sk700 d64 paged=16 lens=1:0:700"}) {
    for (const core::KernelEntry* row : cpu_rows()) {
      // The BLAS of the textbook promises no such thing for products cut in another way.
      if (std::strcmp(row->name, "cpu.textbook") == 0) continue;
      OperandSet operands = operands_of(std::string("fwd ") + words);
      operands.problem.threads = 1;
      const std::vector<std::byte> expected = outputs_of(operands, row->name);
      for (const int threads : {2, 3, 5, 8, 17, 64}) {
        operands.problem.threads = threads;
        EXPECT_EQ(outputs_of(operands, row->name), expected) << row->name << ' ' << words << " threads=" << threads;
      }
    }
  }
}

// A sequence of a dense batch on its own: the same pointers, moved.
struct Alone {
  tessera_problem problem;
  tessera_tensors tensors;
};
Alone take_sequence(const OperandSet& operands, int64_t b) {
  Alone alone{operands.problem, operands.tensors};
  alone.problem.batch = alone.problem.batch_kv = 1;
  const auto move = [b](auto& pointer, const tessera_desc& desc) {
    const char* address = static_cast<const char*>(pointer) + b * desc.stride[0] * core::dtype_bytes(desc.dtype);
    pointer = const_cast<char*>(address);
  };
  move(alone.tensors.q, alone.problem.q);
  move(alone.tensors.k, alone.problem.k);
  move(alone.tensors.v, alone.problem.v);
  move(alone.tensors.o, alone.problem.o);
  alone.tensors.seqused_q += b;
  alone.tensors.seqused_k += b;
  alone.tensors.lse = static_cast<float*>(alone.tensors.lse) + b * alone.problem.heads_q * alone.problem.seqlen_q;
  for (tessera_desc* desc : {&alone.problem.q, &alone.problem.k, &alone.problem.v, &alone.problem.o}) desc->align = 4;
  return alone;
}

TEST(Properties, BatchMatesChangeNoBit) {
  for (const char* words :
       {"f32 b5 hq4 hkv2 sq40 sk150 d40 causal lens=40:1:0:17:40", "f32 b4 hq8 hkv2 sq1 sk900 d64 lens=900:3:64:511",
        "f32 b4 hq8 hkv2 sq1 sk900 d64 lens=900:3:64:511 splits=3 sinks"}) {
    const OperandSet operands = operands_of(std::string("fwd ") + words);
    const tessera_problem& p = operands.problem;
    const int64_t o_size = p.seqlen_q * p.heads_q * p.head_dim_v, lse_size = p.heads_q * p.seqlen_q;
    for (const core::KernelEntry* row : library_rows()) {
      if (outputs_of(operands, row->name).empty()) continue;
      const auto* o = static_cast<const float*>(operands.tensors.o);
      const auto* lse = static_cast<const float*>(operands.tensors.lse);
      const std::vector<float> whole_o(o, o + p.batch * o_size), whole_lse(lse, lse + p.batch * lse_size);
      for (int64_t b = 0; b < p.batch; ++b) {
        Alone alone = take_sequence(operands, b);
        std::snprintf(alone.problem.kernel, sizeof alone.problem.kernel, "%s", row->name);
        tessera_status status{};
        core::Plan plan;
        ASSERT_EQ(core::make_plan(alone.problem, {}, &plan, &status), TESSERA_OK) << status.message;
        const auto bytes = static_cast<size_t>(plan.launch.workspace_bytes);
        const baselines::Buffer workspace(bytes, 256);
        operands.poison_outputs();
        ASSERT_EQ(core::run_plan(plan, &alone.tensors, workspace.data(), bytes, nullptr, &status), TESSERA_OK)
            << status.message;
        EXPECT_EQ(std::memcmp(o + b * o_size, whole_o.data() + b * o_size, static_cast<size_t>(o_size) * 4), 0)
            << row->name << ' ' << words << " sequence " << b;
        EXPECT_EQ(std::memcmp(lse + b * lse_size, whole_lse.data() + b * lse_size, static_cast<size_t>(lse_size) * 4),
                  0)
            << row->name << ' ' << words << " sequence " << b;
      }
    }
  }
}

TEST(Properties, MergedStatesEqualTheWhole) {
  // Keys in three parts of 50, 1 and 79, float32 partial outputs of bf16 inputs, merged.
  const OperandSet whole = operands_of("fwd bf16 b1 hq4 hkv2 sq17 sk130 d64 softcap=20 o=f32");
  const Judged judged = judge(whole);
  const core::Problem problem = validated(whole.problem);
  const int64_t o_size = 17 * 4 * 64, lse_size = 4 * 17, edges[] = {0, 50, 51, 130};
  int merged = 0;
  for (const core::KernelEntry* row : library_rows()) {
    std::vector<float> o(static_cast<size_t>(3 * o_size), NAN), lse(static_cast<size_t>(3 * lse_size), NAN);
    bool ran = true;
    for (int part = 0; part < 3 && ran; ++part) {
      tessera_problem p = whole.problem;
      p.seqlen_k = edges[part + 1] - edges[part];
      p.k.align = p.v.align = p.o.align = 4;
      std::snprintf(p.kernel, sizeof p.kernel, "%s", row->name);
      tessera_tensors t = whole.tensors;
      const auto rows_from = [&](const void* data, const tessera_desc& desc) {
        return static_cast<const char*>(data) + edges[part] * desc.stride[1] * 2;
      };
      t.k = rows_from(t.k, p.k);
      t.v = rows_from(t.v, p.v);
      t.o = o.data() + part * o_size;
      t.lse = lse.data() + part * lse_size;
      core::Plan plan;
      tessera_status status{};
      ran = core::make_plan(p, {}, &plan, &status) == TESSERA_OK;
      if (!ran) break;
      const auto bytes = static_cast<size_t>(plan.launch.workspace_bytes);
      const baselines::Buffer workspace(bytes, 256);
      ASSERT_EQ(core::run_plan(plan, &t, workspace.data(), bytes, nullptr, &status), TESSERA_OK) << status.message;
    }
    if (!ran) continue;
    tessera_merge_args args{};
    args.size = sizeof args;
    args.states = 3;
    args.batch = 1;
    args.seqlen_q = 17;
    args.heads = 4;
    args.head_dim_v = 64;
    args.dtype = args.out_dtype = TESSERA_F32;
    args.device = -1;
    args.o = o.data();
    args.lse = lse.data();
    args.o_out = whole.tensors.o;
    args.lse_out = whole.tensors.lse;
    tessera_status status{};
    ASSERT_EQ(tessera_merge(&args, nullptr, &status), TESSERA_OK) << status.message;
    const auto comparisons = baselines::compare(problem, whole.tensors, &judged.exact, &judged.naive);
    EXPECT_TRUE(baselines::worst(comparisons).passed) << row->name << ' ' << baselines::worst(comparisons).tensor;
    ++merged;
  }
  EXPECT_GT(merged, 0);
}

// exp turns the absolute error of a score into a relative one of its probability, so long sums show at large scores.
TEST(Properties, LargeScoresKeepTheTolerance) {
  for (const char* problem : {"f32 hq2 sq150 sk150 d128 causal scale=1", "f32 hq2 sq150 sk150 d128 causal scale=3",
                              "f32 hq2 sq150 sk150 d64 causal scale=3", "f32 hq1 sq100 d576 dv512 scale=3"}) {
    for (int seed = 1; seed <= 4; ++seed) {
      const std::string text = std::string(problem) + " seed=" + std::to_string(seed);
      const OperandSet operands = operands_of(text);
      const Judged judged = judge(operands);
      for (const core::KernelEntry* entry : library_rows()) {
        RunResult result;
        EXPECT_EQ(check_row(operands, judged, entry->name, &result), "") << text;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::tests
