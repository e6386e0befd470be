// A call of tessera_quantize with its operands, and its results against float64 formed here from the formulas of
// tessera_quantize_args.
#pragma once

#include <cmath>
#include <map>
#include <vector>

#include "support.hpp"

namespace tessera::test {

struct QuantizeShape {
  int64_t batch = 1, seqlen = 1;
  int32_t heads = 1, head_dim = 64;
};

class QuantizeCase {
 public:
  tessera_quantize_args args{};
  Tensor x, y, scale, mean;
  Array<int32_t> cu_seqlens;

  QuantizeCase(int32_t from, int32_t to, const QuantizeShape& shape, const std::vector<int32_t>& cu = {}) {
    args.size = sizeof args;
    args.device = -1;
    args.batch = shape.batch, args.seqlen = shape.seqlen;
    args.heads = shape.heads, args.head_dim = shape.head_dim;
    args.y.dtype = to;
    if (!cu.empty()) {
      cu_seqlens = cu;
      args.layout = TESSERA_PACKED, args.batch = static_cast<int64_t>(cu.size()) - 1, args.total = cu.back() + 3;
    }
    x = Tensor(from, packed() ? Dims{1, args.total, args.heads, args.head_dim}
                              : Dims{args.batch, args.seqlen, args.heads, args.head_dim});
    x.fill_random(7);
  }

  bool packed() const { return args.layout == TESSERA_PACKED; }
  int64_t first(int64_t b) const { return packed() ? cu_seqlens[static_cast<size_t>(b)] : 0; }
  int64_t rows(int64_t b) const {
    return packed() ? cu_seqlens[static_cast<size_t>(b) + 1] - cu_seqlens[static_cast<size_t>(b)] : args.seqlen;
  }
  double limit() const { return args.y.dtype == TESSERA_INT8 ? 127 : 448; }

  // A scale for each batch (bit 0), block of rows (bit 1), head (bit 2), and 128 or 1 rows a block; -1: no scales.
  void set_scales(int cells, int32_t scale_rows = 0) {
    args.scale_rows = scale_rows;
    if (cells < 0) return;
    const int64_t blocks = scale_rows > 0 ? (args.seqlen + scale_rows - 1) / scale_rows : 1;
    const int64_t extent[3] = {cells & 1 ? args.batch : 1, cells & 2 ? blocks : 1, cells & 4 ? args.heads : 1};
    scale = Tensor(TESSERA_F32, {1, extent[0], extent[1], extent[2]});
    if (cells & 1) args.scale.stride[0] = extent[1] * extent[2];
    if (cells & 2) args.scale.stride[1] = extent[2];
    if (cells & 4) args.scale.stride[2] = 1;
  }
  void set_order() {
    args.order = 1;
    slots_ = packed() ? (args.total + 15 * args.batch) / 16 * 16 : (args.seqlen + 15) / 16 * 16;
  }
  void subtract_mean() {
    args.subtract_mean = 1;
    mean = Tensor(TESSERA_F32, {1, args.batch, args.heads, args.head_dim});
  }
  void rotate(uint64_t seed) { args.hadamard = 1, args.seed = seed; }

  // Makes y where none is there, poisons what is written, and runs.
  int run(tessera_status* status, const tessera_exec* exec = nullptr) {
    if (y.absent()) {
      const int32_t to = args.y.dtype;
      y = args.order == 0 ? Tensor(to, x.dims())
                          : Tensor(to, {packed() ? 1 : args.batch, args.heads, args.head_dim, slots_});
    }
    args.x = x.desc(packed()), args.y = y.desc(packed());
    args.x_data = x.data(), args.y_data = y.data(), args.cu_seqlens = cu_seqlens.data();
    y.poison();
    if (!scale.absent()) scale.poison(), args.scale_data = static_cast<float*>(scale.data());
    if (!mean.absent()) mean.poison(), args.mean = static_cast<float*>(mean.data());
    return quantize(args, status, exec);
  }

  double scale_of(int64_t b, int64_t row, int64_t h) const {
    return scale.absent() ? 1 : static_cast<double>(static_cast<float*>(scale.data())[cell(b, row, h)]);
  }
  double stored(int64_t b, int64_t row, int64_t h, int64_t c) const {
    if (args.order == 0) return packed() ? y.get(0, first(b) + row, h, c) : y.get(b, row, h, c);
    constexpr int64_t kSlot[16] = {0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15};
    return y.get(packed() ? 0 : b, h, c, first_slot(b) + row / 16 * 16 + kSlot[row % 16]);
  }
  // x less the mean that was written, rotated, in float64. `rotation` is R as another call showed it; empty: none.
  std::vector<double> exact_row(int64_t b, int64_t row, int64_t h,
                                const std::vector<std::vector<double>>& rotation) const {
    std::vector<double> v(static_cast<size_t>(args.head_dim)), turned(v.size());
    for (int64_t c = 0; c < args.head_dim; ++c) {
      v[static_cast<size_t>(c)] = packed() ? x.get(0, first(b) + row, h, c) : x.get(b, row, h, c);
      if (!mean.absent()) v[static_cast<size_t>(c)] -= mean.get(0, b, h, c);
    }
    if (rotation.empty()) return v;
    for (size_t i = 0; i < v.size(); ++i)
      for (size_t j = 0; j < v.size(); ++j) turned[i] += rotation[i][j] * v[j];
    return turned;
  }

