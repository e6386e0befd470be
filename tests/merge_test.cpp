// Merge of partial states against plain double arithmetic, its algebra, and its gradient against central differences.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "baselines/operands.hpp"
#include "support.hpp"
#include "tessera/tessera.h"

namespace tessera {
namespace {

using baselines::Buffer;
using baselines::load_element;
using baselines::store_element;

constexpr double kInf = std::numeric_limits<double>::infinity();

struct Shape {
  int64_t states, batch, seqlen_q;
  int32_t heads, dim, dtype, out_dtype;
  int64_t rows() const { return batch * seqlen_q * heads; }
  int64_t lse_index(int64_t b, int64_t s, int64_t h) const { return (b * heads + h) * seqlen_q + s; }
};

int32_t bytes_of(int32_t dtype) { return dtype == TESSERA_F64 ? 8 : dtype == TESSERA_F32 ? 4 : 2; }
int32_t lse_type(int32_t dtype) { return dtype == TESSERA_F64 ? TESSERA_F64 : TESSERA_F32; }

// Owned operands of one merge, outputs poisoned with NaN bytes.
struct Operands {
  Shape shape;
  Buffer o, lse, o_out, lse_out, d_o_out, d_lse_out, d_o, d_lse;

  explicit Operands(const Shape& s)
      : shape(s),
        o(make(s.states * s.rows() * s.dim, s.dtype)),
        lse(make(s.states * s.rows(), lse_type(s.dtype))),
        o_out(make(s.rows() * s.dim, s.out_dtype)),
        lse_out(make(s.rows(), lse_type(s.dtype))),
        d_o_out(make(s.rows() * s.dim, s.out_dtype)),
        d_lse_out(make(s.rows(), lse_type(s.dtype))),
        d_o(make(s.states * s.rows() * s.dim, s.dtype)),
        d_lse(make(s.states * s.rows(), lse_type(s.dtype))) {}

  static Buffer make(int64_t count, int32_t dtype) {
    Buffer buffer(static_cast<size_t>(count) * static_cast<size_t>(bytes_of(dtype)));
    if (buffer.bytes() > 0) std::memset(buffer.data(), 0xff, buffer.bytes());
    return buffer;
  }
  void fill(uint64_t seed, double lse_spread = 3.0) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    for (int64_t i = 0; i < shape.states * shape.rows() * shape.dim; ++i)
      store_element(shape.dtype, o.data(), i, normal(random));
    for (int64_t i = 0; i < shape.states * shape.rows(); ++i)
      store_element(lse_type(shape.dtype), lse.data(), i, lse_spread * normal(random));
    for (int64_t i = 0; i < shape.rows() * shape.dim; ++i)
      store_element(shape.out_dtype, d_o_out.data(), i, normal(random));
    for (int64_t i = 0; i < shape.rows(); ++i)
      store_element(lse_type(shape.dtype), d_lse_out.data(), i, normal(random));
  }
  void set_lse(int64_t state, int64_t row, double value) {
    store_element(lse_type(shape.dtype), lse.data(), state * shape.rows() + row, value);
  }
  double get_lse(int64_t state, int64_t row) const {
    return load_element(lse_type(shape.dtype), lse.data(), state * shape.rows() + row);
  }
  double get_lse_out(int64_t row) const { return load_element(lse_type(shape.dtype), lse_out.data(), row); }
  double get_o(int64_t state, int64_t row, int64_t c) const {
    return load_element(shape.dtype, o.data(), (state * shape.rows() + row) * shape.dim + c);
  }
  double get_o_out(int64_t row, int64_t c) const {
    return load_element(shape.out_dtype, o_out.data(), row * shape.dim + c);
  }

