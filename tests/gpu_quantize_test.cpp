// tessera_quantize on CUDA devices has the bits of the CPU; tests/quantize_test.cpp holds both to float64.
#include "quantize_case.hpp"

namespace tessera::test {
namespace {

const std::vector<int32_t> kFrom = {TESSERA_BF16, TESSERA_F16, TESSERA_F32};

// The device's bytes and scales are the CPU's, means of numbers whose sums float64 holds too.
TEST(GpuQuantize, HasTheBitsOfTheCpu) {
  if (const char* reason = no_gpu()) GTEST_SKIP() << "no GPU test here: " << reason;
  for (const int32_t from : kFrom)
    for (const int32_t to : {TESSERA_E4M3, TESSERA_INT8})
      for (const int32_t dim : {64, 128, 20})
        for (const int32_t order : {0, 1}) {
          SCOPED_TRACE(::testing::Message()
                       << name_of(from) << " to " << name_of(to) << " d " << dim << " order " << order);
          QuantizeCase cpu(from, to, {.batch = 1, .seqlen = 133, .heads = 2, .head_dim = dim});
          cpu.set_scales(7, 128);
          cpu.rotate(5);
          cpu.subtract_mean();
          if (order == 1) cpu.set_order();
          tessera_status status{};
          ASSERT_EQ(cpu.run(&status), TESSERA_OK) << status.message;
          QuantizeCase gpu = cpu;
          gpu.y = cpu.y.clone(), gpu.scale = cpu.scale.clone(), gpu.mean = cpu.mean.clone();
          const OnGpu target;
          ASSERT_EQ(gpu.run(&status), TESSERA_OK) << status.message;
          EXPECT_TRUE(gpu.mean.same_bits(cpu.mean)) << "mean";
          EXPECT_TRUE(gpu.scale.same_bits(cpu.scale)) << "scale";
          EXPECT_TRUE(gpu.y.same_bits(cpu.y)) << "y";
        }
}

// Nobody has looked at cu_seqlens before the launch: a sequence that leaves the arrays is left out, others are right.
TEST(GpuQuantize, SequencesOutOfRangeAreLeftOut) {
  if (const char* reason = no_gpu()) GTEST_SKIP() << "no GPU test here: " << reason;
  for (const int32_t order : {0, 1})
    for (const std::vector<int32_t>& wrong :
         {std::vector<int32_t>{0, 20, 2000, 40}, {0, 20, -7, 40}, {0, 20, 90, 40}}) {
      QuantizeCase c(TESSERA_BF16, TESSERA_E4M3, {.batch = 0, .seqlen = 30, .heads = 2, .head_dim = 32},
                     {0, 20, 30, 40});
      if (order == 1) c.set_order();
      c.set_scales(5);
      c.subtract_mean();
      QuantizeCase right = c;
      right.scale = c.scale.clone(), right.mean = c.mean.clone();
      c.cu_seqlens = wrong;
      tessera_status status{};
      ASSERT_EQ(right.run(&status), TESSERA_OK) << status.message;
      const OnGpu target;
      ASSERT_EQ(c.run(&status), TESSERA_OK) << status.message;
      for (int64_t row = 0; row < 20; ++row)
        for (int64_t h = 0; h < 2; ++h) EXPECT_EQ(c.stored(0, row, h, 5), right.stored(0, row, h, 5));
      EXPECT_EQ(c.scale_of(0, 0, 1), right.scale_of(0, 0, 1));
      EXPECT_EQ(c.scale_of(1, 0, 1), 1.0);
      EXPECT_TRUE(c.y.gaps_intact() && c.scale.gaps_intact() && c.mean.gaps_intact());
    }
}

TEST(GpuQuantize, WhatADeviceDoesNotTakeIsRefusedByName) {
  if (const char* reason = no_gpu()) GTEST_SKIP() << "no GPU test here: " << reason;
  const OnGpu target;
  tessera_status status{};
  QuantizeCase ordered(TESSERA_BF16, TESSERA_E4M3, {.batch = 1, .seqlen = 4, .heads = 1, .head_dim = 264});
  ordered.set_order();
  EXPECT_EQ(ordered.run(&status), TESSERA_UNSUPPORTED);
  EXPECT_NE(std::string(status.message).find("head_dim is 264 and order is 1"), std::string::npos) << status.message;
  QuantizeCase turned(TESSERA_BF16, TESSERA_E4M3, {.batch = 1, .seqlen = 4, .heads = 1, .head_dim = 576});
  turned.rotate(1);
  EXPECT_EQ(turned.run(&status), TESSERA_UNSUPPORTED);
  EXPECT_NE(std::string(status.message).find("head_dim is 576 and hadamard is 1"), std::string::npos) << status.message;
}

}  // namespace
}  // namespace tessera::test