  // Every byte of y and every scale and mean is right, and nothing else was written.
  void expect_right(const std::vector<std::vector<double>>& rotation = {}) const {
    expect_means();
    std::map<int64_t, double> largest;  // of each cell
    for_each_row([&](int64_t b, int64_t row, int64_t h) {
      double& most = largest[cell(b, row, h)];
      for (const double value : exact_row(b, row, h, rotation))
        if (std::isfinite(value)) most = std::max(most, std::abs(value));
    });
    for_each_row([&](int64_t b, int64_t row, int64_t h) {
      const double most = largest[cell(b, row, h)], s = scale_of(b, row, h);
      if (!scale.absent()) {
        const double right = most == 0 ? 1 : std::max(most / limit(), 0x1p-126);
        ASSERT_NEAR(s, right, 3e-6 * right) << b << ' ' << row << ' ' << h;
      }
      const std::vector<double> exact = exact_row(b, row, h, rotation);
      for (int64_t c = 0; c < args.head_dim; ++c)
        ASSERT_TRUE(is_rounded(stored(b, row, h, c), exact[static_cast<size_t>(c)] / s, most / s))
            << b << ' ' << row << ' ' << h << ' ' << c << ": " << stored(b, row, h, c) << " for "
            << exact[static_cast<size_t>(c)] / s;
    });
    if (!scale.absent()) {
      for (int64_t i = 0; i < scale.dims()[1] * scale.dims()[2] * scale.dims()[3]; ++i) {
        if (largest.count(i) != 0) continue;
        EXPECT_EQ(static_cast<float*>(scale.data())[i], 1.0f) << "a cell without rows";
      }
      EXPECT_TRUE(scale.gaps_intact());
    }
    EXPECT_TRUE(y.gaps_intact() && (mean.absent() || mean.gaps_intact()));
    expect_untouched();
  }

 private:
  int64_t slots_ = 0;

  int64_t first_slot(int64_t b) const { return packed() ? (first(b) + 15 * b) / 16 * 16 : 0; }
  int64_t cell(int64_t b, int64_t row, int64_t h) const {
    const int64_t block = args.scale_rows > 0 ? row / args.scale_rows : 0;
    return b * args.scale.stride[0] + block * args.scale.stride[1] + h * args.scale.stride[2];
  }
  template <class F>
  void for_each_row(const F& f) const {
    for (int64_t b = 0; b < args.batch; ++b)
      for (int64_t row = 0; row < rows(b); ++row)
        for (int64_t h = 0; h < args.heads; ++h) f(b, row, h);
  }

  // Whether `value` is `exact` rounded once, exact but for float32's errors in numbers of up to `most`.
  bool is_rounded(double value, double exact, double most) const {
    if (std::isnan(exact)) return args.y.dtype == TESSERA_INT8 ? value == 0 : std::isnan(value);
    if (std::abs(exact) > limit() * (1 - 1e-6)) return value == std::copysign(limit(), exact);
    const double step = args.y.dtype == TESSERA_INT8
                            ? 1
                            : std::ldexp(1.0, std::max(std::ilogb(std::max(std::abs(exact), 1e-30)), -6) - 3);
    return std::abs(value - exact) <= step / 2 + 4e-7 * std::abs(exact) + (args.hadamard != 0 ? 2e-6 * most : 0);
  }

  void expect_means() const {
    if (mean.absent()) return;
    for (int64_t b = 0; b < args.batch; ++b)
      for (int64_t h = 0; h < args.heads; ++h)
        for (int64_t c = 0; c < args.head_dim; ++c) {
          double sum = 0, magnitude = 0;
          for (int64_t row = 0; row < rows(b); ++row) {
            const double value = packed() ? x.get(0, first(b) + row, h, c) : x.get(b, row, h, c);
            if (std::isfinite(value)) sum += value, magnitude += std::abs(value);
          }
          const auto count = static_cast<double>(std::max<int64_t>(rows(b), 1));
          ASSERT_NEAR(mean.get(0, b, h, c), sum / count, 6e-8 * (std::abs(sum) + 1e-9 * magnitude) / count)
              << h << ' ' << c;
        }
  }

  // Rows behind the last sequence and slots of none hold what they held; slots that fill up a group hold 0.
  void expect_untouched() const {
    const int64_t outer = packed() ? 1 : args.batch, length = args.order == 1 ? slots_ : args.total;
    if (args.order == 0 && !packed()) return;
    std::vector<int> kind(static_cast<size_t>(outer * length), 0);  // 0: of none, 1: of a row, 2: fills up
    for (int64_t b = 0; b < args.batch; ++b) {
      const int64_t base = packed() ? 0 : b * length;
      const int64_t count = args.order == 1 ? (rows(b) + 15) / 16 * 16 : rows(b);
      for (int64_t i = 0; i < count; ++i) {
        constexpr int64_t kRow[16] = {0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15};
        const bool filled = args.order == 1 && i / 16 * 16 + kRow[i % 16] >= rows(b);
        kind[static_cast<size_t>(base + (args.order == 1 ? first_slot(b) : first(b)) + i)] = filled ? 2 : 1;
      }
    }
    for (int64_t a = 0; a < outer; ++a)
      for (int64_t i = 0; i < length; ++i)
        for (int64_t h = 0; h < args.heads; ++h)
          for (int64_t c = 0; c < args.head_dim; ++c) {
            const int at = kind[static_cast<size_t>(a * length + i)];
            if (at == 1) continue;
            if (at == 2) {
              ASSERT_EQ(y.get(a, h, c, i), 0.0) << "slot " << i;
              ASSERT_FALSE(std::signbit(y.get(a, h, c, i))) << "slot " << i;
            } else {
              ASSERT_TRUE(args.order == 1 ? y.untouched(a, h, c, i) : y.untouched(a, i, h, c)) << "row or slot " << i;
            }
          }
  }
};

}  // namespace tessera::test