  tessera_merge_args args() const {
    return {sizeof(tessera_merge_args),
            shape.states,
            shape.batch,
            shape.seqlen_q,
            shape.heads,
            shape.dim,
            shape.dtype,
            shape.out_dtype,
            -1,
            0,
            o.data(),
            lse.data(),
            o_out.data(),
            lse_out.data(),
            d_o_out.data(),
            d_lse_out.data(),
            d_o.data(),
            d_lse.data()};
  }
  void merge(const tessera_exec* exec = nullptr) const {
    const tessera_merge_args a = args();
    tessera_status status;
    ASSERT_EQ(test::merge(a, &status, exec), TESSERA_OK) << status.message;
    ASSERT_TRUE(intact());
  }
  bool intact() const {
    for (const Buffer* buffer : {&o, &lse, &o_out, &lse_out, &d_o_out, &d_lse_out, &d_o, &d_lse}) {
      if (!buffer->canaries_intact()) return false;
    }
    return true;
  }
};

double rounding(int32_t dtype) {
  return dtype == TESSERA_F64 ? 0x1p-52 : dtype == TESSERA_F32 ? 0x1p-23 : dtype == TESSERA_F16 ? 0x1p-10 : 0x1p-7;
}

// The formulas of a merged row in long double: lse, o, and with them the weights.
struct Exact {
  double lse;
  std::vector<double> weights, o;
};
Exact exact_row(const Operands& operands, int64_t row, int64_t index) {
  const Shape& s = operands.shape;
  Exact exact{-kInf, {}, std::vector<double>(static_cast<size_t>(s.dim))};
  double highest = -kInf;
  for (int64_t n = 0; n < s.states; ++n) highest = std::max(highest, operands.get_lse(n, index));
  long double sum = 0;
  for (int64_t n = 0; n < s.states && highest > -kInf; ++n)
    sum += std::exp(static_cast<long double>(operands.get_lse(n, index)) - highest);
  if (highest > -kInf) exact.lse = static_cast<double>(highest + std::log(sum));
  for (int64_t n = 0; n < s.states; ++n) {
    const double lse = operands.get_lse(n, index);
    exact.weights.push_back(
        lse == -kInf ? 0.0 : static_cast<double>(std::exp(static_cast<long double>(lse) - highest) / sum));
    for (int64_t c = 0; c < s.dim && lse > -kInf; ++c)
      exact.o[static_cast<size_t>(c)] += exact.weights.back() * operands.get_o(n, row, c);
  }
  return exact;
}

void expect_merged(const Operands& operands) {
  const Shape& s = operands.shape;
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t i = 0; i < s.seqlen_q; ++i) {
      for (int64_t h = 0; h < s.heads; ++h) {
        const int64_t row = (b * s.seqlen_q + i) * s.heads + h, index = s.lse_index(b, i, h);
        const Exact exact = exact_row(operands, row, index);
        if (exact.lse == -kInf) {
          EXPECT_EQ(operands.get_lse_out(index), -kInf);
        } else {
          EXPECT_NEAR(operands.get_lse_out(index), exact.lse,
                      2 * rounding(lse_type(s.dtype)) * std::max(1.0, std::abs(exact.lse)));
        }
        for (int64_t c = 0; c < s.dim; ++c) {
          const double expected = exact.o[static_cast<size_t>(c)];
          ASSERT_NEAR(operands.get_o_out(row, c), expected,
                      rounding(s.out_dtype) * std::max(1.0, std::abs(expected)) + 8 * rounding(lse_type(s.dtype)));
        }
      }
    }
  }
}

TESSERA_SITUATION(Merge, MatchesDoubleForEveryDtype) {
  const std::pair<int32_t, int32_t> types[] = {{TESSERA_F64, TESSERA_F64},  {TESSERA_F32, TESSERA_F32},
                                               {TESSERA_F32, TESSERA_F16},  {TESSERA_F32, TESSERA_BF16},
                                               {TESSERA_F16, TESSERA_F32},  {TESSERA_F16, TESSERA_F16},
                                               {TESSERA_F16, TESSERA_BF16}, {TESSERA_BF16, TESSERA_F32},
                                               {TESSERA_BF16, TESSERA_F16}, {TESSERA_BF16, TESSERA_BF16}};
  for (const auto& [dtype, out] : types) {
    for (const int64_t states : {1, 2, 5}) {
      SCOPED_TRACE(testing::Message() << "dtype " << dtype << " to " << out << ", states " << states);
      Operands operands({states, 2, 3, 2, 37, dtype, out});
      operands.fill(7);
      operands.merge();
      expect_merged(operands);
    }
  }
}

TESSERA_SITUATION(Merge, WideHeadDimsAndManyRows) {
  Operands operands({3, 1, 70, 5, 600, TESSERA_F32, TESSERA_F32});
  operands.fill(11);
  operands.merge();
  expect_merged(operands);
}

TESSERA_SITUATION(Merge, EmptyStatesAreNeutralWhateverTheyHold) {
  Operands operands({3, 1, 2, 1, 8, TESSERA_F32, TESSERA_F32});
  operands.fill(3);
  operands.set_lse(0, 0, -kInf);
  operands.set_lse(2, 0, -kInf);
  for (int64_t n = 0; n < 3; ++n) operands.set_lse(n, 1, -kInf);
  for (int64_t c = 0; c < 8; ++c) {
    store_element(TESSERA_F32, operands.o.data(), c, NAN);
    store_element(TESSERA_F32, operands.o.data(), 8 + c, kInf);
  }
  operands.merge();
  EXPECT_EQ(operands.get_lse_out(0), operands.get_lse(1, 0));
  EXPECT_EQ(operands.get_lse_out(1), -kInf);
  for (int64_t c = 0; c < 8; ++c) {
    EXPECT_EQ(operands.get_o_out(0, c), operands.get_o(1, 0, c)) << "one full state passes unchanged";
    EXPECT_EQ(operands.get_o_out(1, c), 0.0);
    EXPECT_FALSE(std::signbit(operands.get_o_out(1, c)));
  }
}

