// The backward judge against central differences of the forward judge, in float64, for every feature. The function
// differentiated is sum(d_o * o) + sum(d_lse * lse).
#include <gtest/gtest.h>

#include <cmath>

#include "judged_run.hpp"

namespace tessera::tests {
namespace {

using baselines::OperandSet;
using baselines::Precision;
using baselines::Results;

// A power of two near the cube root of float64's epsilon: truncation and rounding both stay below 1e-9.
constexpr double kStep = 0x1p-17;
constexpr double kAllowed = 2e-7;

class Differences {
 public:
  explicit Differences(const std::string& text) : operands_(operands_of(text)), problem_(validated(operands_.problem)) {
    forward_ = problem_;
    forward_.pass = TESSERA_FORWARD;
    forward_.flags &= ~(TESSERA_FLAG_D_LSE | TESSERA_FLAG_D_SINKS | TESSERA_FLAG_D_BIAS);
    // Sinks are float32: a few binary digits leave room for an exact step.
    if (problem_.has(TESSERA_FLAG_SINKS)) {
      for (int32_t h = 0; h < problem_.heads_q; ++h) mutable_sinks()[h] = 0.5f * static_cast<float>(h) - 0.25f;
    }
    exact_ = baselines::reference(problem_, operands_.tensors, Precision::exact);
  }

  const core::Problem& problem() const { return problem_; }

  // Every element of a contiguous float64 input against its gradient; padding (NaN) must have gradient 0.
  void check(const char* name, const void* input, const std::vector<double>& gradient) {
    auto* values = static_cast<double*>(const_cast<void*>(input));
    for (size_t i = 0; i < gradient.size(); ++i) {
      if (!std::isfinite(values[i])) {
        EXPECT_EQ(gradient[i], 0.0) << name << ' ' << i;
        continue;
      }
      const double before = values[i];
      values[i] = before + kStep;
      const double above = objective();
      values[i] = before - kStep;
      const double below = objective();
      values[i] = before;
      EXPECT_NEAR(gradient[i], (above - below) / (2 * kStep), kAllowed) << name << ' ' << i;
    }
  }

  void check_all() {
    const tessera_tensors& t = operands_.tensors;
    check("dq", t.q, exact_.dq);
    check("dk", t.k, exact_.dk);
    check("dv", t.v, exact_.dv);
    if (problem_.has(TESSERA_FLAG_D_BIAS)) check("d_bias", t.bias, exact_.d_bias);
    if (problem_.has(TESSERA_FLAG_D_SINKS)) check_sinks();
  }

 private:
  float* mutable_sinks() { return const_cast<float*>(operands_.tensors.sinks); }

  void check_sinks() {
    for (int32_t h = 0; h < problem_.heads_q; ++h) {
      const float before = mutable_sinks()[h];
      mutable_sinks()[h] = before + static_cast<float>(kStep);
      const double above = objective();
      mutable_sinks()[h] = before - static_cast<float>(kStep);
      const double below = objective();
      mutable_sinks()[h] = before;
      EXPECT_NEAR(exact_.d_sinks[h], (above - below) / (2 * kStep), kAllowed) << "d_sinks " << h;
    }
  }

  double objective() const {
    const Results results = baselines::reference(forward_, operands_.tensors, Precision::exact);
    const auto* d_o = static_cast<const double*>(operands_.tensors.d_o);
    const auto* d_lse = static_cast<const double*>(operands_.tensors.d_lse);
    double sum = 0;
    for (size_t i = 0; i < results.o.size(); ++i) {
      if (std::isfinite(d_o[i])) sum += d_o[i] * results.o[i];
    }
    for (size_t i = 0; d_lse != nullptr && i < results.lse.size(); ++i) {
      if (std::isfinite(d_lse[i]) && std::isfinite(results.lse[i])) sum += d_lse[i] * results.lse[i];
    }
    return sum;
  }

  OperandSet operands_;
  core::Problem problem_, forward_;
  Results exact_;
};

TEST(Gradients, EveryFeatureAgreesWithCentralDifferences) {
  for (const char* words : {"",
                            "dlse",
                            "causal",
                            "causal topleft dlse",
                            "window=2,1",
                            "window=1,-1 topleft",
                            "softcap=1.5",
                            "alibi causal",
                            "sinks dlse",
                            "sinks causal alibi softcap=2 dlse",
                            "scale=0",
                            "scale=-0.8 dlse",
                            "bias=bh dbias",
                            "bias=b dbias",
                            "bias=h dbias softcap=1 dlse",
                            "bias=1 dbias causal sinks dlse",
                            "mask dlse causal",
                            "packed lens=5:2 causal dlse",
                            "packed lens=0:4",
                            "lens=3:6 dlse sinks",
                            "lens=4:5 bias=b dbias"}) {
    SCOPED_TRACE(words);
    Differences(std::string("bwd f64 b2 hq4 hkv2 sq5 sk6 d3 dv2 ") + words).check_all();
  }
  // More queries than keys: rows without keys.
  for (const char* words : {"causal", "causal sinks dlse", "causal bias=1 dbias dlse"}) {
    SCOPED_TRACE(words);
    Differences(std::string("bwd f64 b1 hq2 hkv1 sq6 sk3 d2 ") + words).check_all();
  }
}

TEST(Gradients, AMissingDerivativeIsSeen) {
  // The check itself: gradients of the uncapped problem are far from those of the capped one.
  const auto gradients = [](const std::string& text) {
    const OperandSet operands = operands_of(text);
    return baselines::reference(validated(operands.problem), operands.tensors, Precision::exact);
  };
  const Results wrong = gradients("bwd f64 sq4 sk4 d3"), right = gradients("bwd f64 sq4 sk4 d3 softcap=1");
  double difference = 0;
  for (size_t i = 0; i < wrong.dq.size(); ++i) difference = std::max(difference, std::fabs(wrong.dq[i] - right.dq[i]));
  EXPECT_GT(difference, 1000 * kAllowed);
}

}  // namespace
}  // namespace tessera::tests
