// A cache of a Case and new rows for it: what the tests of tessera_append share. Expected rows are formed here in
// float64 from the formula of tessera_append_args.
#pragma once

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "support.hpp"

namespace tessera::test {

struct AppendCase {
  Case c;               // the cache, the lengths before, and attention over it
  Tensor k_new, v_new;  // [batch, seqlen_new, heads_kv, dim], packed with batch 1
  Tensor cos, sin;      // [1, rotary_seqlen, 1, rotary_dim / 2]
  Tensor q_rotated;     // absent: q is not turned
  Array<int32_t> cu_seqlens_new;
  Array<float> k_scale, v_scale;
  int64_t seqlen_new = 0;
  int32_t interleaved = 0;

  void make_rows(int32_t dtype, int64_t count, uint64_t seed) {
    seqlen_new = count;
    const tessera_problem& p = c.problem;
    k_new = Tensor(dtype, {p.batch, count, p.heads_kv, p.head_dim_qk});
    v_new = Tensor(dtype, {p.batch, count, p.heads_kv, p.head_dim_v});
    k_new.fill_random(seed), v_new.fill_random(seed + 1);
  }
  // Sequence b gets rows [cu[b], cu[b + 1]).
  void make_packed_rows(int32_t dtype, const std::vector<int32_t>& cu, uint64_t seed) {
    const tessera_problem& p = c.problem;
    cu_seqlens_new = cu;
    k_new = Tensor(dtype, {1, cu.back(), p.heads_kv, p.head_dim_qk});
    v_new = Tensor(dtype, {1, cu.back(), p.heads_kv, p.head_dim_v});
    k_new.fill_random(seed), v_new.fill_random(seed + 1);
    for (size_t b = 1; b < cu.size(); ++b) seqlen_new = std::max<int64_t>(seqlen_new, cu[b] - cu[b - 1]);
  }
  void make_rotary(int32_t rotary_dim, int64_t positions, int32_t is_interleaved, bool with_q) {
    const int64_t half = rotary_dim / 2;
    cos = Tensor(c.q.dtype(), {1, positions, 1, half}), sin = Tensor(c.q.dtype(), {1, positions, 1, half});
    const auto angle = [half](int64_t i, int64_t x) {
      return static_cast<double>(i) * std::pow(1e4, -static_cast<double>(x) / static_cast<double>(half));
    };
    cos.fill([&](int64_t, int64_t i, int64_t, int64_t x) { return std::cos(angle(i, x)); });
    sin.fill([&](int64_t, int64_t i, int64_t, int64_t x) { return std::sin(angle(i, x)); });
    interleaved = is_interleaved;
    if (with_q) q_rotated = Tensor(c.q.dtype(), c.q.dims());
  }

  tessera_append_args args() const {
    tessera_append_args args{};
    args.size = sizeof args;
    const bool packed = cu_seqlens_new.data() != nullptr;
    args.seqlen_new = seqlen_new, args.total_new = packed ? k_new.dims()[1] : 0;
    args.k_new = k_new.desc(packed), args.v_new = v_new.desc(packed);
    args.k_new_data = k_new.data(), args.v_new_data = v_new.data();
    args.cu_seqlens_new = cu_seqlens_new.data();
    args.k_cache = c.k.data(), args.v_cache = c.v.data();
    if (cos.absent()) return args;
    args.rotary_dim = static_cast<int32_t>(2 * cos.dims()[3]), args.rotary_interleaved = interleaved;
    args.rotary_seqlen = cos.dims()[1], args.rotary_cos = cos.data(), args.rotary_sin = sin.data();
    if (q_rotated.absent()) return args;
    args.q_out = q_rotated.desc(c.problem.layout_q == TESSERA_PACKED), args.q_rotated = q_rotated.data();
    return args;
  }
  tessera_tensors bind() {
    tessera_tensors t = c.bind();
    t.k_scale = k_scale.data(), t.v_scale = v_scale.data();
    return t;
  }
  int append(tessera_status* status, const tessera_exec* exec = nullptr) {
    const tessera_tensors tensors = bind();
    const tessera_append_args rows = args();
    return test::append(c.problem, tensors, rows, status, exec);
  }
  // Attention with the append in the same call; o and lse are poisoned before.
  int attend(tessera_status* status) {
    c.o.poison();
    if (!c.lse.absent()) c.lse.poison();
    tessera_tensors tensors = bind();
    const tessera_append_args rows = args();
    tensors.append = &rows;
    return run_raw(c.problem, tensors, status);
  }