#if TESSERA_HAS_CUDA
// For compute-sanitizer: both passes, float and double, on the smallest operands.
TEST(GpuSanitizer, SmallMerges) {
  if (const char* reason = test::no_gpu()) GTEST_SKIP() << "no GPU test here: " << reason;
  const test::OnGpu target;
  for (const int32_t dtype : {TESSERA_F64, TESSERA_F16}) {
    Operands operands({3, 1, 5, 3, 37, dtype, dtype});
    operands.fill(8);
    operands.merge();
    expect_merged(operands);
    EXPECT_EQ(test::merge_backward(operands.args(), nullptr), TESSERA_OK);
    EXPECT_TRUE(operands.intact());
  }
}
#endif

TESSERA_SITUATION(Merge, FarApartStatesDoNotOverflow) {
  Operands operands({2, 1, 1, 1, 4, TESSERA_F32, TESSERA_F32});
  operands.fill(3);
  operands.set_lse(0, 0, -50);
  operands.set_lse(1, 0, 120);
  operands.merge();
  EXPECT_EQ(operands.get_lse_out(0), 120.0);
  for (int64_t c = 0; c < 4; ++c) EXPECT_EQ(operands.get_o_out(0, c), operands.get_o(1, 0, c));
}

TESSERA_SITUATION(Merge, HugeLseKeepsItsWeights) {
  Operands operands({2, 1, 1, 1, 4, TESSERA_F32, TESSERA_F32});
  operands.fill(3);
  operands.set_lse(0, 0, 1e5);
  operands.set_lse(1, 0, 1e5);
  operands.merge();
  for (int64_t c = 0; c < 4; ++c)
    EXPECT_NEAR(operands.get_o_out(0, c), (operands.get_o(0, 0, c) + operands.get_o(1, 0, c)) / 2, 1e-6);
}

TESSERA_SITUATION(Merge, NoStatesGiveTheEmptyState) {
  Operands operands({0, 1, 2, 2, 8, TESSERA_F16, TESSERA_F16});
  operands.merge();
  for (int64_t row = 0; row < 4; ++row) {
    EXPECT_EQ(operands.get_lse_out(row), -kInf);
    for (int64_t c = 0; c < 8; ++c) EXPECT_EQ(operands.get_o_out(row, c), 0.0);
  }
}

TESSERA_SITUATION(Merge, IsAssociativeUpToRounding) {
  Operands all({4, 1, 5, 2, 16, TESSERA_F64, TESSERA_F64});
  all.fill(5, 20.0);
  all.merge();
  // ((0, 1), (2, 3)): two merges of two, then one of their results.
  Operands pair({2, 1, 5, 2, 16, TESSERA_F64, TESSERA_F64}), last({2, 1, 5, 2, 16, TESSERA_F64, TESSERA_F64});
  for (int half = 0; half < 2; ++half) {
    std::memcpy(pair.o.data(), all.o.data() + static_cast<size_t>(half) * pair.o.bytes(), pair.o.bytes());
    std::memcpy(pair.lse.data(), all.lse.data() + static_cast<size_t>(half) * pair.lse.bytes(), pair.lse.bytes());
    pair.merge();
    std::memcpy(last.o.data() + static_cast<size_t>(half) * pair.o_out.bytes(), pair.o_out.data(), pair.o_out.bytes());
    std::memcpy(last.lse.data() + static_cast<size_t>(half) * pair.lse_out.bytes(), pair.lse_out.data(),
                pair.lse_out.bytes());
  }
  last.merge();
  for (int64_t row = 0; row < 10; ++row) {
    EXPECT_NEAR(last.get_lse_out(row), all.get_lse_out(row), 1e-13);
    for (int64_t c = 0; c < 16; ++c) EXPECT_NEAR(last.get_o_out(row, c), all.get_o_out(row, c), 1e-14);
  }
}

