// tessera_append on CUDA devices: the bits of the CPU's rows, which have tests against float64, in every layout, type,
// alignment and rotary embedding; and what only a device does, whose lengths and tables nobody has checked.
#include <cmath>
#include <cstring>

#include "append_case.hpp"

namespace tessera::test {
namespace {

const std::vector<int32_t> kNewTypes = {TESSERA_F32, TESSERA_F16, TESSERA_BF16};
const std::vector<int32_t> kCacheTypes = {TESSERA_F32, TESSERA_F16, TESSERA_BF16, TESSERA_INT8, TESSERA_E4M3};
const Shape kOdd{
    .batch = 3, .seqlen_q = 2, .seqlen_k = 40, .heads_q = 4, .heads_kv = 2, .head_dim_qk = 23, .head_dim_v = 10};
const Shape kEven{.batch = 3, .seqlen_q = 3, .seqlen_k = 40, .heads_q = 4, .heads_kv = 2, .head_dim_qk = 64};

// The same call for the CPU, on a cache and outputs of its own.
AppendCase twin_of(const AppendCase& a) {
  AppendCase twin = a;
  twin.c.k = a.c.k.clone(), twin.c.v = a.c.v.clone();
  if (!a.q_rotated.absent()) twin.q_rotated = a.q_rotated.clone();
  return twin;
}

// On the device as on the CPU, bit by bit.
void append_on_both(AppendCase& a) {
  AppendCase cpu = twin_of(a);
  tessera_status status{};
  ASSERT_EQ(cpu.append(&status), TESSERA_OK) << status.message;
  {
    const OnGpu target;
    ASSERT_EQ(a.append(&status), TESSERA_OK) << status.message;
  }
  EXPECT_TRUE(a.c.k.same_bits(cpu.c.k)) << "k";
  EXPECT_TRUE(a.c.v.same_bits(cpu.c.v)) << "v";
  EXPECT_TRUE(a.c.k.gaps_intact() && a.c.v.gaps_intact());
  if (a.q_rotated.absent()) return;
  EXPECT_TRUE(a.q_rotated.same_bits(cpu.q_rotated)) << "q";
  EXPECT_TRUE(a.q_rotated.gaps_intact());
}

#define SKIP_WITHOUT_GPU() \
  if (const char* reason = no_gpu()) GTEST_SKIP() << "no GPU test here: " << reason

TEST(GpuAppend, EveryLayoutAndTypeHasTheBitsOfTheCpu) {
  SKIP_WITHOUT_GPU();
  for (const Shape& shape : {kOdd, kEven})
    for (const char* layout : {"dense", "batch_idx", "leftpad", "strided", "paged"})
      for (const int32_t cache : kCacheTypes)
        for (const int32_t rows : kNewTypes) {
          SCOPED_TRACE(::testing::Message()
                       << layout << ' ' << name_of(rows) << " into " << name_of(cache) << " d " << shape.head_dim_qk);
          AppendCase a = make_case(layout, cache, shape);
          if (quantised(cache)) make_scales(a, layout == std::string("paged") ? 16 : 1);
          a.make_rows(rows, 7, 11);
          append_on_both(a);
        }
}

TEST(GpuAppend, RotaryEmbeddingHasTheBitsOfTheCpu) {
  SKIP_WITHOUT_GPU();
  int count = 0;
  for (const Shape& shape : {kOdd, kEven})
    for (const int32_t cache : kCacheTypes)
      for (const int32_t interleaved : {0, 1})
        for (const int32_t rotary_dim : {2, 16, 20, 64}) {
          if (rotary_dim > shape.head_dim_qk) continue;
          SCOPED_TRACE(::testing::Message() << name_of(cache) << " interleaved " << interleaved << ' ' << rotary_dim
                                            << " of " << shape.head_dim_qk);
          AppendCase a = make_case(count % 2 == 0 ? "paged" : "dense", cache, shape);
          if (count++ % 3 == 0) a.c.set_causal();
          a.make_rows(kNewTypes[static_cast<size_t>(count % 3)], 3, 17);
          a.make_rotary(rotary_dim, 36, interleaved, true);
          const Tensor k = a.c.k.clone(), v = a.c.v.clone();
          append_on_both(a);
          if (!quantised(cache)) a.expect_appended(k, v);
        }
}

TEST(GpuAppend, PagesOfEverySizeAndPackedRows) {
  SKIP_WITHOUT_GPU();
  for (const int32_t page_size : {1, 16, 24, 64})
    for (const std::vector<int32_t>& cu : {std::vector<int32_t>{0, 9, 9, 16}, {0, 0, 40, 40}, {0, 1, 2, 3}}) {
      SCOPED_TRACE(::testing::Message() << "pages of " << page_size << ", rows to " << cu[1] << ' ' << cu[2]);
      AppendCase a = make_case("paged", TESSERA_BF16, kEven, page_size);
      a.make_packed_rows(TESSERA_F16, cu, 14);
      if (cu[1] != 0) a.make_rotary(64, 40, 0, false);
      const Tensor k = a.c.k.clone(), v = a.c.v.clone();
      append_on_both(a);
      a.expect_appended(k, v);
    }
}

// More pieces in a row than a block has threads, and rows that start off 16 bytes.
TEST(GpuAppend, ManyHeadsAndOddAddresses) {
  SKIP_WITHOUT_GPU();
  const Shape shape{.batch = 3, .seqlen_k = 40, .heads_q = 40, .head_dim_qk = 64};
  for (const int64_t offset : {0, 1, 4}) {
    SCOPED_TRACE(offset);
    AppendCase a = make_case("dense", TESSERA_F16, shape);
    a.make_rows(TESSERA_F16, 2, 30);
    a.make_rotary(32, 40, 1, true);
    for (Tensor* x : {&a.k_new, &a.v_new, &a.cos}) {
      const Dims dims = x->dims();
      const Tensor moved(TESSERA_F16, dims,
                         {.stride = {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1}, .offset = offset});
      moved.copy_values(*x);
      *x = moved;
    }
    append_on_both(a);
  }
}

// Packed rows behind the last sequence's belong to nobody.
TEST(GpuAppend, RowsOfNoSequence) {
  SKIP_WITHOUT_GPU();
  AppendCase a = make_case("paged", TESSERA_BF16, kEven);
  a.make_packed_rows(TESSERA_BF16, {0, 3, 3, 7}, 14);
  a.cu_seqlens_new[3] = 4;
  const Tensor k = a.c.k.clone(), v = a.c.v.clone();
  append_on_both(a);
  a.expect_appended(k, v);
}

// A position past the tables, which the CPU refuses, turns by their last row.
TEST(GpuAppend, PositionsPastTheTables) {
  SKIP_WITHOUT_GPU();
  AppendCase a = make_case("dense", TESSERA_F16, kEven);
  a.make_rows(TESSERA_F16, 4, 19);
  a.make_rotary(64, 40, 0, true);
  for (int64_t i = 35; i < 40; ++i)
    for (int64_t e = 0; e < 32; ++e)
      a.cos.set(0, i, 0, e, a.cos.get(0, 34, 0, e)), a.sin.set(0, i, 0, e, a.sin.get(0, 34, 0, e));
  AppendCase cpu = twin_of(a);
  tessera_status status{};
  ASSERT_EQ(cpu.append(&status), TESSERA_OK) << status.message;
  for (const Tensor* table : {&a.cos, &a.sin})
    for (int64_t row = 35; row < 40; ++row) table->fill_row(0, row, 0, kNaN);
  const OnGpu target;
  tessera_append_args args = a.args();
  args.rotary_seqlen = 35;
  const tessera_tensors tensors = a.bind();
  ASSERT_EQ(append(a.c.problem, tensors, args, &status), TESSERA_OK) << status.message;
  EXPECT_TRUE(a.c.k.same_bits(cpu.c.k) && a.q_rotated.same_bits(cpu.q_rotated));
}

// Which of 70 sequences a row is of, where many are empty; queries packed as well, and fewer used than there are.
TEST(GpuAppend, ManyPackedSequences) {
  SKIP_WITHOUT_GPU();
  const Shape shape{.batch = 70, .seqlen_q = 5, .seqlen_k = 9, .heads_q = 3, .heads_kv = 1, .head_dim_qk = 16};
  AppendCase a;
  a.c = Case::dense(TESSERA_F16, shape);
  std::vector<int32_t> cu{0}, used, lengths;
  for (int32_t b = 0; b < 70; ++b) {
    const int32_t rows = b % 3 == 0 ? 0 : b * 5 % 6;
    cu.push_back(cu.back() + rows), used.push_back(rows / 2), lengths.push_back(b % 4);
  }
  a.c.seqused_k = lengths;
  a.make_packed_rows(TESSERA_F16, cu, 15);
  a.c.problem.layout_q = TESSERA_PACKED, a.c.problem.total_q = cu.back();
  a.c.q = Tensor(TESSERA_F16, {1, cu.back(), 3, 16});
  a.c.q.fill_random(16);
  a.c.cu_seqlens_q = cu, a.c.seqused_q = used;
  a.c.set_causal();
  a.make_rotary(16, 9, 1, true);
  append_on_both(a);
}

TEST(GpuAppend, QueriesTurnInPlace) {
  SKIP_WITHOUT_GPU();
  for (const int32_t interleaved : {0, 1}) {
    AppendCase a = make_case("dense", TESSERA_F16, kEven);
    a.make_rows(TESSERA_F16, 2, 18);
    a.make_rotary(48, 40, interleaved, true);
    a.q_rotated.copy_values(a.c.q);
    AppendCase cpu = twin_of(a);
    tessera_status status{};
    ASSERT_EQ(cpu.append(&status), TESSERA_OK) << status.message;
    a.c.q = a.q_rotated;
    const OnGpu target;
    ASSERT_EQ(a.append(&status), TESSERA_OK) << status.message;
    EXPECT_TRUE(a.c.q.same_bits(cpu.q_rotated));
  }
}

TEST(GpuAppend, SpecialNumbersAreRoundedAsOnTheCpu) {
  SKIP_WITHOUT_GPU();
  const std::vector<double> values = {0.5,   1.5,      -2.5, 126.5, 127.4,   1e30,    -128,    kInfinity, -kInfinity,
                                      448.0, 463.9,    464,  -480,  0x1p-9,  0x1p-10, 0x3p-11, 0x1.8p-9,  0x1.fp-7,
                                      -0.0,  0x1p-149, 17,   19,    65519.9, 65520,   0x1p-25, 0x1.8p-24, 1.0 / 3};
  for (const int32_t cache : kCacheTypes) {
    SCOPED_TRACE(name_of(cache));
    AppendCase a = make_case("dense", cache, kEven);
    if (quantised(cache)) a.k_scale = {1.0f}, a.v_scale = {0.0f};
    a.make_rows(TESSERA_F32, 1, 20);
    a.k_new.fill([&](int64_t, int64_t, int64_t, int64_t e) { return values[static_cast<size_t>(e) % values.size()]; });
    append_on_both(a);
    a.k_new.fill(kNaN);
    const OnGpu target;
    tessera_status status{};
    ASSERT_EQ(a.append(&status), TESSERA_OK) << status.message;
    const double got = a.c.k.get(0, 5, 1, 7);
    EXPECT_TRUE(cache == TESSERA_INT8 ? got == 0 : std::isnan(got)) << got;
  }
}

// Rows that do not fit are left out, and nothing beyond a sequence's own rows changes, whatever lengths hold.
TEST(GpuAppend, AFullCacheDropsWhatDoesNotFit) {
  SKIP_WITHOUT_GPU();
  for (const char* layout : {"dense", "paged"})
    for (const int32_t length : {38, 40, 1000, INT32_MAX}) {
      SCOPED_TRACE(::testing::Message() << layout << ' ' << length);
      AppendCase a = make_case(layout, TESSERA_BF16, kEven);
      a.c.seqused_k = {0, length, 5};
      a.make_rows(TESSERA_BF16, 3, 21);
      a.make_rotary(64, 40, 0, true);
      AppendCase fitting = twin_of(a);  // sequence by sequence, the rows that have room
      tessera_status status{};
      const int32_t room = length < 40 ? 40 - length : 0;
      fitting.make_packed_rows(TESSERA_BF16, {0, 3, 3 + room, 6 + room}, 21);
      const auto row_of = [room](int64_t i) { return i < 3 ? i : i < 3 + room ? 3 + (i - 3) : 6 + (i - 3 - room); };
      for (auto [to, from] : {std::pair{&fitting.k_new, &a.k_new}, {&fitting.v_new, &a.v_new}})
        to->fill(
            [&](int64_t, int64_t i, int64_t h, int64_t e) { return from->get(row_of(i) / 3, row_of(i) % 3, h, e); });
      fitting.c.seqused_k = {0, std::min(length, 40), 5};
      fitting.q_rotated = {};
      ASSERT_EQ(fitting.append(&status), TESSERA_OK) << status.message;
      const OnGpu target;
      ASSERT_EQ(a.append(&status), TESSERA_OK) << status.message;
      EXPECT_TRUE(a.c.k.same_bits(fitting.c.k) && a.c.v.same_bits(fitting.c.v));
      EXPECT_TRUE(a.c.k.gaps_intact() && a.c.v.gaps_intact() && a.q_rotated.gaps_intact());
    }
}

// A wild entry concerns its own sequence alone: the others' rows are as ever, and no other byte changes.
void expect_wild_entry_harms_nobody(const char* layout, bool packed, const std::function<void(AppendCase&)>& harm) {
  AppendCase a = make_case(layout, TESSERA_F16, kEven);
  a.c.seqused_k = {5, 0, 30};
  if (packed) {
    a.make_packed_rows(TESSERA_F16, {0, 3, 6, 9}, 22);
  } else {
    a.make_rows(TESSERA_F16, 3, 22);
  }
  a.make_rotary(32, 40, 0, true);
  AppendCase others = twin_of(a);
  tessera_status status{};
  others.make_packed_rows(TESSERA_F16, {0, 3, 3, 6}, 22);
  for (auto [to, from] : {std::pair{&others.k_new, &a.k_new}, {&others.v_new, &a.v_new}})
    to->fill([&](int64_t, int64_t i, int64_t h, int64_t e) {
      const int64_t b = i < 3 ? 0 : 2, t = i % 3;
      return packed ? from->get(0, 3 * b + t, h, e) : from->get(b, t, h, e);
    });
  ASSERT_EQ(others.append(&status), TESSERA_OK) << status.message;
  harm(a);
  const OnGpu target;
  ASSERT_EQ(a.append(&status), TESSERA_OK) << status.message;
  EXPECT_TRUE(a.c.k.same_bits(others.c.k) && a.c.v.same_bits(others.c.v));
  EXPECT_TRUE(a.c.k.gaps_intact() && a.c.v.gaps_intact() && a.q_rotated.gaps_intact());
}

TEST(GpuSanitizer, AppendWithWildMetadata) {
  SKIP_WITHOUT_GPU();
  for (const int32_t wild : {-1, 9, INT32_MAX, INT32_MIN}) {
    SCOPED_TRACE(wild);
    expect_wild_entry_harms_nobody("paged", false, [&](AppendCase& a) { a.c.page_table[3] = wild; });
    expect_wild_entry_harms_nobody("batch_idx", true, [&](AppendCase& a) { a.c.batch_idx[1] = wild; });
    if (wild > 0)
      expect_wild_entry_harms_nobody("dense", false, [&](AppendCase& a) { a.c.seqused_k[1] = std::max(wild, 40); });
    // Whose rows these are is not known then; what they are not is outside of the arrays.
    AppendCase a = make_case("paged", TESSERA_BF16, kEven);
    a.make_packed_rows(TESSERA_BF16, {0, 3, 6, 9}, 22);
    a.cu_seqlens_new[1] = wild;
    a.make_rotary(32, 1, 0, true);  // and positions past the tables
    const OnGpu target;
    tessera_status status{};
    ASSERT_EQ(a.append(&status), TESSERA_OK) << status.message;
    EXPECT_TRUE(a.c.k.gaps_intact() && a.c.v.gaps_intact() && a.q_rotated.gaps_intact());
  }
}

TEST(GpuSanitizer, SmallAppends) {
  SKIP_WITHOUT_GPU();
  for (const int32_t cache : kCacheTypes)
    for (const Shape& shape : {kOdd, kEven}) {
      AppendCase a = make_case("paged", cache, shape, 1);
      if (quantised(cache)) make_scales(a, 0);
      a.make_packed_rows(TESSERA_F32, {0, 2, 2, 9}, 23);
      a.make_rotary(shape.head_dim_qk - shape.head_dim_qk % 2, 40, cache % 2, true);
      append_on_both(a);
    }
}

}  // namespace
}  // namespace tessera::test