  int64_t rows_of(int64_t b) const {
    const auto at = static_cast<size_t>(b);
    return cu_seqlens_new.data() != nullptr ? cu_seqlens_new[at + 1] - cu_seqlens_new[at] : seqlen_new;
  }
  // First two indices of a cache's slot.
  std::pair<int64_t, int64_t> slot(int64_t b, int64_t i) const {
    const tessera_problem& p = c.problem;
    if (p.layout_kv == TESSERA_PAGED)
      return {c.page_table[static_cast<size_t>(b * p.max_pages + i / p.page_size)], i % p.page_size};
    return {c.batch_idx.data() != nullptr ? c.batch_idx[static_cast<size_t>(b)] : b, i};
  }
  double new_value(const Tensor& x, int64_t b, int64_t t, int64_t h, int64_t e) const {
    if (cu_seqlens_new.data() == nullptr) return x.get(b, t, h, e);
    return x.get(0, cu_seqlens_new[static_cast<size_t>(b)] + t, h, e);
  }
  // Element e of a row x turned by `position`.
  template <class Row>
  double turned(const Row& x, int64_t e, int64_t position) const {
    const int64_t half = cos.absent() ? 0 : cos.dims()[3];
    if (e >= 2 * half) return x(e);
    const int64_t pair = interleaved != 0 ? e / 2 : e % half;
    const bool second = interleaved != 0 ? e % 2 == 1 : e >= half;
    const double a = x(interleaved != 0 ? 2 * pair : pair), b = x(interleaved != 0 ? 2 * pair + 1 : pair + half);
    const double cosine = cos.get(0, position, 0, pair), sine = sin.get(0, position, 0, pair);
    return second ? a * sine + b * cosine : a * cosine - b * sine;
  }
  double expected_key(int64_t b, int64_t t, int64_t h, int64_t e) const {
    const auto row = [&](int64_t x) { return new_value(k_new, b, t, h, x); };
    return turned(row, e, c.seqused_k[static_cast<size_t>(b)] + t);
  }

  // Every new row lies where it should with the right values, and no other byte of the cache changed.
  void expect_appended(const Tensor& k_before, const Tensor& v_before) const {
    const Tensor k = k_before.clone(), v = v_before.clone();
    for (int64_t b = 0; b < c.problem.batch; ++b)
      for (int64_t t = 0; t < rows_of(b); ++t) {
        const auto [outer, row] = slot(b, c.seqused_k[static_cast<size_t>(b)] + t);
        for (int64_t h = 0; h < c.problem.heads_kv; ++h) {
          for (int64_t e = 0; e < c.problem.head_dim_qk; ++e)
            expect_stored(c.k, k, outer, row, h, e, expected_key(b, t, h, e));
          for (int64_t e = 0; e < c.problem.head_dim_v; ++e)
            expect_stored(c.v, v, outer, row, h, e, new_value(v_new, b, t, h, e));
        }
      }
    EXPECT_TRUE(c.k.same_bits(k)) << "k changed beside the new rows";
    EXPECT_TRUE(c.v.same_bits(v)) << "v changed beside the new rows";
    EXPECT_TRUE(c.k.gaps_intact() && c.v.gaps_intact());
  }

