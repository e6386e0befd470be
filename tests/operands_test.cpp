// The tools that judge the kernels: element conversions, the generator, operands, and that a comparison fails when it
// should.
#include "operands.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "judged_run.hpp"
#include "random.hpp"

namespace tessera::tests {
namespace {

using baselines::OperandSet;

// Every bit pattern of a 8- or 16-bit format survives decoding and encoding; NaN stays NaN.
TEST(Elements, EveryBitPatternSurvivesARoundTrip) {
  for (const int32_t dtype : {TESSERA_F16, TESSERA_BF16, TESSERA_E4M3}) {
    const uint32_t patterns = dtype == TESSERA_E4M3 ? 1u << 8 : 1u << 16;
    for (uint32_t bits = 0; bits < patterns; ++bits) {
      uint32_t in = bits, out = 0;
      const double value = baselines::load_element(dtype, &in, 0);
      baselines::store_element(dtype, &out, 0, value);
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(baselines::load_element(dtype, &out, 0)));
      } else {
        EXPECT_EQ(in, out) << core::dtype_name(dtype) << ' ' << bits;
      }
    }
  }
}

TEST(Elements, KnownValues) {
  EXPECT_EQ(baselines::round_to(TESSERA_F16, 65504), 65504);
  EXPECT_EQ(baselines::round_to(TESSERA_F16, 65520), INFINITY);
  EXPECT_EQ(baselines::round_to(TESSERA_F16, 65519.99), 65504);
  EXPECT_EQ(baselines::round_to(TESSERA_F16, 0x1p-24), 0x1p-24);
  EXPECT_EQ(baselines::round_to(TESSERA_F16, 0x1p-25), 0);          // tie to even
  EXPECT_EQ(baselines::round_to(TESSERA_F16, 0x1.8p-24), 0x1p-23);  // tie to even
  EXPECT_EQ(baselines::round_to(TESSERA_F16, 0x1.002p0), 1);        // tie to even
  EXPECT_EQ(baselines::round_to(TESSERA_F16, 0x1.006p0), 0x1.008p0);
  EXPECT_EQ(baselines::round_to(TESSERA_BF16, 0x1.01p0), 1);
  EXPECT_EQ(baselines::round_to(TESSERA_BF16, 0x1.03p0), 0x1.04p0);
  EXPECT_EQ(baselines::round_to(TESSERA_BF16, 0x1.011p0), 0x1.02p0);
  EXPECT_EQ(baselines::round_to(TESSERA_E4M3, 448), 448);
  EXPECT_EQ(baselines::round_to(TESSERA_E4M3, 1e9), 448);
  EXPECT_EQ(baselines::round_to(TESSERA_E4M3, -1e9), -448);
  EXPECT_EQ(baselines::round_to(TESSERA_E4M3, 17), 16);
  EXPECT_EQ(baselines::round_to(TESSERA_E4M3, 19), 20);
  EXPECT_EQ(baselines::round_to(TESSERA_E4M3, 0x1p-9), 0x1p-9);
  EXPECT_EQ(baselines::round_to(TESSERA_E4M3, 0x1p-10), 0);
  EXPECT_EQ(baselines::round_to(TESSERA_INT8, 2.5), 2);
  EXPECT_EQ(baselines::round_to(TESSERA_INT8, -1e3), -128);
  EXPECT_TRUE(std::isnan(baselines::round_to(TESSERA_BF16, NAN)));
  EXPECT_TRUE(std::signbit(baselines::round_to(TESSERA_F16, -0.0)));
}

TEST(Random, SameNumbersEverywhere) {
  // Fixed once: a platform or compiler that computes others would test with other data.
  const baselines::RandomStream stream(1, 2);
  EXPECT_EQ(stream.bits(0), UINT64_C(0xe0d798e866a2df8b));
  EXPECT_EQ(stream.normal(0), -0x1.f43d328a43caap-3);
  EXPECT_EQ(stream.normal(12345), 0x1.c06353057527ap-1);
}

TEST(Random, NormalNumbersHaveMomentsOfTheNormalDistribution) {
  const baselines::RandomStream stream(7, 1);
  constexpr int kCount = 200000;
  double sum = 0, squares = 0, fourths = 0;
  for (int i = 0; i < kCount; ++i) {
    const double x = stream.normal(static_cast<uint64_t>(i));
    sum += x;
    squares += x * x;
    fourths += x * x * x * x;
  }
  // Four standard errors: 1/sqrt(n), sqrt(2/n), sqrt(96/n).
  EXPECT_NEAR(sum / kCount, 0, 4 * std::sqrt(1.0 / kCount));
  EXPECT_NEAR(squares / kCount, 1, 4 * std::sqrt(2.0 / kCount));
  EXPECT_NEAR(fourths / kCount, 3, 4 * std::sqrt(96.0 / kCount));
}

TEST(Operands, OneSeedGivesOneSetOfValuesInEveryLayout) {
  const std::string words = "fwd f64 b3 hq4 hkv2 sq9 sk21 d5 causal seed=4 ";
  const auto exact = [](const std::string& text) {
    const OperandSet operands = operands_of(text);
    return baselines::reference(validated(operands.problem), operands.tensors, baselines::Precision::exact);
  };
  const baselines::Results dense = exact(words);
  for (const char* layout : {"layout=bhsd", "packed", "paged=4", "paged=4 pages=shuffled layout=bhsd", "paged=1"}) {
    SCOPED_TRACE(layout);
    EXPECT_EQ(exact(words + layout).o, dense.o);
  }
  EXPECT_NE(exact("fwd f64 b3 hq4 hkv2 sq9 sk21 d5 causal seed=5").o, dense.o);
}

