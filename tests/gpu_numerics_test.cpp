// Numeric situations with exact answers on the CUDA rows: far scores, empty rows, uniform rows, non-finite inputs.
#include <cmath>
#include <limits>

#include "baselines/elements.hpp"
#include "gpu_support.hpp"

namespace tessera::tests {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// One batch and head, d = dv, contiguous; q, k, v filled by functions of (row, column).
struct Plain {
  Plain(int64_t sq, int64_t sk, int64_t d, const std::string& words = "")
      : gpu("fwd bf16 b1 hq1 sq" + std::to_string(sq) + " sk" + std::to_string(sk) + " d" + std::to_string(d) + " " +
            words + " cuda"),
        seqlen_q(sq),
        seqlen_k(sk),
        dim(d) {}

  template <class Value>
  void fill(const void* base, int64_t rows, Value&& value) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t c = 0; c < dim; ++c)
        baselines::store_element(TESSERA_BF16, const_cast<void*>(base), i * dim + c, value(i, c));
    }
  }
  template <class Value>
  void fill_q(Value&& value) {
    fill(gpu.set.tensors.q, seqlen_q, value);
  }
  template <class Value>
  void fill_k(Value&& value) {
    fill(gpu.set.tensors.k, seqlen_k, value);
  }
  template <class Value>
  void fill_v(Value&& value) {
    fill(gpu.set.tensors.v, seqlen_k, value);
  }
  void run(const std::string& row) {
    tessera_status status{};
    ASSERT_EQ(gpu.run(row, &status), TESSERA_OK) << status.message;
  }
  double o(int64_t i, int64_t c) const { return baselines::load_element(TESSERA_BF16, gpu.set.tensors.o, i * dim + c); }
  float lse(int64_t i) const { return static_cast<const float*>(gpu.set.tensors.lse)[i]; }

  GpuCase gpu;
  int64_t seqlen_q, seqlen_k, dim;
};

// On every row of the list that the device has.
class GpuNumerics : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    TESSERA_NEEDS_GPU();
    if (!runs_here(GetParam())) GTEST_SKIP() << GetParam() << " needs another GPU";
  }
};
INSTANTIATE_TEST_SUITE_P(Rows, GpuNumerics, ::testing::Values("cuda.sm90.forward", "cuda.sm80.forward"));

double zero(int64_t, int64_t) { return 0; }
double one(int64_t, int64_t) { return 1; }

TEST_P(GpuNumerics, RowsWithoutKeysAreZero) {
  TESSERA_NEEDS_GPU();
  Plain c(5, 2, 64, "causal");
  c.fill_k(zero);
  c.fill_v([](int64_t j, int64_t) { return j == 0 ? 1.0 : 3.0; });
  c.run(GetParam());
  const double expected[] = {0, 0, 0, 1, 2};
  for (int64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(c.o(i, 7), expected[i]);
    EXPECT_FALSE(std::signbit(c.o(i, 7)));
  }
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(c.lse(i), -kInfinity);
  EXPECT_EQ(c.lse(3), 0.0f);
  EXPECT_NEAR(c.lse(4), 0.693147f, 1e-6f);
}

TEST_P(GpuNumerics, UniformRowsSumExactly) {
  TESSERA_NEEDS_GPU();
  for (const int64_t sk : {1, 63, 64, 65, 1000, 4095, 65537}) {
    Plain c(3, sk, 64);
    c.fill_q(zero);
    c.fill_v(one);
    c.run(GetParam());
    EXPECT_EQ(c.o(2, 63), 1.0) << sk;
    EXPECT_NEAR(c.lse(2), std::log(static_cast<double>(sk)), 2e-6 * std::log(sk + 1.0) + 1e-6) << sk;
  }
}

// Logits far below zero, far above, and spread over many magnitudes: the sum of a row stays 1.
TEST_P(GpuNumerics, FarScores) {
  TESSERA_NEEDS_GPU();
  for (const double size : {1.0, 1e2, 1e4, 1e6, 1e9, 1e11}) {
    for (const double sign : {-1.0, 1.0}) {
      Plain c(70, 200, 64, "scale=1");
      c.fill_q([&](int64_t, int64_t col) { return col == 0 ? sign : 0.0; });
      c.fill_k([&](int64_t j, int64_t col) { return col == 0 ? size * (1 + static_cast<double>(j % 7) / 8) : 0.0; });
      c.fill_v(one);
      c.run(GetParam());
      for (int64_t i = 0; i < 70; ++i) ASSERT_EQ(c.o(i, 5), 1.0) << size * sign << " row " << i;
      EXPECT_TRUE(std::isfinite(c.lse(0)));
    }
  }
}

// A new maximum in every tile, and one only in the last.
TEST_P(GpuNumerics, RisingMaximum) {
  TESSERA_NEEDS_GPU();
  for (const char* words :
       {"b1 hq2 sq64 sk4096 d64 alibi topleft", "b1 hq2 sq64 sk4096 d128 alibi", "b1 hq1 sq64 sk2048 d64 scale=30"}) {
    EXPECT_GT(check_on_gpu(std::string("fwd bf16 ") + words + " cuda"), 0);
  }
}

// A non-finite query reaches its own row only; a non-finite key only rows that keep it.
TEST_P(GpuNumerics, NonFiniteInputsStayWhereTheyAre) {
  TESSERA_NEEDS_GPU();
  for (const double bad : {static_cast<double>(kInfinity), std::nan("")}) {
    Plain c(200, 200, 64, "causal");
    c.fill_q([&](int64_t i, int64_t col) { return i == 40 ? bad : std::sin(static_cast<double>(i * 64 + col)); });
    c.run(GetParam());
    for (int64_t i = 0; i < 200; ++i) EXPECT_EQ(std::isfinite(c.o(i, 3)), i != 40) << i;
    c.fill_q([](int64_t i, int64_t col) { return std::sin(static_cast<double>(i * 64 + col)); });
    c.fill_k([&](int64_t j, int64_t col) { return j == 130 ? bad : std::cos(static_cast<double>(j * 64 + col)); });
    c.run(GetParam());
    for (int64_t i = 0; i < 130; ++i) EXPECT_TRUE(std::isfinite(c.o(i, 3))) << i;
    if (std::isnan(bad)) {
      for (int64_t i = 130; i < 200; ++i) EXPECT_TRUE(std::isnan(c.o(i, 3))) << i;
    }
  }
}

TEST_P(GpuNumerics, ZeroWindowCopiesValues) {
  TESSERA_NEEDS_GPU();
  Plain c(300, 300, 128, "window=0,0");
  c.run(GetParam());
  for (int64_t i = 0; i < 300; ++i) {
    for (int64_t col = 0; col < 128; ++col) {
      ASSERT_EQ(c.o(i, col), baselines::load_element(TESSERA_BF16, c.gpu.set.tensors.v, i * 128 + col));
    }
  }
}

}  // namespace
}  // namespace tessera::tests
