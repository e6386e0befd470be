// tessera_quantize on CUDA devices has the bits of the CPU; tests/quantize_test.cpp holds both to float64.
#include "quantize_case.hpp"

namespace tessera::test {
namespace {

const std::vector<int32_t> kFrom = {TESSERA_BF16, TESSERA_F16, TESSERA_F32};

// Runs `cpu` and the same call on a device.
void expect_bits_of_the_cpu(QuantizeCase& cpu) {
  tessera_status status{};
  ASSERT_EQ(cpu.run(&status), TESSERA_OK) << status.message;
  QuantizeCase gpu = cpu;
  gpu.y = cpu.y.clone();
  if (!cpu.scale.absent()) gpu.scale = cpu.scale.clone();
  if (!cpu.mean.absent()) gpu.mean = cpu.mean.clone();
  const OnGpu target;
  ASSERT_EQ(gpu.run(&status), TESSERA_OK) << status.message;
  EXPECT_TRUE(cpu.mean.absent() || gpu.mean.same_bits(cpu.mean)) << "mean";
  EXPECT_TRUE(cpu.scale.absent() || gpu.scale.same_bits(cpu.scale)) << "scale";
  EXPECT_TRUE(gpu.y.same_bits(cpu.y)) << "y";
}

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
          expect_bits_of_the_cpu(cpu);
        }
}

// A stride of 0 shares a scale between rows that could each have their own, in one tile and in two.
TEST(GpuQuantize, RowsThatShareAScaleHaveTheBitsOfTheCpu) {
  if (const char* reason = no_gpu()) GTEST_SKIP() << "no GPU test here: " << reason;
  for (const int64_t seqlen : {2, 100, 128, 141})
    for (const int32_t dim : {24, 64})
      for (const int cells : {0, 1, 4, 5})
        for (const int32_t scale_rows : {1, 128}) {
          SCOPED_TRACE(::testing::Message()
                       << seqlen << " rows d " << dim << " cells " << cells << " of " << scale_rows << " rows");
          QuantizeCase cpu(TESSERA_BF16, TESSERA_INT8, {.batch = 2, .seqlen = seqlen, .heads = 2, .head_dim = dim});
          cpu.set_scales(cells, scale_rows);
          cpu.x.fill([&](int64_t b, int64_t i, int64_t h, int64_t e) {
            return static_cast<double>((i * 37 + b * 3 + h * 11 + e * 53) % 257 - 128) / 32 *
                   static_cast<double>(1 + i % 5);
          });
          expect_bits_of_the_cpu(cpu);
        }
}

// Rows that a block holds in registers: every head_dim's share of a warp, extent of scales, order and transformation,
// a tile that is full and one that is not. Infinities are no largest magnitude.
TEST(GpuQuantize, HeldRowsHaveTheBitsOfTheCpu) {
  if (const char* reason = no_gpu()) GTEST_SKIP() << "no GPU test here: " << reason;
  size_t turn = 0;
  for (const int32_t dim : {16, 48, 64, 96, 112, 128, 192, 256})
    for (const bool rotated : {false, true})
      for (const auto& [cells, scale_rows] : {std::pair{-1, 0}, {0, 0}, {5, 0}, {7, 128}, {7, 1}, {3, 1}}) {
        const int32_t from = kFrom[turn % 3], to = turn / 3 % 2 == 0 ? TESSERA_E4M3 : TESSERA_INT8;
        const bool order = (turn / 2 + turn / 12) % 2 == 1, mean = turn % 5 == 2;
        ++turn;
        SCOPED_TRACE(::testing::Message()
                     << name_of(from) << " to " << name_of(to) << " d " << dim << " cells " << cells << " of "
                     << scale_rows << " rows, rotated " << rotated << " order " << order << " mean " << mean);
        QuantizeCase cpu(from, to, {.batch = 1, .seqlen = 141, .heads = 2, .head_dim = dim});
        cpu.set_scales(cells, scale_rows);
        if (rotated) cpu.rotate(11);
        if (mean) cpu.subtract_mean();
        if (order) cpu.set_order();
        if (!rotated)
          cpu.x.fill([&](int64_t, int64_t i, int64_t h, int64_t e) {
            if ((i * 31 + h * 7 + e) % 509 == 3) return i % 2 == 0 ? HUGE_VAL : -HUGE_VAL;
            return static_cast<double>((i * 37 + h * 11 + e * 53) % 257 - 128) / 32;
          });
        expect_bits_of_the_cpu(cpu);
      }
}