TEST(Operands, BytesOutsideTheLengthsAreNaN) {
  const OperandSet operands = operands_of("fwd f32 b2 sq4 sk8 d3 lens=2:8");
  const auto* k = static_cast<const float*>(operands.tensors.k);
  for (int i = 0; i < 2 * 8 * 3; ++i) EXPECT_EQ(std::isnan(k[i]), i >= 2 * 3 && i < 8 * 3) << i;
  const OperandSet paged = operands_of("fwd f32 b3 sq1 sk5 d1 paged=4 lens=5:1:0");
  ASSERT_EQ(paged.problem.max_pages, 2);
  EXPECT_EQ(paged.tensors.page_table[4], -1);
  EXPECT_EQ(paged.tensors.page_table[5], INT32_MAX);
}

TEST(Operands, BufferSeesAWriteOnEitherSide) {
  for (const int64_t index : {int64_t{-1}, int64_t{-4096}, int64_t{100}, int64_t{100 + 4095}}) {
    const baselines::Buffer buffer(100, 64, 2);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 2u);
    EXPECT_TRUE(buffer.canaries_intact());
    buffer.data()[index] ^= std::byte{1};
    EXPECT_FALSE(buffer.canaries_intact()) << index;
  }
}

// A right answer passes; each kind of damage fails.
class Comparing : public ::testing::Test {
 protected:
  void prepare(const std::string& text) {
    operands_ = operands_of(text);
    problem_ = validated(operands_.problem);
    operands_.poison_outputs();
    exact_ = baselines::reference(problem_, operands_.tensors, baselines::Precision::exact);
    baselines::store_results(problem_, exact_, operands_.tensors);
  }
  bool passes() const {
    return baselines::worst(baselines::compare(problem_, operands_.tensors)).passed && operands_.canaries_intact() &&
           operands_.gaps_intact(problem_);
  }
  float* o() const { return static_cast<float*>(operands_.tensors.o); }
  float* lse() const { return static_cast<float*>(operands_.tensors.lse); }

  OperandSet operands_;
  core::Problem problem_{};
  baselines::Results exact_;
};

TEST_F(Comparing, OneWrongElementFails) {
  prepare("fwd f32 hq2 sq7 sk9 d5");
  ASSERT_TRUE(passes());
  for (const int index : {0, 33, 69}) {
    const float before = o()[index];
    for (const float wrong : {before + 1e-4f, -before, NAN, INFINITY}) {
      o()[index] = wrong;
      EXPECT_FALSE(passes()) << index << ' ' << wrong;
    }
    o()[index] = before + 1e-7f;
    EXPECT_TRUE(passes());
    o()[index] = before;
  }
  lse()[3] += 0.002f;
  EXPECT_FALSE(passes());
  EXPECT_EQ(baselines::worst(baselines::compare(problem_, operands_.tensors)).tensor, "lse");
}

TEST_F(Comparing, EmptyRowsAreExactZeros) {
  prepare("fwd f32 sq3 sk1 d2 causal");
  ASSERT_TRUE(passes());
  for (const float wrong : {-0.0f, 1e-30f, NAN}) {
    o()[1] = wrong;
    EXPECT_FALSE(passes()) << wrong;
  }
  o()[1] = 0;
  lse()[0] = -1e30f;
  EXPECT_FALSE(passes());
}

TEST_F(Comparing, RowsBehindTheLastSequenceStayAsTheyWere) {
  prepare("fwd f32 b2 sq3 sk3 d2 packed lens=3:1");
  ASSERT_TRUE(passes());
  tessera_problem spare = operands_.problem;
  spare.total_q += 2;
  core::TextExtras extras;
  extras.lens = extras.lens_k = {3, 1};
  operands_ = baselines::make_operands(spare, extras);
  problem_ = validated(operands_.problem);
  operands_.poison_outputs();
  baselines::store_results(problem_, baselines::reference(problem_, operands_.tensors, baselines::Precision::exact),
                           operands_.tensors);
  EXPECT_TRUE(passes());
  o()[4 * 2] = 0;  // the first row of no sequence
  EXPECT_FALSE(passes());
}

TEST_F(Comparing, AWriteBetweenStridedRowsFails) {
  tessera_problem p = operands_of("fwd f32 sq3 sk3 d2").problem;
  p.o.stride[1] = 5;
  p.o.stride[0] = 15;
  operands_ = baselines::make_operands(p, {});
  problem_ = validated(operands_.problem);
  operands_.poison_outputs();
  baselines::store_results(problem_, baselines::reference(problem_, operands_.tensors, baselines::Precision::exact),
                           operands_.tensors);
  EXPECT_TRUE(passes());
  o()[3] = 0;
  EXPECT_FALSE(passes());
}

TEST_F(Comparing, BadTextMakesNoOperands) {
  tessera_status status{};
  EXPECT_EQ(baselines::make_operands("fwd f32 sq3 d2 nonsense", &status).problem.size, 0u);
  EXPECT_EQ(status.code, TESSERA_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace tessera::tests