TEST(Merge, ThreadCountAndPrefillChangeNothing) {
  const Shape shape{4, 2, 200, 3, 64, TESSERA_F32, TESSERA_BF16};
  std::vector<std::byte> first;
  for (const int32_t threads : {1, 2, 3, 64}) {
    Operands operands(shape);
    operands.fill(9);
    if (operands.lse_out.bytes() > 0) std::memset(operands.lse_out.data(), threads, operands.lse_out.bytes());
    tessera_executor executor{sizeof executor, threads, 0, nullptr,
                              [](void*, int64_t count, void (*task)(void*, int64_t), void* arg) {
                                for (int64_t i = count - 1; i >= 0; --i) task(arg, i);
                              }};
    const tessera_exec exec{sizeof exec, nullptr, &executor};
    operands.merge(&exec);
    std::vector<std::byte> result(operands.o_out.data(), operands.o_out.data() + operands.o_out.bytes());
    result.insert(result.end(), operands.lse_out.data(), operands.lse_out.data() + operands.lse_out.bytes());
    if (first.empty()) first = result;
    EXPECT_TRUE(first == result) << threads << " threads";
  }
}

TESSERA_SITUATION(Merge, LseOutIsOptional) {
  Operands operands({2, 1, 3, 1, 8, TESSERA_F32, TESSERA_F32});
  operands.fill(1);
  tessera_merge_args args = operands.args();
  args.lse_out = nullptr;
  tessera_status status;
  EXPECT_EQ(test::merge(args, &status), TESSERA_OK) << status.message;
}

// L = sum(d_o_out * o_out) + sum(d_lse_out * lse_out), differenced in every o and lse.
double objective(Operands& operands) {
  operands.merge();
  double sum = 0;
  const Shape& s = operands.shape;
  for (int64_t i = 0; i < s.rows() * s.dim; ++i)
    sum += load_element(TESSERA_F64, operands.d_o_out.data(), i) * load_element(TESSERA_F64, operands.o_out.data(), i);
  for (int64_t i = 0; i < s.rows(); ++i)
    sum += load_element(TESSERA_F64, operands.d_lse_out.data(), i) * operands.get_lse_out(i);
  return sum;
}

TESSERA_SITUATION(MergeBackward, MatchesCentralDifferences) {
  Operands operands({3, 2, 2, 2, 4, TESSERA_F64, TESSERA_F64});
  operands.fill(21, 1.0);
  operands.merge();
  const tessera_merge_args args = operands.args();
  tessera_status status;
  ASSERT_EQ(test::merge_backward(args, &status), TESSERA_OK) << status.message;
  ASSERT_TRUE(operands.intact());
  const auto check = [&](const Buffer& input, const Buffer& gradient, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const double value = load_element(TESSERA_F64, input.data(), i), h = 1e-6;
      store_element(TESSERA_F64, input.data(), i, value + h);
      const double above = objective(operands);
      store_element(TESSERA_F64, input.data(), i, value - h);
      const double below = objective(operands);
      store_element(TESSERA_F64, input.data(), i, value);
      EXPECT_NEAR(load_element(TESSERA_F64, gradient.data(), i), (above - below) / (2 * h), 1e-8) << i;
    }
  };
  check(operands.o, operands.d_o, 3 * 8 * 4);
  check(operands.lse, operands.d_lse, 3 * 8);
}

TESSERA_SITUATION(MergeBackward, EmptyStatesGetZero) {
  Operands operands({2, 1, 2, 1, 4, TESSERA_F32, TESSERA_F32});
  operands.fill(2);
  operands.set_lse(0, 0, -kInf);
  operands.set_lse(0, 1, -kInf);
  operands.set_lse(1, 1, -kInf);
  store_element(TESSERA_F32, operands.o.data(), 0, NAN);
  operands.merge();
  const tessera_merge_args args = operands.args();
  ASSERT_EQ(test::merge_backward(args, nullptr), TESSERA_OK);
  const auto d_o = [&](int64_t i) { return load_element(TESSERA_F32, operands.d_o.data(), i); };
  for (int64_t c = 0; c < 4; ++c) {
    EXPECT_EQ(d_o(c), 0.0);
    EXPECT_EQ(d_o(4 + c), 0.0);
    EXPECT_EQ(d_o(8 + c), load_element(TESSERA_F32, operands.d_o_out.data(), c))
        << "the only full state gets all of d_o_out";
    EXPECT_EQ(d_o(12 + c), 0.0);
  }
  EXPECT_EQ(load_element(TESSERA_F32, operands.d_lse.data(), 0), 0.0);
  EXPECT_EQ(load_element(TESSERA_F32, operands.d_lse.data(), 1), 0.0);
  EXPECT_NEAR(load_element(TESSERA_F32, operands.d_lse.data(), 2),
              load_element(TESSERA_F32, operands.d_lse_out.data(), 0), 1e-6);
  EXPECT_EQ(load_element(TESSERA_F32, operands.d_lse.data(), 3), 0.0);
}

