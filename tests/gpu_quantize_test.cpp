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

}  // namespace
}  // namespace tessera::test
