// tessera_quantize, on the CPU and on CUDA devices: bytes, scales and means against float64 in every layout, order,
// type and extent of the scales; the rotation is orthonormal; what is not finite stays where it is; bad arguments.
#include <cstring>

#include "quantize_case.hpp"

namespace tessera::test {
namespace {

const std::vector<int32_t> kFrom = {TESSERA_BF16, TESSERA_F16, TESSERA_F32};

void run_and_check(QuantizeCase& c, const std::vector<std::vector<double>>& rotation = {}) {
  tessera_status status{};
  ASSERT_EQ(c.run(&status), TESSERA_OK) << status.message;
  c.expect_right(rotation);
}

// R by the images of the unit vectors, whose entries are one magnitude and so are stored without an error.
std::vector<std::vector<double>> rotation_of(int32_t dim, uint64_t seed) {
  QuantizeCase c(TESSERA_F32, TESSERA_E4M3, {.batch = 1, .seqlen = dim, .heads = 1, .head_dim = dim});
  c.x.fill([](int64_t, int64_t i, int64_t, int64_t e) { return i == e ? 1.0 : 0.0; });
  c.set_scales(0);
  c.rotate(seed);
  tessera_status status{};
  EXPECT_EQ(c.run(&status), TESSERA_OK) << status.message;
  std::vector<std::vector<double>> r(static_cast<size_t>(dim), std::vector<double>(static_cast<size_t>(dim)));
  for (int64_t i = 0; i < dim; ++i)
    for (int64_t j = 0; j < dim; ++j)
      r[static_cast<size_t>(i)][static_cast<size_t>(j)] = c.stored(0, j, 0, i) * c.scale_of(0, j, 0);
  return r;
}

TESSERA_SITUATION(Quantize, EveryTypeAndExtentOfScales) {
  int turn = 0;
  for (const int32_t to : {TESSERA_E4M3, TESSERA_INT8})
    for (const int cells : {-1, 0, 4, 5, 7})
      for (const int32_t scale_rows : {0, 1, 128})
        for (const int32_t order : {0, 1}) {
          const int32_t from = kFrom[static_cast<size_t>(turn++ % 3)];
          SCOPED_TRACE(::testing::Message() << name_of(from) << " to " << name_of(to) << " cells " << cells << " of "
                                            << scale_rows << " rows, order " << order);
          QuantizeCase c(from, to, {.batch = 2, .seqlen = 150, .heads = 3, .head_dim = turn % 2 == 0 ? 40 : 21});
          c.set_scales(cells, scale_rows);
          if (order == 1) c.set_order();
          run_and_check(c);
        }
}

TESSERA_SITUATION(Quantize, PackedSequencesOfAnyLength) {
  for (const int32_t to : {TESSERA_E4M3, TESSERA_INT8})
    for (const int cells : {0, 5, 7})
      for (const int32_t order : {0, 1}) {
        SCOPED_TRACE(::testing::Message() << name_of(to) << " cells " << cells << " order " << order);
        QuantizeCase c(TESSERA_BF16, to, {.batch = 0, .seqlen = 140, .heads = 2, .head_dim = 32},
                       {0, 16, 16, 17, 50, 190, 193});
        c.set_scales(cells, cells == 7 ? 128 : 0);
        if (order == 1) c.set_order();
        c.subtract_mean();
        run_and_check(c);
      }
}

TESSERA_SITUATION(Quantize, StridesAndAlignmentAreTheCallers) {
  for (const int64_t gap : {3, 16})
    for (const int32_t order : {0, 1}) {
      SCOPED_TRACE(::testing::Message() << "gap " << gap << " order " << order);
      QuantizeCase c(TESSERA_F16, TESSERA_E4M3, {.batch = 2, .seqlen = 37, .heads = 3, .head_dim = 24});
      const auto placed = [&](int32_t dtype, const Dims& d) {
        const int64_t inner = d[3] + gap, middle = d[2] * inner + gap;
        const Tensor t(dtype, d, {.stride = {d[1] * middle + gap, middle, inner, 1}, .offset = gap});
        return t;
      };
      const Tensor x = placed(TESSERA_F16, c.x.dims());
      x.copy_values(c.x);
      c.x = x;
      if (order == 1) c.set_order();
      c.y = placed(TESSERA_E4M3, order == 1 ? Dims{2, 3, 24, 48} : Dims{2, 37, 3, 24});
      c.set_scales(7, 1);
      run_and_check(c);
    }
}

TESSERA_SITUATION(Quantize, RotationIsOrthonormalAndOneSeedIsOneRotation) {
  for (const int32_t dim : {2, 12, 40, 64, 96, 128, 256}) {
    SCOPED_TRACE(dim);
    const std::vector<std::vector<double>> r = rotation_of(dim, 11);
    for (size_t i = 0; i < r.size(); ++i)
      for (size_t j = 0; j <= i; ++j) {
        double product = 0;
        for (size_t c = 0; c < r.size(); ++c) product += r[i][c] * r[j][c];
        ASSERT_NEAR(product, i == j ? 1 : 0, 1e-6);
      }
    for (const int32_t order : {0, 1}) {
      QuantizeCase c(TESSERA_BF16, TESSERA_E4M3, {.batch = 2, .seqlen = 21, .heads = 2, .head_dim = dim});
      c.set_scales(5);
      c.rotate(11);
      c.subtract_mean();
      if (order == 1) c.set_order();
      run_and_check(c, r);
    }
  }
  EXPECT_NE(rotation_of(64, 1), rotation_of(64, 2));
}

TESSERA_SITUATION(Quantize, WhatIsNotFiniteStaysWhereItIs) {
  for (const int32_t to : {TESSERA_E4M3, TESSERA_INT8}) {
    QuantizeCase c(TESSERA_F32, to, {.batch = 1, .seqlen = 40, .heads = 2, .head_dim = 32});
    c.x.set(0, 3, 0, 5, NAN), c.x.set(0, 4, 1, 6, INFINITY), c.x.set(0, 39, 1, 31, -INFINITY);
    c.set_scales(4);
    c.subtract_mean();
    run_and_check(c);
  }
}

TESSERA_SITUATION(Quantize, ZerosAndTheSmallestAndLargestNumbers) {
  for (const double value : {0.0, 1e-45, 1e-38, 3e38}) {
    SCOPED_TRACE(value);
    QuantizeCase c(TESSERA_F32, TESSERA_E4M3, {.batch = 1, .seqlen = 20, .heads = 1, .head_dim = 16});
    c.x.fill([&](int64_t, int64_t i, int64_t, int64_t e) { return (i + e) % 2 == 0 ? value : -value / 2; });
    c.set_scales(0);
    tessera_status status{};
    ASSERT_EQ(c.run(&status), TESSERA_OK) << status.message;
    const double scale = c.scale_of(0, 0, 0);
    EXPECT_TRUE(value == 0 ? scale == 1 : scale >= 0x1p-126);
    EXPECT_NEAR(c.stored(0, 0, 0, 0) * scale, static_cast<float>(value), value / 16 + 1e-40);
  }
}

TESSERA_SITUATION(Quantize, NothingToDo) {
  for (const QuantizeShape& shape : {QuantizeShape{0, 9, 2, 16}, QuantizeShape{2, 0, 2, 16}}) {
    QuantizeCase c(TESSERA_BF16, TESSERA_E4M3, shape);
    c.set_scales(5);
    c.subtract_mean();
    run_and_check(c);
  }
}

TEST(Quantize, BadArgumentsAreToldByName) {
  const struct {
    void (*edit)(tessera_quantize_args*);
    const char* says;
  } edits[] = {
      {[](tessera_quantize_args* a) { a->size = 8; }, "size"},
      {[](tessera_quantize_args* a) { a->batch = -1; }, "batch is -1"},
      {[](tessera_quantize_args* a) { a->heads = 0; }, "heads is 0"},
      {[](tessera_quantize_args* a) { a->layout = 2; }, "layout is 2"},
      {[](tessera_quantize_args* a) { a->order = 2; }, "order is 2"},
      {[](tessera_quantize_args* a) { a->scale_rows = 64; }, "scale_rows is 64; expected 0 (all rows), 1 or 128"},
      {[](tessera_quantize_args* a) { a->hadamard = 64; }, "hadamard is 64"},
      {[](tessera_quantize_args* a) { a->hadamard = 1, a->head_dim = 15; }, "head_dim is 15; expected an even number"},
      {[](tessera_quantize_args* a) { a->total = 5; }, "total is 5"},
      {[](tessera_quantize_args* a) { a->x.dtype = TESSERA_F64; }, "x.dtype is 1 (f64); expected f32, f16 or bf16"},
      {[](tessera_quantize_args* a) { a->y.dtype = TESSERA_BF16; }, "y.dtype is 4 (bf16); expected e4m3 or int8"},
      {[](tessera_quantize_args* a) { a->x.stride[3] = 2; }, "x.stride[3]"},
      {[](tessera_quantize_args* a) { a->y.stride[1] = 0; }, "y.stride[1]"},
      {[](tessera_quantize_args* a) { a->scale.stride[1] = 1, a->scale.stride[2] = 1, a->scale_rows = 1; },
       "scale.stride["},
      {[](tessera_quantize_args* a) { a->scale.dtype = TESSERA_F16; }, "scale.dtype"},
      {[](tessera_quantize_args* a) { a->x_data = nullptr; }, "x_data is NULL"},
      {[](tessera_quantize_args* a) { a->y_data = nullptr; }, "y_data is NULL"},
      {[](tessera_quantize_args* a) { a->y_data = const_cast<void*>(a->x_data); }, "y_data"},
      {[](tessera_quantize_args* a) { a->subtract_mean = 1; }, "mean is NULL"},
      {[](tessera_quantize_args* a) { a->mean = a->scale_data; }, "subtract_mean is 0"},
      {[](tessera_quantize_args* a) { a->layout = TESSERA_PACKED, a->total = 9; }, "x.stride"},
  };
  for (const auto& edit : edits) {
    QuantizeCase c(TESSERA_BF16, TESSERA_E4M3, {.batch = 2, .seqlen = 9, .heads = 2, .head_dim = 16});
    c.set_scales(0);
    tessera_status status{};
    ASSERT_EQ(c.run(&status), TESSERA_OK) << status.message;
    c.y.poison();
    tessera_quantize_args args = c.args;
    edit.edit(&args);
    EXPECT_EQ(tessera_quantize(&args, nullptr, &status), TESSERA_INVALID_ARGUMENT) << edit.says;
    EXPECT_NE(std::strstr(status.message, edit.says), nullptr) << status.message << " should say " << edit.says;
    EXPECT_TRUE(c.y.untouched(0, 0, 0, 0) && c.y.untouched(1, 8, 1, 15));
  }
  for (const std::vector<int32_t>& cu : {std::vector<int32_t>{1, 2}, {0, 5, 4}, {0, 9}, {0, 3, 30}}) {
    QuantizeCase c(TESSERA_BF16, TESSERA_E4M3, {.batch = 0, .seqlen = 8, .heads = 1, .head_dim = 16}, {0, 3, 8});
    c.cu_seqlens = cu;
    c.args.batch = static_cast<int64_t>(cu.size()) - 1;
    tessera_status status{};
    EXPECT_EQ(c.run(&status), TESSERA_INVALID_ARGUMENT);
    EXPECT_NE(std::strstr(status.message, "cu_seqlens["), nullptr) << status.message;
  }
}

TEST(Quantize, ThreadsChangeNoBit) {
  struct Serial {
    static void parallel(void*, int64_t count, void (*task)(void*, int64_t), void* arg) {
      for (int64_t i = count - 1; i >= 0; --i) task(arg, i);
    }
  };
  QuantizeCase one(TESSERA_BF16, TESSERA_E4M3, {.batch = 2, .seqlen = 700, .heads = 3, .head_dim = 64});
  one.set_scales(0);
  one.rotate(3);
  one.subtract_mean();
  one.set_order();
  QuantizeCase many = one;
  many.scale = one.scale.clone(), many.mean = one.mean.clone();
  tessera_status status{};
  const tessera_executor backwards = {sizeof backwards, 7, 0, nullptr, Serial::parallel};
  const tessera_exec exec = {sizeof exec, nullptr, &backwards};
  ASSERT_EQ(one.run(&status), TESSERA_OK) << status.message;
  ASSERT_EQ(many.run(&status, &exec), TESSERA_OK) << status.message;
  EXPECT_TRUE(one.y.same_bits(many.y) && one.scale.same_bits(many.scale) && one.mean.same_bits(many.mean));
}

}  // namespace
}  // namespace tessera::test
