// tessera_append on the CPU: where new rows land in every layout, rotary embedding and rounding against float64, int8
// caches under scales of every extent.
#include <cmath>

#include "append_case.hpp"

namespace tessera::test {
namespace {

const Shape kShape{
    .batch = 3, .seqlen_q = 2, .seqlen_k = 40, .heads_q = 4, .heads_kv = 2, .head_dim_qk = 24, .head_dim_v = 10};
const std::vector<int32_t> kLengths = {5, 0, 33};
constexpr float kFar = 1e9f;

AppendCase make_case(const std::string& layout, int32_t dtype, int32_t page_size = 16) {
  return make_case(layout, dtype, kShape, page_size);
}

void append_and_check(AppendCase& a) {
  const Tensor k = a.c.k.clone(), v = a.c.v.clone();
  tessera_status status{};
  ASSERT_EQ(a.append(&status), TESSERA_OK) << status.message;
  a.expect_appended(k, v);
}

TEST(CpuAppend, EveryLayoutAndType) {
  for (const char* layout : {"dense", "batch_idx", "leftpad", "strided", "paged"})
    for (const int32_t cache : kAllTypes)
      for (const int32_t rows : kAllTypes) {
        if ((rows == TESSERA_F64) != (cache == TESSERA_F64)) continue;
        SCOPED_TRACE(::testing::Message() << layout << ' ' << name_of(rows) << " into " << name_of(cache));
        AppendCase a = make_case(layout, cache);
        a.make_rows(rows, 7, 11);
        append_and_check(a);
        for (int64_t t = 0; rows == cache && t < 7; ++t) {  // unturned rows of the cache's own type are copies
          const auto [outer, row] = a.slot(2, 33 + t);
          EXPECT_EQ(a.c.k.get(outer, row, 1, 3), a.k_new.get(2, t, 1, 3));
        }
      }
}

TEST(CpuAppend, PagesOfEverySizeWithATableThatEndsItsAllocation) {
  for (const int32_t page_size : {1, 16, 24, 64})
    for (const int64_t count : {1, 2, 7}) {
      SCOPED_TRACE(::testing::Message() << "pages of " << page_size << ", " << count << " new");
      AppendCase a = make_case("paged", TESSERA_BF16, page_size);
      a.make_rows(TESSERA_BF16, count, 12);
      append_and_check(a);
    }
}

TEST(CpuAppend, UnusedTableSlotsMayHoldAnything) {
  AppendCase a = make_case("paged", TESSERA_F32, 16);
  a.c.seqused_k = {5, 0, 20};
  a.make_rows(TESSERA_F32, 3, 13);
  for (const size_t unused : {1, 2, 4, 5, 8}) a.c.page_table[unused] = -1 - static_cast<int32_t>(unused) * 100000;
  append_and_check(a);
}

TEST(CpuAppend, RaggedNewRows) {
  for (const char* layout : {"dense", "paged"}) {
    AppendCase a = make_case(layout, TESSERA_F16);
    a.make_packed_rows(TESSERA_F16, {0, 9, 9, 16}, 14);
    append_and_check(a);
    a.make_packed_rows(TESSERA_F32, {0, 0, 40, 40}, 15);  // a whole cache, and sequences without a new row
    append_and_check(a);
  }
}

TEST(CpuAppend, NewRowsKeepTheirOwnStrides) {
  AppendCase a = make_case("dense", TESSERA_F32);
  a.make_rows(TESSERA_F32, 4, 16);
  // k and v as slices of one [batch, row, 3, head, dim] buffer, and one row for all.
  for (Tensor* x : {&a.k_new, &a.v_new}) {
    const Tensor sliced(TESSERA_F32, x->dims(), {.stride = {4 * 3 * 2 * 24, 3 * 2 * 24, 24, 1}, .offset = 48});
    sliced.copy_values(*x);
    *x = sliced;
  }
  append_and_check(a);
}

TEST(CpuAppend, RotaryEmbeddingAgainstTheFormula) {
  for (const int32_t dtype : kAllTypes)
    for (const int32_t interleaved : {0, 1})
      for (const int32_t rotary_dim : {2, 8, 24})
        for (const bool banded : {false, true}) {
          SCOPED_TRACE(::testing::Message() << name_of(dtype) << " interleaved " << interleaved << " of " << rotary_dim
                                            << " banded " << banded);
          AppendCase a = make_case(rotary_dim == 8 ? "paged" : "leftpad", dtype);
          if (banded) a.c.set_causal();
          a.make_rows(dtype, 3, 17);
          a.make_rotary(rotary_dim, 36, interleaved, true);
          append_and_check(a);
          for (int64_t b = 0; b < 3; ++b)
            for (int64_t i = 0; i < 2; ++i)
              for (int64_t h = 0; h < 4; ++h)
                for (int64_t e = 0; e < 24; ++e) {
                  const auto row = [&](int64_t x) { return a.c.q.get(b, i, h, x); };
                  const double right = a.turned(row, e, kLengths[static_cast<size_t>(b)] + (banded ? i : 0));
                  const double bound = roundoff(dtype) * std::abs(right) + (dtype == TESSERA_F64 ? 1e-14 : 2e-6);
                  ASSERT_NEAR(a.q_rotated.get(b, i, h, e), right, bound) << b << ' ' << i << ' ' << h << ' ' << e;
                }
          EXPECT_TRUE(a.q_rotated.gaps_intact());
        }
}

TEST(CpuAppend, QueriesTurnedInPlaceOrPackedAreTheSame) {
  AppendCase a = make_case("dense", TESSERA_BF16);
  a.c.set_causal();
  a.make_rows(TESSERA_BF16, 2, 18);
  a.make_rotary(16, 40, 0, true);
  append_and_check(a);
  AppendCase in_place = a;
  in_place.c.q = a.c.q.clone(), in_place.c.k = a.c.k.clone(), in_place.c.v = a.c.v.clone();
  in_place.q_rotated = in_place.c.q;
  append_and_check(in_place);
  EXPECT_TRUE(in_place.c.q.same_bits(a.q_rotated));
  // The second query of sequence 1 alone is left out.
  AppendCase packed = a;
  packed.c.problem.layout_q = TESSERA_PACKED, packed.c.problem.total_q = 6;
  packed.c.q = Tensor(TESSERA_BF16, {1, 6, 4, 24}), packed.q_rotated = Tensor(TESSERA_BF16, {1, 6, 4, 24});
  packed.c.q.fill([&](int64_t, int64_t i, int64_t h, int64_t e) { return a.c.q.get(i / 2, i % 2, h, e); });
  packed.c.cu_seqlens_q = {0, 2, 4, 6};
  packed.c.seqused_q = {2, 1, 2};
  append_and_check(packed);
  for (int64_t i = 0; i < 6; ++i)
    for (int64_t h = 0; h < 4; ++h)
      for (int64_t e = 0; e < 24; ++e) {
        if (i == 3) {
          EXPECT_TRUE(packed.q_rotated.untouched(0, i, h, e));
        } else {
          EXPECT_EQ(packed.q_rotated.get(0, i, h, e), a.q_rotated.get(i / 2, i % 2, h, e));
        }
      }
}

double scale_of(const AppendCase& a, const Array<float>& scales, int64_t outer, int64_t row, int64_t head) {
  const tessera_desc& desc = a.c.problem.k_scale;
  const int32_t rows = a.c.problem.k_scale_rows;
  return scales[static_cast<size_t>(outer * desc.stride[0] + (rows == 0 ? 0 : row / rows) * desc.stride[1] + head)];
}

AppendCase int8_case(const std::string& layout, int32_t q_dtype, int32_t page_size = 16) {
  AppendCase a = make_case(layout, q_dtype, page_size);
  a.c.k = Tensor(TESSERA_INT8, a.c.k.dims()), a.c.v = Tensor(TESSERA_INT8, a.c.v.dims());
  return a;
}

TEST(CpuAppend, Int8RoundTripUnderEveryScale) {
  for (const char* layout : {"dense", "batch_idx", "paged"})
    for (const int32_t rows : {0, 1, 128, 16}) {
      if (rows == 16 && std::string(layout) != "paged") continue;
      SCOPED_TRACE(::testing::Message() << layout << " scales of " << rows << " rows");
      AppendCase a = int8_case(layout, TESSERA_BF16);
      make_scales(a, rows);
      a.make_rows(TESSERA_F32, 7, 19);
      a.make_rotary(12, 40, 1, false);
      tessera_status status{};
      ASSERT_EQ(a.append(&status), TESSERA_OK) << status.message;
      for (int64_t b = 0; b < 3; ++b)
        for (int64_t t = 0; t < 7; ++t) {
          const auto [outer, row] = a.slot(b, kLengths[static_cast<size_t>(b)] + t);
          for (int64_t h = 0; h < 2; ++h) {
            const double k_step = scale_of(a, a.k_scale, outer, row, h), v_step = scale_of(a, a.v_scale, outer, row, h);
            for (int64_t e = 0; e < 24; ++e) {
              const double right = std::clamp(a.expected_key(b, t, h, e), -127 * k_step, 127 * k_step);
              ASSERT_NEAR(a.c.k.get(outer, row, h, e) * k_step, right, k_step * 0.5001);
            }
            for (int64_t e = 0; e < 10; ++e) {
              const double right = std::clamp(a.v_new.get(b, t, h, e), -127 * v_step, 127 * v_step);
              ASSERT_NEAR(a.c.v.get(outer, row, h, e) * v_step, right, v_step * 0.5001);
            }
          }
        }
    }
}

TEST(CpuAppend, Int8RoundsToEvenAndKeepsItsRange) {
  AppendCase a = int8_case("dense", TESSERA_F32);
  a.make_rows(TESSERA_F32, 1, 20);
  constexpr double kValues[] = {0.5, 1.5, -2.5, 126.5, 127.4, 1e30, -128, -kInfinity, kInfinity, kNaN};
  constexpr int kExpected[] = {0, 2, -2, 126, 127, 127, -127, -127, 127, 0};
  a.v_new.fill([&](int64_t, int64_t, int64_t, int64_t e) { return kValues[e]; });
  tessera_status status{};
  ASSERT_EQ(a.append(&status), TESSERA_OK) << status.message;
  for (int64_t e = 0; e < 10; ++e) EXPECT_EQ(a.c.v.get(0, 5, 0, e), kExpected[e]) << kValues[e];
  a.v_scale = {0.0f};
  ASSERT_EQ(a.append(&status), TESSERA_OK) << status.message;
  for (int64_t e = 0; e < 10; ++e) EXPECT_EQ(a.c.v.get(0, 5, 0, e), 0) << kValues[e];
}

double of_e4m3(int code) { return code < 8 ? std::ldexp(code, -9) : std::ldexp(8 + code % 8, code / 8 - 10); }

// Between every two neighbours of the format: the middle, which goes to the even one, and what lies beside it.
TEST(CpuAppend, E4m3RoundsToEvenAndKeepsItsRange) {
  AppendCase a = make_case("dense", TESSERA_E4M3);
  a.make_rows(TESSERA_F32, 7, 20);
  const auto value = [](int64_t b, int64_t i, int64_t h, int64_t e) {
    const auto n = static_cast<int>(((b * 7 + i) * 2 + h) * 24 + e), code = n / 6 % 126;
    const auto middle = static_cast<float>((of_e4m3(code) + of_e4m3(code + 1)) / 2);
    const float beside = n % 3 == 0 ? middle : std::nextafter(middle, n % 3 == 1 ? 0.0f : kFar);
    return n % 6 < 3 ? beside : -beside;
  };
  a.k_new.fill([&](int64_t b, int64_t i, int64_t h, int64_t e) { return value(b, i, h, e); });
  constexpr double kValues[] = {448, 463, 465, 1e30, -1e30, kInfinity, -kInfinity, 0x1p-140, -0x1p-11, 0};
  constexpr double kExpected[] = {448, 448, 448, 448, -448, 448, -448, 0, -0.0, 0};
  a.v_new.fill([&](int64_t, int64_t, int64_t, int64_t e) { return kValues[e]; });
  tessera_status status{};
  for (const float scale : {1.0f, 0.37f}) {
    a.k_scale = {scale};
    ASSERT_EQ(a.append(&status), TESSERA_OK) << status.message;
    const Tensor right(TESSERA_E4M3, a.k_new.dims());
    right.fill(
        [&](int64_t b, int64_t i, int64_t h, int64_t e) { return static_cast<float>(value(b, i, h, e)) / scale; });
    for (int64_t b = 0; b < 3; ++b)
      for (int64_t i = 0; i < 7; ++i)
        for (int64_t h = 0; h < 2; ++h)
          for (int64_t e = 0; e < 24; ++e)
            ASSERT_EQ(a.c.k.get(b, kLengths[static_cast<size_t>(b)] + i, h, e), right.get(b, i, h, e))
                << value(b, i, h, e);
  }
  for (int64_t e = 0; e < 10; ++e) EXPECT_EQ(a.c.v.get(0, 5, 0, e), kExpected[e]) << kValues[e];
  a.v_new.fill(kNaN);
  ASSERT_EQ(a.append(&status), TESSERA_OK) << status.message;
  EXPECT_TRUE(std::isnan(a.c.v.get(0, 5, 0, 3)));
  a.v_scale = {0.0f};
  ASSERT_EQ(a.append(&status), TESSERA_OK) << status.message;
  EXPECT_EQ(a.c.v.get(0, 5, 0, 3), 0);
}

TEST(CpuAppend, NothingToDoIsDone) {
  AppendCase a = make_case("dense", TESSERA_F32);
  a.make_rows(TESSERA_F32, 0, 21);
  append_and_check(a);
  a.make_packed_rows(TESSERA_F32, {0, 0, 0, 0}, 22);
  append_and_check(a);
  tessera_append_args none{};
  none.size = sizeof none;
  const tessera_tensors tensors = a.bind();
  EXPECT_EQ(tessera_append(&a.c.problem, &tensors, &none, nullptr, nullptr), TESSERA_OK);
  a.c.problem.batch = 0;
  EXPECT_EQ(tessera_append(&a.c.problem, &tensors, &none, nullptr, nullptr), TESSERA_OK);
}

}  // namespace
}  // namespace tessera::test
