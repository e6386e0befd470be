// The judge against numbers worked out by hand. Each problem is small enough that softmax, sums and derivatives fit on
// paper; the numbers stand beside the case.
#include "reference.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>

#include "judged_run.hpp"

namespace tessera::tests {
namespace {

using baselines::OperandSet;
using baselines::Precision;
using baselines::Results;

constexpr double kClose = 1e-12;
// For numbers that are given to six or seven digits.
constexpr double kDigits = 2e-6;

// Writes value(i) into element i of an operand of `count` elements.
void set(const OperandSet& operands, const void* data, const tessera_desc& desc, int64_t count,
         const std::function<double(int64_t)>& value) {
  for (const baselines::Buffer& buffer : operands.buffers) {
    if (buffer.data() != data) continue;
    for (int64_t i = 0; i < count; ++i) baselines::store_element(desc.dtype, buffer.data(), i, value(i));
  }
}

// An f64 problem whose operands a test fills by hand; all contiguous.
struct Manual {
  OperandSet operands;
  tessera_problem& p = operands.problem;

  explicit Manual(const std::string& text) : operands(operands_of(text)) {}

  void q(const std::function<double(int64_t)>& value) {
    set(operands, operands.tensors.q, p.q, p.batch * p.seqlen_q * p.heads_q * p.head_dim_qk, value);
  }
  void k(const std::function<double(int64_t)>& value) {
    set(operands, operands.tensors.k, p.k, p.batch * p.seqlen_k * p.heads_kv * p.head_dim_qk, value);
  }
  void v(const std::function<double(int64_t)>& value) {
    set(operands, operands.tensors.v, p.v, p.batch * p.seqlen_k * p.heads_kv * p.head_dim_v, value);
  }
  void d_o(const std::function<double(int64_t)>& value) {
    set(operands, operands.tensors.d_o, p.d_o, p.batch * p.seqlen_q * p.heads_q * p.head_dim_v, value);
  }
  void floats(const float* data, std::initializer_list<float> values) {
    for (const baselines::Buffer& buffer : operands.buffers) {
      if (buffer.data() == reinterpret_cast<const std::byte*>(data)) {
        std::copy(values.begin(), values.end(), reinterpret_cast<float*>(buffer.data()));
      }
    }
  }
  Results results() const { return baselines::reference(validated(p), operands.tensors, Precision::exact); }
};

double zero(int64_t) { return 0; }
double one(int64_t) { return 1; }

TEST(Reference, EqualScoresGiveTheMeanOfValuesAndLogOfTheCount) {
  Manual call("fwd f64 sq2 sk3 d4 dv1");
  call.q(zero);
  call.v([](int64_t j) { return static_cast<double>(j * j); });  // 0, 1, 4
  const Results results = call.results();
  EXPECT_NEAR(results.o[0], 5.0 / 3, kClose);
  EXPECT_NEAR(results.o[1], 5.0 / 3, kClose);
  EXPECT_NEAR(results.lse[1], std::log(3.0), kClose);
}

TEST(Reference, OneKeyGivesItsValueAndItsScore) {
  Manual call("fwd f64 hq2 sq1 sk1 d3 scale=0.5");
  call.q([](int64_t i) { return static_cast<double>(i + 1); });  // heads (1 2 3), (4 5 6)
  call.k(one);
  call.v([](int64_t i) { return static_cast<double>(10 + i); });
  const Results results = call.results();
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(results.o[i], 10.0 + static_cast<double>(i));
  EXPECT_NEAR(results.lse[0], 3.0, kClose);
  EXPECT_NEAR(results.lse[1], 7.5, kClose);
}

TEST(Reference, TwoKeysAtDistanceLnThree) {
  // Scores 0 and ln 3: probabilities 1/4 and 3/4, lse ln 4.
  Manual call("fwd f64 sq1 sk2 d1 scale=1");
  call.q([](int64_t) { return std::log(3.0); });
  call.k([](int64_t j) { return static_cast<double>(j); });
  call.v([](int64_t j) { return j == 0 ? 8.0 : 4.0; });
  const Results results = call.results();
  EXPECT_NEAR(results.o[0], 5.0, kClose);
  EXPECT_NEAR(results.lse[0], std::log(4.0), kClose);
}

TEST(Reference, DefaultScaleIsOneOverRootOfHeadDim) {
  Manual call("fwd f64 sq1 sk1 d16 dv1");
  call.q(one);
  call.k(one);
  EXPECT_NEAR(call.results().lse[0], 4.0, kClose);
}

TEST(Reference, ZeroAndNegativeScalesAreValues) {
  Manual zero_scale("fwd f64 sq4 sk4 d1 scale=0 causal");
  zero_scale.v([](int64_t j) { return static_cast<double>(j); });
  const Results uniform = zero_scale.results();
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(uniform.o[i], static_cast<double>(i) / 2, kClose);
    EXPECT_NEAR(uniform.lse[i], std::log(static_cast<double>(i + 1)), kClose);
  }
  // Scores 0, -1, -2, -3, then only the first two.
  for (const auto& [lens, o, lse] : {std::tuple{"", 0.507347, 0.440190}, std::tuple{" lens=2", 0.268941, 0.313262}}) {
    Manual negative(std::string("fwd f64 sq4 sk4 d8 dv1 scale=-1") + lens);
    negative.q([](int64_t i) { return i % 8 == 0 ? 1.0 : 0.0; });
    negative.k([](int64_t i) { return i % 8 == 0 ? static_cast<double>(i / 8) : 0.0; });
    negative.v([](int64_t j) { return static_cast<double>(j); });
    const Results results = negative.results();
    EXPECT_NEAR(results.o[0], o, kDigits);
    EXPECT_NEAR(results.lse[0], lse, kDigits);
  }
}

TEST(Reference, CausalFromEitherCorner) {
  // Two keys, values 1 and 3, equal scores.
  const auto value = [](int64_t j) { return j == 0 ? 1.0 : 3.0; };
  Manual bottom("fwd f64 sq5 sk2 d1 causal");
  bottom.k(zero);
  bottom.v(value);
  const Results results = bottom.results();
  const double ln2 = std::log(2.0);
  const double o[] = {0, 0, 0, 1, 2}, lse[] = {-INFINITY, -INFINITY, -INFINITY, 0, ln2};
  for (int64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(results.o[i], o[i]);
    EXPECT_FALSE(std::signbit(results.o[i]));
    EXPECT_DOUBLE_EQ(results.lse[i], lse[i]);
  }
  Manual top("fwd f64 sq5 sk2 d1 causal topleft");
  top.k(zero);
  top.v(value);
  const double top_o[] = {1, 2, 2, 2, 2};
  for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(top.results().o[i], top_o[i]);
  // One query over four keys: bottom-right sees all of them, top-left the first.
  Manual decode("fwd f64 sq1 sk4 d1 causal"), first("fwd f64 sq1 sk4 d1 causal topleft");
  for (Manual* call : {&decode, &first}) {
    call->k(zero);
    call->v([](int64_t j) { return static_cast<double>(j); });
  }
  EXPECT_EQ(decode.results().o[0], 1.5);
  EXPECT_EQ(first.results().o[0], 0.0);
}

TEST(Reference, WindowBoundsAreInclusive) {
  // Row i sees keys i-1, i and i+1.
  Manual call("fwd f64 sq4 sk4 d1 window=1,1");
  call.k(zero);
  call.v([](int64_t j) { return static_cast<double>(j); });
  const Results results = call.results();
  const double o[] = {0.5, 1, 2, 2.5};
  for (int64_t i = 0; i < 4; ++i) EXPECT_NEAR(results.o[i], o[i], kClose);
  Manual self("fwd f64 sq4 sk4 d1 window=0,0");
  self.v([](int64_t j) { return static_cast<double>(7 * j); });
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(self.results().o[i], 7.0 * static_cast<double>(i));
}

TEST(Reference, AlibiPenalisesTheDistanceFromTheDiagonal) {
  // One query at diagonal 2 with slope ln 2: weights 1/4, 1/2, 1.
  Manual call("fwd f64 sq1 sk3 d1 alibi");
  call.k(zero);
  call.v([](int64_t j) { return static_cast<double>(j); });
  call.floats(call.operands.tensors.alibi_slopes, {std::log(2.0f)});
  const Results results = call.results();
  EXPECT_NEAR(results.o[0], 2.5 / 1.75, 1e-7);
  EXPECT_NEAR(results.lse[0], std::log(1.75), 1e-7);
}

TEST(Reference, SinkTakesWeightAndGivesNothing) {
  // Three keys of score 0 and a sink of ln 5: every key has 1/8.
  Manual call("fwd f64 sq1 sk3 d1 sinks");
  call.k(zero);
  call.v(one);
  call.floats(call.operands.tensors.sinks, {std::log(5.0f)});
  EXPECT_NEAR(call.results().o[0], 3.0 / 8, 1e-7);
  EXPECT_NEAR(call.results().lse[0], std::log(8.0), 1e-7);
  call.floats(call.operands.tensors.sinks, {-INFINITY});
  EXPECT_NEAR(call.results().o[0], 1.0, kClose);
  Manual empty("fwd f64 sq1 sk0 d1 sinks");
  empty.floats(empty.operands.tensors.sinks, {0.25f});
  EXPECT_EQ(empty.results().o[0], 0.0);
  EXPECT_EQ(empty.results().lse[0], 0.25);
}

TEST(Reference, MinusInfinityAndMaskBytesDropKeys) {
  Manual bias("fwd f64 sq2 sk3 d1 bias=1");
  bias.k(zero);
  bias.v([](int64_t j) { return static_cast<double>(j); });
  const double entries[] = {0, -INFINITY, std::log(3.0), -INFINITY, -INFINITY, -INFINITY};
  set(bias.operands, bias.operands.tensors.bias, bias.p.bias, 6, [&](int64_t i) { return entries[i]; });
  const Results results = bias.results();
  EXPECT_NEAR(results.o[0], 1.5, kClose);
  EXPECT_NEAR(results.lse[0], std::log(4.0), kClose);
  EXPECT_EQ(results.o[1], 0.0);
  EXPECT_EQ(results.lse[1], -INFINITY);
  Manual mask("fwd f64 sq1 sk3 d1 mask");
  mask.k(zero);
  mask.v([](int64_t j) { return static_cast<double>(j); });
  set(mask.operands, mask.operands.tensors.bias, mask.p.bias, 3, [](int64_t j) { return j == 1 ? 0.0 : 7.0; });
  EXPECT_NEAR(mask.results().o[0], 1.0, kClose);
  EXPECT_NEAR(mask.results().lse[0], std::log(2.0), kClose);
}

TEST(Reference, SoftcapForwardAndItsDerivative) {
  Manual call("bwd f64 sq1 sk2 d8 scale=1 softcap=2");
  call.q([](int64_t i) { return i == 0 ? 4.0 : 0.0; });
  call.k([](int64_t i) { return i == 8 ? 1.0 : 0.0; });
  call.v([](int64_t i) { return i == 8 ? 1.0 : 0.0; });
  call.d_o([](int64_t i) { return i == 0 ? 1.0 : 0.0; });
  const Results results = call.results();
  EXPECT_NEAR(results.lse[0], 2.063836, kDigits);
  EXPECT_NEAR(results.o[0], 0.873034, kDigits);
  EXPECT_NEAR(results.dq[0], 0.0078313, kDigits);
  EXPECT_NEAR(results.dk[0], -0.443383, kDigits);
  EXPECT_NEAR(results.dk[8], 0.0313253, kDigits);
}

TEST(Reference, GradientOfASumOverCausalRows) {
  // K, Q = 0: row i spreads its d_o of 1 over i + 1 keys.
  Manual call("bwd f64 sq5 sk5 d2 causal");
  call.q(zero);
  call.d_o(one);
  const Results results = call.results();
  const double dv[] = {2 + 17.0 / 60, 1 + 17.0 / 60, 47.0 / 60, 0.45, 0.2};
  for (int64_t j = 0; j < 5; ++j) {
    EXPECT_NEAR(results.dv[2 * j], dv[j], kClose);
    EXPECT_NEAR(results.dk[2 * j], 0.0, kClose);
  }
}

TEST(Reference, RowsWithoutKeysAddNothing) {
  Manual call("bwd f64 sq5 sk2 d3 causal");
  call.k(zero);
  call.d_o(one);
  const Results results = call.results();
  for (int64_t i = 0; i < 9; ++i) EXPECT_EQ(results.dq[i], 0.0);
  for (int64_t c = 0; c < 3; ++c) {
    EXPECT_NEAR(results.dv[c], 1.5, kClose);
    EXPECT_NEAR(results.dv[3 + c], 0.5, kClose);
  }
}

TEST(Reference, GradientOfLseIsTheMeanKey) {
  Manual call("bwd f64 sq1 sk2 d1 scale=3 dlse");
  call.q(zero);
  call.k([](int64_t j) { return j == 0 ? 2.0 : 8.0; });
  call.d_o(zero);
  set(call.operands, call.operands.tensors.d_lse, call.p.q, 1, one);
  const Results results = call.results();
  EXPECT_NEAR(results.dq[0], 3 * 5.0, kClose);
  EXPECT_EQ(results.dv[0], 0.0);
}

TEST(Reference, GradientOfSinks) {
  // One key of score 0 and value 4 beside a sink of 0: P = 1/2, o = 2, delta = 2 d_o.
  Manual call("bwd f64 sq1 sk1 d1 sinks dlse");
  call.q(zero);
  call.v([](int64_t) { return 4.0; });
  call.d_o([](int64_t) { return 3.0; });
  call.floats(call.operands.tensors.sinks, {0.0f});
  set(call.operands, call.operands.tensors.d_lse, call.p.q, 1, one);
  EXPECT_NEAR(call.results().d_sinks[0], 0.5 * (1 - 6), kClose);
  // A row without keys still has lse = sink, so d_lse passes through.
  Manual empty("bwd f64 sq3 sk1 d1 sinks dlse causal");
  empty.q(zero);
  empty.d_o(zero);
  empty.floats(empty.operands.tensors.sinks, {0.0f});
  set(empty.operands, empty.operands.tensors.d_lse, empty.p.q, 3, one);
  EXPECT_NEAR(empty.results().d_sinks[0], 1 + 1 + 0.5, kClose);
}

TEST(Reference, GradientOfABroadcastBiasIsItsSum) {
  // Two heads share one bias row; scores equal, values 0 and 1, d_o 1 and 3: dX = P (dP - delta) = -+1/4, -+3/4.
  Manual call("bwd f64 hq2 sq1 sk2 d1 bias=1 dbias");
  call.q(zero);
  call.v([](int64_t i) { return i < 2 ? 0.0 : 1.0; });
  call.d_o([](int64_t head) { return head == 0 ? 1.0 : 3.0; });
  set(call.operands, call.operands.tensors.bias, call.p.bias, 2, zero);
  const Results results = call.results();
  ASSERT_EQ(results.d_bias.size(), 2u);
  EXPECT_NEAR(results.d_bias[0], -1.0, kClose);
  EXPECT_NEAR(results.d_bias[1], 1.0, kClose);
}

TEST(Reference, HugeEqualScoresStayFinite) {
  Manual call("bwd bf16 sq3 sk3 d64");
  const auto huge = [](int64_t) { return 133120.0; };
  call.q(huge);
  call.k(huge);
  call.v(huge);
  call.d_o(one);
  const Results results = call.results();
  EXPECT_EQ(results.o[0], 133120.0);
  EXPECT_NEAR(results.lse[0], 1.417675e11, 1e5);
  for (const double value : results.dq) EXPECT_TRUE(std::isfinite(value));
}

}  // namespace
}  // namespace tessera::tests