TESSERA_SITUATION(MergeBackward, NullDLseOutIsZero) {
  Operands given({2, 1, 3, 2, 8, TESSERA_BF16, TESSERA_F32});
  given.fill(4);
  for (int64_t i = 0; i < given.shape.rows(); ++i) store_element(TESSERA_F32, given.d_lse_out.data(), i, 0.0);
  given.merge();
  tessera_merge_args args = given.args();
  ASSERT_EQ(test::merge_backward(args, nullptr), TESSERA_OK);
  const std::vector<std::byte> zero(given.d_lse.data(), given.d_lse.data() + given.d_lse.bytes());
  args.d_lse_out = nullptr;
  ASSERT_EQ(test::merge_backward(args, nullptr), TESSERA_OK);
  EXPECT_EQ(std::memcmp(zero.data(), given.d_lse.data(), zero.size()), 0);
}

TEST(Merge, BadArgumentsAreNamed) {
  Operands operands({2, 1, 3, 1, 8, TESSERA_F32, TESSERA_F32});
  operands.fill(1);
  const struct {
    void (*edit)(tessera_merge_args&);
    int code;
    const char* fragment;
  } cases[] = {{[](tessera_merge_args& a) { a.size = 8; }, TESSERA_INVALID_ARGUMENT, "merge_args.size is 8"},
               {[](tessera_merge_args& a) { a.states = -1; }, TESSERA_INVALID_ARGUMENT, "states is -1"},
               {[](tessera_merge_args& a) { a.batch = -1; }, TESSERA_INVALID_ARGUMENT, "batch is -1"},
               {[](tessera_merge_args& a) { a.seqlen_q = int64_t{1} << 40; }, TESSERA_INVALID_ARGUMENT,
                "seqlen_q is 1099511627776"},
               {[](tessera_merge_args& a) { a.heads = 0; }, TESSERA_INVALID_ARGUMENT, "heads is 0"},
               {[](tessera_merge_args& a) { a.head_dim_v = -8; }, TESSERA_INVALID_ARGUMENT, "head_dim_v is -8"},
               {[](tessera_merge_args& a) { a.states = a.batch = a.seqlen_q = INT32_MAX; }, TESSERA_INVALID_ARGUMENT,
                "2^63 bytes"},
               {[](tessera_merge_args& a) { a.dtype = TESSERA_INT8; }, TESSERA_INVALID_ARGUMENT, "dtype is 6"},
               {[](tessera_merge_args& a) { a.out_dtype = TESSERA_F64; }, TESSERA_INVALID_ARGUMENT, "out_dtype is 1"},
               {[](tessera_merge_args& a) { a.dtype = TESSERA_F64; }, TESSERA_INVALID_ARGUMENT, "dtype is 1"},
               {[](tessera_merge_args& a) { a.device = -2; }, TESSERA_INVALID_ARGUMENT, "device is -2"},
               {[](tessera_merge_args& a) { a.device = 1000; }, TESSERA_NO_DEVICE, "device is 1000"},
               {[](tessera_merge_args& a) { a.o = nullptr; }, TESSERA_INVALID_ARGUMENT, "o is NULL"},
               {[](tessera_merge_args& a) { a.lse = nullptr; }, TESSERA_INVALID_ARGUMENT, "lse is NULL"},
               {[](tessera_merge_args& a) { a.o_out = nullptr; }, TESSERA_INVALID_ARGUMENT, "o_out is NULL"},
               {[](tessera_merge_args& a) { a.o = static_cast<const char*>(a.o) + 2; }, TESSERA_INVALID_ARGUMENT,
                "multiple of 4"},
               {[](tessera_merge_args& a) { a.o_out = const_cast<void*>(a.o); }, TESSERA_INVALID_ARGUMENT,
                "o and o_out are both"}};
  for (const auto& bad : cases) {
    tessera_merge_args args = operands.args();
    bad.edit(args);
    tessera_status status{};
    EXPECT_EQ(tessera_merge(&args, nullptr, &status), bad.code) << bad.fragment;
    EXPECT_NE(std::strstr(status.message, bad.fragment), nullptr) << bad.fragment << " in: " << status.message;
  }
  for (size_t i = 0; i < operands.o_out.bytes(); ++i)
    ASSERT_EQ(operands.o_out.data()[i], std::byte{0xff}) << "written on failure";
}

}  // namespace
}  // namespace tessera
