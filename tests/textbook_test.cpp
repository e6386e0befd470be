// The textbook baseline beside the judge: numbers worked out by hand, its row functions for every instruction set this
// machine runs, and the BLAS that isa= caps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>

#include "blas.hpp"
#include "judged_run.hpp"
#include "random.hpp"
#include "textbook_rows.hpp"

namespace tessera::tests {
namespace {

using baselines::OperandSet;
using baselines::RowFunctions;
using core::Isa;

bool have_blas() { return baselines::load_blas(core::cpu_info().isa).refusal == nullptr; }

#define SKIP_WITHOUT_BLAS() \
  if (!have_blas()) GTEST_SKIP() << baselines::load_blas(core::cpu_info().isa).refusal

template <class T>
struct NamedRows {
  const char* name;
  const RowFunctions<T>* functions;
};

// Those that this machine can run.
template <class T>
std::vector<NamedRows<T>> runnable_rows() {
  std::vector<NamedRows<T>> rows = {{"portable", &baselines::row_functions<Isa::portable, T>()}};
  const Isa isa = core::cpu_info().isa;
  if (isa != Isa::neon && isa >= Isa::avx2) rows.push_back({"avx2", &baselines::row_functions<Isa::avx2, T>()});
  if (isa != Isa::neon && isa >= Isa::avx512) rows.push_back({"avx512", &baselines::row_functions<Isa::avx512, T>()});
  return rows;
}

// Rows of every length up to three vectors and every begin: probabilities, factor and lse against float64.
template <class T>
void check_softmax(double allowed) {
  const baselines::RandomStream numbers(3, 1);
  for (const NamedRows<T>& rows : runnable_rows<T>()) {
    for (int64_t count = 1; count < 50; ++count) {
      for (const int64_t begin : {int64_t{0}, count / 3, count - 1}) {
        for (const double sink : {-static_cast<double>(INFINITY), 1.5}) {
          const int64_t end = std::max(begin + 1, count - count / 5);
          std::vector<T> row(64, T(77));
          std::vector<double> x(64);
          double row_max = sink;
          for (int64_t j = begin; j < end; ++j) {
            row[j] = static_cast<T>(10 * numbers.normal(static_cast<uint64_t>(count * 64 + j)));
            x[j] = static_cast<double>(row[j]);
            row_max = std::max(row_max, x[j]);
          }
          double sum = std::exp(sink - row_max);
          for (int64_t j = begin; j < end; ++j) sum += std::exp(x[j] - row_max);
          T lse;
          const T factor = rows.functions->softmax(row.data(), begin, end, count, static_cast<T>(sink), &lse);
          EXPECT_NEAR(static_cast<double>(lse), row_max + std::log(sum), allowed * 64) << rows.name;
          for (int64_t j = 0; j < count; ++j) {
            const double expected = j >= begin && j < end ? std::exp(x[j] - row_max) / sum : 0;
            ASSERT_NEAR(static_cast<double>(row[j] * factor), expected, allowed)
                << rows.name << ' ' << count << ' ' << j;
          }
        }
      }
    }
  }
}

TEST(TextbookRows, SoftmaxOfEveryLength) {
  check_softmax<float>(5e-7);
  check_softmax<double>(2e-15);
}

TEST(TextbookRows, SpecialRows) {
  for (const NamedRows<float>& rows : runnable_rows<float>()) {
    SCOPED_TRACE(rows.name);
    std::vector<float> row(32, -INFINITY);
    float lse = 0;
    EXPECT_EQ(rows.functions->softmax(row.data(), 0, 20, 20, -INFINITY, &lse), 0);
    EXPECT_EQ(lse, -INFINITY);
    for (int j = 0; j < 20; ++j) EXPECT_EQ(row[j], 0);
    row.assign(32, -INFINITY);
    EXPECT_EQ(rows.functions->softmax(row.data(), 0, 20, 20, 2.5f, &lse), 0);
    EXPECT_EQ(lse, 2.5f);
    // A NaN alone among -inf, and one among numbers, are seen; far scores vanish exactly.
    for (const float other : {-INFINITY, 1.0f}) {
      row.assign(32, other);
      row[13] = NAN;
      EXPECT_TRUE(std::isnan(rows.functions->softmax(row.data(), 0, 20, 20, -INFINITY, &lse)));
      EXPECT_TRUE(std::isnan(lse));
    }
    row.assign(32, -1e5f);
    row[7] = 1e4f;
    EXPECT_EQ(rows.functions->softmax(row.data(), 0, 20, 20, -INFINITY, &lse), 1);
    EXPECT_EQ(lse, 1e4f);
    EXPECT_EQ(row[6], 0);
  }
}

TEST(TextbookRows, SoftcapAndAlibi) {
  for (const NamedRows<float>& rows : runnable_rows<float>()) {
    SCOPED_TRACE(rows.name);
    std::vector<float> row;
    for (int i = -400; i <= 400; ++i) row.push_back(0.37f * static_cast<float>(i));
    row.insert(row.end(), {1e4f, -1e4f, 1e-20f, INFINITY, -INFINITY});
    const std::vector<float> before = row;
    rows.functions->softcap(row.data(), 0, static_cast<int64_t>(row.size()), 50.0f);
    for (size_t i = 0; i < row.size(); ++i) {
      const double expected = 50 * std::tanh(static_cast<double>(before[i]) / 50);
      EXPECT_NEAR(row[i], expected, 2e-7 * std::fabs(expected) + 1e-26) << before[i];
    }
    std::vector<float> zeros(20, 0.0f);
    rows.functions->alibi(zeros.data(), 3, 20, 0.5f, 7);
    for (int j = 0; j < 20; ++j) EXPECT_EQ(zeros[j], j < 3 ? 0 : -0.5f * static_cast<float>(std::abs(7 - j)));
  }
}

TEST(TextbookRows, EveryHalfAndBfloat) {
  std::vector<uint16_t> bits(1 << 16);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
  const auto count = static_cast<int64_t>(bits.size());
  for (const NamedRows<float>& rows : runnable_rows<float>()) {
    std::vector<float> half(bits.size()), bfloat(bits.size());
    rows.functions->from_half(bits.data(), count, half.data());
    rows.functions->from_bfloat(bits.data(), count, bfloat.data());
    for (int64_t i = 0; i < count; ++i) {
      const double expected_half = baselines::load_element(TESSERA_F16, bits.data(), i);
      const double expected_bfloat = baselines::load_element(TESSERA_BF16, bits.data(), i);
      ASSERT_TRUE(static_cast<double>(half[i]) == expected_half || (std::isnan(half[i]) && std::isnan(expected_half)))
          << rows.name << ' ' << i;
      ASSERT_TRUE(static_cast<double>(bfloat[i]) == expected_bfloat ||
                  (std::isnan(bfloat[i]) && std::isnan(expected_bfloat)))
          << rows.name << ' ' << i;
    }
  }
}

TEST(Textbook, ClosedForms) {
  SKIP_WITHOUT_BLAS();
  // Equal scores, values j: the mean of the keys a row sees, and ln of their number.
  for (const char* words : {"fwd f32 hq2 sq6 sk6 d4 dv1 scale=0 causal", "fwd f64 hq2 sq6 sk6 d4 dv1 scale=0 causal",
                            "fwd bf16 hq2 sq6 sk6 d4 dv1 scale=0 causal o=f32"}) {
    SCOPED_TRACE(words);
    const OperandSet operands = operands_of(words);
    auto* v = const_cast<void*>(operands.tensors.v);
    for (int64_t j = 0; j < 6; ++j) {
      for (int64_t h = 0; h < 2; ++h) baselines::store_element(operands.problem.v.dtype, v, 2 * j + h, double(j));
    }
    const RunResult result = run_pinned(operands, "cpu.textbook");
    ASSERT_EQ(result.code, TESSERA_OK) << result.message;
    const int32_t lse_dtype = core::lse_dtype(operands.problem.q.dtype);
    for (int64_t i = 0; i < 6; ++i) {
      const double o = baselines::load_element(operands.problem.o.dtype, operands.tensors.o, 2 * i);
      EXPECT_NEAR(o, static_cast<double>(i) / 2, 1e-6);
      EXPECT_NEAR(baselines::load_element(lse_dtype, operands.tensors.lse, i), std::log(double(i + 1)), 1e-6);
    }
  }
}

TEST(Textbook, EveryInstructionSetIsRightInOneProcess) {
  SKIP_WITHOUT_BLAS();
  const OperandSet operands = operands_of("fwd f32 b2 hq4 hkv2 sq70 sk130 d40 causal sinks softcap=9");
  const Judged judged = judge(operands);
  int ran = 0;
  std::string descriptions;
  for (const int32_t isa : {TESSERA_ISA_AUTO, TESSERA_ISA_PORTABLE, TESSERA_ISA_AVX2, TESSERA_ISA_AVX512}) {
    OperandSet capped = operands_of("fwd f32 b2 hq4 hkv2 sq70 sk130 d40 causal sinks softcap=9");
    capped.problem.isa = isa;
    RunResult result;
    EXPECT_EQ(check_row(capped, judged, "cpu.textbook", &result), "") << isa;
    if (result.code == TESSERA_OK) {
      ++ran;
      descriptions += std::string(result.plan.launch.instructions) + "; ";
    } else {
      std::printf("isa %d: %s\n", isa, result.message.c_str());
    }
  }
  EXPECT_GT(ran, 0);
  std::printf("%s\n", descriptions.c_str());
  // OpenBLAS names the core it runs as; the cap must show.
  if (descriptions.find("libopenblas") != std::string::npos && core::cpu_info().isa >= Isa::avx2 &&
      core::cpu_info().isa != Isa::neon) {
    EXPECT_NE(descriptions.find("Prescott"), std::string::npos);
    EXPECT_NE(descriptions.find("Haswell"), std::string::npos);
  }
}

TEST(Textbook, LoadingTheBlasLeavesTheEnvironmentAlone) {
  setenv("OPENBLAS_CORETYPE", "Nehalem", 1);
  baselines::load_blas(Isa::portable);
  EXPECT_STREQ(std::getenv("OPENBLAS_CORETYPE"), "Nehalem");
  unsetenv("OPENBLAS_CORETYPE");
  baselines::load_blas(Isa::avx2);
  EXPECT_EQ(std::getenv("OPENBLAS_CORETYPE"), nullptr);
}

TEST(Textbook, RefusesWithAReason) {
  const OperandSet backward = operands_of("bwd f32 sq4 d4");
  const RunResult result = run_pinned(backward, "cpu.textbook");
  EXPECT_EQ(result.code, TESSERA_UNSUPPORTED);
  EXPECT_NE(result.message.find("forward"), std::string::npos) << result.message;
}

TEST(Textbook, IsChosenByNameOnly) {
  const OperandSet operands = operands_of("fwd f32 sq4 d4");
  const RunResult result = run_pinned(operands, "");
  ASSERT_EQ(result.code, TESSERA_OK);
  EXPECT_FALSE(result.plan.entry->pinned_only);
  EXPECT_EQ(std::string(run_pinned(operands, "cpu.text*").plan.entry->name), "cpu.textbook");
}

TEST(Textbook, FewHeadsAreCutIntoRows) {
  SKIP_WITHOUT_BLAS();
  for (const char* words :
       {"fwd f32 sq100 sk90 d24 causal", "fwd f32 hq8 hkv1 sq1 sk300 d24", "fwd f32 hq6 hkv2 sq33 sk40 d8 sinks"}) {
    OperandSet operands = operands_of(words);
    const Judged judged = judge(operands);
    for (const int threads : {1, 2, 3, 7, 64}) {
      operands.problem.threads = threads;
      RunResult result;
      EXPECT_EQ(check_row(operands, judged, "cpu.textbook", &result), "") << words << ' ' << threads;
      EXPECT_EQ(result.code, have_blas() ? TESSERA_OK : TESSERA_UNSUPPORTED);
    }
  }
}

}  // namespace
}  // namespace tessera::tests