// More than one group of whole cells (a third of the emulator's L2 cache is 350 KB): of batches, of heads of one, of
// heads of all, the last one smaller, or one that nothing divides.
TEST(GpuQuantize, GroupsOfCellsHaveTheBitsOfTheCpu) {
  if (const char* reason = no_gpu()) GTEST_SKIP() << "no GPU test here: " << reason;
  const struct {
    QuantizeShape shape;
    int cells;
    bool rotated, mean;
  } cases[] = {
      {{3, 500, 2, 128}, 5, false, false}, {{3, 500, 2, 128}, 5, true, false},  {{3, 500, 2, 128}, 5, false, true},
      {{2, 700, 3, 128}, 5, false, false}, {{2, 1500, 3, 64}, 5, true, false},  {{2, 700, 3, 128}, 5, false, true},
      {{2, 700, 5, 64}, 4, false, false},  {{2, 700, 5, 64}, 4, true, false},   {{2, 700, 5, 64}, 4, false, true},
      {{5, 400, 2, 64}, 1, false, false},  {{3, 400, 2, 128}, 1, true, false},  {{3, 400, 2, 128}, 1, false, true},
      {{2, 1000, 2, 128}, 0, true, false}, {{2, 1000, 2, 128}, 0, false, true}, {{3, 300, 2, 192}, 5, true, true},
      {{1, 400, 4, 256}, 4, true, false},
  };
  size_t turn = 0;
  for (const auto& c : cases) {
    const int32_t from = kFrom[turn % 2], to = turn / 2 % 2 == 0 ? TESSERA_E4M3 : TESSERA_INT8;
    const bool order = turn++ % 3 == 1;
    SCOPED_TRACE(::testing::Message() << "b" << c.shape.batch << " n" << c.shape.seqlen << " h" << c.shape.heads << " d"
                                      << c.shape.head_dim << " cells " << c.cells << " rotated " << c.rotated
                                      << " mean " << c.mean << " order " << order);
    QuantizeCase cpu(from, to, c.shape);
    cpu.set_scales(c.cells);
    if (c.rotated) cpu.rotate(3);
    if (c.mean) cpu.subtract_mean();
    if (order) cpu.set_order();
    cpu.x.fill([&](int64_t b, int64_t i, int64_t h, int64_t e) {
      return static_cast<double>((i * 37 + b * 29 + h * 11 + e * 53) % 257 - 128) / 32 * static_cast<double>(1 + h + b);
    });
    expect_bits_of_the_cpu(cpu);
  }
}

// A mean that is taken off can make a number too large for float32, which counts for no scale.
TEST(GpuQuantize, DifferencesPastTheLargestNumberCountForNothing) {
  if (const char* reason = no_gpu()) GTEST_SKIP() << "no GPU test here: " << reason;
  for (const int32_t from : {TESSERA_BF16, TESSERA_F32})
    for (const int32_t dim : {64, 20}) {
      SCOPED_TRACE(::testing::Message() << name_of(from) << " d " << dim);
      QuantizeCase cpu(from, TESSERA_E4M3, {.batch = 1, .seqlen = 200, .heads = 2, .head_dim = dim});
      cpu.x.fill([&](int64_t, int64_t i, int64_t h, int64_t e) {
        if (e != 3 || h != 1) return static_cast<double>(i % 7);
        return i == 150 ? 0x1p127 : i % 2 == 0 ? -0x1.8p127 : -0x1.8p126;
      });
      cpu.set_scales(4);
      cpu.subtract_mean();
      expect_bits_of_the_cpu(cpu);
    }
}

// Rows of 64, 128 and 256 rotated channels, a thread's or two threads' own: what is not finite counts in no scale.
TEST(GpuQuantize, RotatedRowsHaveTheBitsOfTheCpu) {
  if (const char* reason = no_gpu()) GTEST_SKIP() << "no GPU test here: " << reason;
  size_t turn = 0;
  for (const int32_t dim : {64, 128, 256})
    for (const auto& [cells, scale_rows] : {std::pair{-1, 0}, {0, 0}, {5, 0}, {7, 128}, {7, 1}, {3, 1}})
      for (const bool finite : {true, false}) {
        const int32_t from = kFrom[turn % 2], to = turn / 2 % 2 == 0 ? TESSERA_E4M3 : TESSERA_INT8;
        ++turn;
        SCOPED_TRACE(::testing::Message() << name_of(from) << " to " << name_of(to) << " d " << dim << " cells "
                                          << cells << " of " << scale_rows << " rows, finite " << finite);
        QuantizeCase cpu(from, to, {.batch = 2, .seqlen = 141, .heads = 2, .head_dim = dim});
        cpu.set_scales(cells, scale_rows);
        cpu.rotate(17);
        if (!finite) {
          cpu.x.set(0, 3, 1, 5, INFINITY), cpu.x.set(1, 140, 0, 7, -INFINITY), cpu.x.set(1, 140, 0, 9, INFINITY);
          cpu.x.set(1, 9, 1, 2, NAN);
        }
        expect_bits_of_the_cpu(cpu);
      }
}

// Sequences of their own lengths, one of them empty, more tiles than blocks that walk over them.
TEST(GpuQuantize, RotatedSequencesHaveTheBitsOfTheCpu) {
  if (const char* reason = no_gpu()) GTEST_SKIP() << "no GPU test here: " << reason;
  for (const auto& [cells, scale_rows] : {std::pair{5, 0}, {7, 128}, {7, 1}, {-1, 0}}) {
    SCOPED_TRACE(::testing::Message() << "cells " << cells << " of " << scale_rows << " rows");
    QuantizeCase cpu(TESSERA_BF16, TESSERA_E4M3, {.batch = 0, .seqlen = 500, .heads = 9, .head_dim = 64},
                     {0, 300, 300, 309, 809});
    cpu.set_scales(cells, scale_rows);
    cpu.rotate(4);
    expect_bits_of_the_cpu(cpu);
  }
}

// More rows than a block of the means loads at once, and some more; threads that have no channel.
TEST(GpuQuantize, MeansOfManyRowsHaveTheBitsOfTheCpu) {
  if (const char* reason = no_gpu()) GTEST_SKIP() << "no GPU test here: " << reason;
  for (const int32_t from : kFrom)
    for (const int32_t dim : {96, 48, 20}) {
      SCOPED_TRACE(::testing::Message() << name_of(from) << " d " << dim);
      QuantizeCase cpu(from, TESSERA_E4M3, {.batch = 1, .seqlen = 1300, .heads = 1, .head_dim = dim});
      cpu.set_scales(0);
      cpu.subtract_mean();
      expect_bits_of_the_cpu(cpu);
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