 private:
  // One rounding of a value that float32 computed from products of at most a few; then the element is taken over, so
  // that what is left can be compared bitwise.
  static void expect_stored(const Tensor& cache, const Tensor& expected, int64_t b, int64_t i, int64_t h, int64_t e,
                            double value) {
    const double arithmetic = cache.dtype() == TESSERA_F64 ? 0x1p-51 : 0x1p-22;
    const double bound = roundoff(cache.dtype()) * std::abs(value) + arithmetic * 4;
    const double got = cache.get(b, i, h, e);
    ASSERT_TRUE(std::abs(got - value) <= bound)
        << got << " at " << b << ' ' << i << ' ' << h << ' ' << e << ", not " << value;
    expected.set(b, i, h, e, got);
  }
};

inline bool quantised(int32_t dtype) { return dtype == TESSERA_INT8 || dtype == TESSERA_E4M3; }

// Scales of a quantised cache of `outer` batch rows or pages: a different one for each block of `rows` rows and head.
inline void make_scales(AppendCase& a, int32_t rows) {
  tessera_problem& p = a.c.problem;
  const int64_t outer = a.c.k.dims()[0], length = a.c.k.dims()[1];
  const int64_t blocks = rows == 0 ? 1 : (length + rows - 1) / rows;
  std::vector<float> scales;
  for (int64_t n = 0; n < outer * blocks * p.heads_kv; ++n)
    scales.push_back(0.02f + 0.003f * static_cast<float>(n % 19));
  a.k_scale = scales;
  for (float& scale : scales) scale *= 1.25f;
  a.v_scale = scales;
  for (tessera_desc* desc : {&p.k_scale, &p.v_scale}) *desc = {TESSERA_F32, 0, {blocks * p.heads_kv, p.heads_kv, 1, 0}};
  p.k_scale_rows = p.v_scale_rows = rows;
}

// A cache of three sequences with 5, 0 and 33 rows; `layout` is dense, batch_idx, leftpad, strided or paged. q of a
// quantised cache is bf16.
inline AppendCase make_case(const std::string& layout, int32_t cache, const Shape& shape, int32_t page_size = 16) {
  const int32_t q = quantised(cache) ? TESSERA_BF16 : cache;
  AppendCase a;
  if (layout == "paged") {
    const int64_t pages = (shape.seqlen_k + page_size - 1) / page_size, count = shape.batch * pages;
    std::vector<int32_t> table;
    for (int64_t n = 0; n < count; ++n) table.push_back(static_cast<int32_t>((n * 7 + 3) % count));
    a.c = Case::paged(q, shape, page_size, count, table);
  } else {
    a.c = Case::dense(q, shape);
  }
  if (quantised(cache)) a.c.k = Tensor(cache, a.c.k.dims()), a.c.v = Tensor(cache, a.c.v.dims());
  if (layout == "batch_idx") {
    a.c.problem.batch_kv = 5;
    a.c.k = Tensor(cache, {5, shape.seqlen_k, 2, a.c.k.dims()[3]});
    a.c.v = Tensor(cache, {5, shape.seqlen_k, 2, a.c.v.dims()[3]});
    a.c.batch_idx = {4, 0, 2};
  }
  if (layout == "leftpad") a.c.leftpad = {2, 0, 33};
  if (layout == "strided") {  // heads outside of rows, gaps between rows
    const int64_t dim = a.c.k.dims()[3], row = dim + 16;
    a.c.k = Tensor(cache, a.c.k.dims(), {.stride = {2 * 40 * row, row, 40 * row, 1}, .offset = 8});
    a.c.v = Tensor(cache, a.c.v.dims(), stored_as(a.c.v.dims(), 1, 2, 0));
  }
  a.c.seqused_k = {5, 0, 33};
  a.c.q.fill_random(5);
  return a;
}

inline std::vector<int32_t> backwards(int64_t count) {
  std::vector<int32_t> table;
  for (int64_t n = 0; n < count; ++n) table.push_back(static_cast<int32_t>(count - 1 - n));
  return table;
}

inline AppendCase serving_case(const std::string& layout, int32_t dtype) {
  const Shape shape{
      .batch = 3, .seqlen_q = 3, .seqlen_k = 96, .heads_q = 4, .heads_kv = 2, .head_dim_qk = 32, .head_dim_v = 24};
  AppendCase a;
  a.c = layout == "paged" ? Case::paged(dtype, shape, 16, 18, backwards(18)) : Case::dense(dtype, shape);
  if (layout == "batch_idx") a.c.batch_idx = {2, 0, 1};
  if (layout == "leftpad") a.c.leftpad = {7, 0, 60};
  a.c.randomize(61);
  a.c.set_causal();
  a.c.seqused_k = {40, 0, 90};
  a.make_packed_rows(dtype, {0, 3, 5, 11}, 62);
  return a;
}

// The case as two calls leave it: q turned, lengths with the new rows, no append.
inline Case after_append(AppendCase a) {
  tessera_status status{};
  EXPECT_EQ(a.append(&status), TESSERA_OK) << status.message;
  Case c = a.c;
  if (!a.q_rotated.absent()) c.q = a.q_rotated;
  std::vector<int32_t> lengths;
  for (int64_t b = 0; b < c.problem.batch; ++b)
    lengths.push_back(a.c.seqused_k[static_cast<size_t>(b)] + static_cast<int32_t>(a.rows_of(b)));
  c.seqused_k = lengths;
  c.o = a.c.o.clone(), c.lse = a.c.lse.clone();
  return c;
}

}  // namespace tessera::test
