// Overlap of operands, told from first and last byte and from whether an operand leaves gaps: what can be known without
// walking the strides of two operands against each other, in about 50 ns a run.
#include "aliases.hpp"

#include <cinttypes>
#include <initializer_list>

#include "quantize_math.hpp"
#include "status.hpp"

namespace tessera::core {
namespace {

struct Span {
  const char* name;
  uintptr_t begin, end;  // bytes; begin == end: nothing there
  bool gapless;          // every byte of the span belongs to the operand
  bool written;

  bool holds(uintptr_t byte) const { return byte >= begin && byte < end; }
};

struct Dims {
  int64_t batch, rows, heads, dim;
};

// Broadcast inputs may count more elements than 64 bits hold: then 0, which is no span's reach.
int64_t count_elements(const Dims& dims) {
  int64_t count = dims.batch;
  for (const int64_t extent : {dims.rows, dims.heads, dims.dim}) {
    if (__builtin_mul_overflow(count, extent, &count)) return 0;
  }
  return count;
}

Span span_of(const char* name, const void* pointer, const Operand& operand, const Dims& dims, bool written) {
  const auto begin = reinterpret_cast<uintptr_t>(pointer);
  if (pointer == nullptr || dims.batch == 0 || dims.rows == 0) return {name, begin, begin, false, written};
  const int64_t reach = (dims.batch - 1) * operand.batch_stride + (dims.rows - 1) * operand.row_stride +
                        (dims.heads - 1) * operand.head_stride + dims.dim;
  const bool gapless = reach == count_elements(dims);
  return {name, begin, begin + static_cast<uintptr_t>(reach * dtype_bytes(operand.dtype)), gapless, written};
}

Span span_of(const char* name, const void* pointer, const BiasOperand& bias, const Problem& p, bool written) {
  const int64_t extents[4] = {p.batch, p.heads_q, p.seqlen_q, p.seqlen_k};
  const auto begin = reinterpret_cast<uintptr_t>(pointer);
  int64_t reach = 1, elements = 1;
  for (int i = 0; i < 4; ++i) {
    if (extents[i] == 0 || pointer == nullptr) return {name, begin, begin, false, written};
    reach += (extents[i] - 1) * bias.stride[i];
    if (bias.stride[i] != 0 && __builtin_mul_overflow(elements, extents[i], &elements)) elements = 0;
  }
  return {name, begin, begin + static_cast<uintptr_t>(reach * dtype_bytes(bias.dtype)), reach == elements, written};
}

Span flat_span(const char* name, const void* pointer, int64_t bytes, bool written) {
  const auto begin = reinterpret_cast<uintptr_t>(pointer);
  return {name, begin, begin + static_cast<uintptr_t>(pointer != nullptr ? bytes : 0), true, written};
}

bool overlap(const Span& a, const Span& b) {
  if (a.begin == a.end || b.begin == b.end) return false;
  if (a.begin == b.begin) return true;
  return (a.gapless && (a.holds(b.begin) || a.holds(b.end - 1))) ||
         (b.gapless && (b.holds(a.begin) || b.holds(a.end - 1)));
}

Dims query_dims(const Problem& p, int32_t dim) {
  if (p.layout_q == TESSERA_PACKED) return {1, p.total_q, p.heads_q, dim};
  return {p.batch, p.seqlen_q, p.heads_q, dim};
}

Dims key_dims(const Problem& p, int32_t dim) {
  if (p.layout_kv == TESSERA_PACKED) return {1, p.total_k, p.heads_kv, dim};
  if (p.layout_kv == TESSERA_PAGED) return {p.num_pages, p.page_size, p.heads_kv, dim};
  return {p.batch_kv, p.seqlen_k, p.heads_kv, dim};
}

// Rows are channels and elements slots under v_order 1.
Dims value_dims(const Problem& p) {
  const Dims rows = key_dims(p, p.head_dim_v);
  if (p.v_order == 0) return rows;
  const int64_t slots = p.layout_kv == TESSERA_PACKED ? packed_first_slot(p.total_k, p.batch) : whole_groups(rows.rows);
  return {rows.batch, rows.rows > 0 ? p.head_dim_v : 0, rows.heads, slots};
}

constexpr int kMaxSpans = 14;

// q turned in its own place.
bool turns_in_place(const Problem& p, const tessera_tensors& t, const Append& append) {
  return append.rotates_q && append.args->q_rotated == t.q && p.q.batch_stride == append.q_out.batch_stride &&
         p.q.row_stride == append.q_out.row_stride && p.q.head_stride == append.q_out.head_stride;
}

int collect_append(const Problem& p, const Append& append, Span* spans) {
  const tessera_append_args& args = *append.args;
  const bool packed = args.cu_seqlens_new != nullptr;
  const Dims rows{packed ? 1 : p.batch, packed ? args.total_new : args.seqlen_new, p.heads_kv, 0};
  const auto with_dim = [&](int32_t dim) { return Dims{rows.batch, rows.rows, rows.heads, dim}; };
  int count = 0;
  spans[count++] = span_of("k_new_data", args.k_new_data, append.k_new, with_dim(p.head_dim_qk), false);
  spans[count++] = span_of("v_new_data", args.v_new_data, append.v_new, with_dim(p.head_dim_v), false);
  if (append.rotates_q)
    spans[count++] = span_of("q_rotated", args.q_rotated, append.q_out, query_dims(p, p.head_dim_qk), true);
  return count;
}

int collect(const Problem& p, const tessera_tensors& t, const Append& append, Span (&spans)[kMaxSpans]) {
  const bool backward = p.pass == TESSERA_BACKWARD, appends = append.args != nullptr;
  const Dims q = query_dims(p, p.head_dim_qk), o = query_dims(p, p.head_dim_v);
  const Dims k = key_dims(p, p.head_dim_qk), v = value_dims(p);
  const int64_t lse_bytes = o.batch * o.rows * o.heads * dtype_bytes(lse_dtype(p.q.dtype));
  int count = appends ? collect_append(p, append, spans) : 0;
  if (!appends || !turns_in_place(p, t, append)) spans[count++] = span_of("q", t.q, p.q, q, false);
  spans[count++] = span_of("k", t.k, p.k, k, appends);
  spans[count++] = span_of("v", t.v, p.v, v, appends);
  if (p.has(TESSERA_FLAG_BIAS)) spans[count++] = span_of("bias", t.bias, p.bias, p, false);
  if (p.has(TESSERA_FLAG_SINKS)) spans[count++] = flat_span("sinks", t.sinks, int64_t{p.heads_q} * 4, false);
  if (backward) spans[count++] = span_of("d_o", t.d_o, p.d_o, o, false);
  if (p.has(TESSERA_FLAG_D_LSE)) spans[count++] = flat_span("d_lse", t.d_lse, lse_bytes, false);
  spans[count++] = span_of("o", t.o, p.o, o, !backward);
  if (backward || p.has(TESSERA_FLAG_LSE)) spans[count++] = flat_span("lse", t.lse, lse_bytes, !backward);
  if (!backward) return count;
  spans[count++] = span_of("dq", t.dq, p.dq, q, true);
  spans[count++] = span_of("dk", t.dk, p.dk, k, true);
  spans[count++] = span_of("dv", t.dv, p.dv, v, true);
  if (p.has(TESSERA_FLAG_D_BIAS)) spans[count++] = span_of("d_bias", t.d_bias, p.d_bias, p, true);
  if (p.has(TESSERA_FLAG_D_SINKS)) spans[count++] = flat_span("d_sinks", t.d_sinks, int64_t{p.heads_q} * 4, true);
  return count;
}

}  // namespace

int check_aliases(const Problem& problem, const tessera_tensors& tensors, const Append& append,
                  tessera_status* status) {
  Span spans[kMaxSpans];
  const int count = collect(problem, tensors, append, spans);
  for (int i = 0; i < count; ++i) {
    for (int j = 0; j < i; ++j) {
      if (!(spans[i].written || spans[j].written) || !overlap(spans[i], spans[j])) continue;
      const Span &written = spans[i].written ? spans[i] : spans[j], &other = spans[i].written ? spans[j] : spans[i];
      return fail(status, TESSERA_INVALID_ARGUMENT,
                  "%s is 0x%" PRIxPTR " and overlaps %s at 0x%" PRIxPTR
                  "; expected memory of its own for what is written",
                  written.name, written.begin, other.name, other.begin);
    }
  }
  return TESSERA_OK;
}

}  // namespace tessera::core
