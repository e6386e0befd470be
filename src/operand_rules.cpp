// dtype, alignment and stride rules of every operand, and the resolved strides that kernels see: the stride of a size-1
// dim becomes 0, all-zero strides become the contiguous ones, offsets are known to fit 64 bits, and nothing that is
// written overlaps itself.
#include "operand_rules.hpp"

#include <algorithm>
#include <cinttypes>

#include "quantize_math.hpp"
#include "status.hpp"

namespace tessera::core {
namespace {

constexpr int64_t kMaxBytes = INT64_MAX / 4;  // offsets of a few operands may be added without a check

bool is_16bit(int32_t dtype) { return dtype == TESSERA_F16 || dtype == TESSERA_BF16; }
bool is_quantized(int32_t dtype) { return dtype == TESSERA_E4M3 || dtype == TESSERA_INT8; }

int check_align(tessera_status* status, const char* name, int32_t align, int32_t element_bytes, int32_t* resolved) {
  *resolved = align == 0 ? 16 : align;
  if (*resolved >= element_bytes && (*resolved & (*resolved - 1)) == 0) return TESSERA_OK;
  return fail(status, TESSERA_INVALID_ARGUMENT,
              "%s.align is %d; expected 0 (16 bytes) or a power of two of at least %d, its element's bytes", name,
              align, element_bytes);
}

// No two elements share an address: taken from the smallest stride up, each stride reaches past all dims below it.
int check_disjoint(tessera_status* status, const char* name, const Dims& dims, const int64_t* stride,
                   bool zero_broadcasts) {
  int order[4];
  int count = 0;
  for (int i = 0; i < dims.rank; ++i) {
    if (dims.extent[i] > 1 && !(zero_broadcasts && stride[i] == 0)) order[count++] = i;
  }
  for (int n = 1; n < count; ++n) {
    for (int m = n; m > 0 && stride[order[m]] < stride[order[m - 1]]; --m) std::swap(order[m], order[m - 1]);
  }
  int64_t reach = 1;
  for (int n = 0; n < count; ++n) {
    const int i = order[n];
    if (stride[i] < reach) {
      return fail(status, TESSERA_INVALID_ARGUMENT,
                  "%s.stride[%d] is %" PRId64
                  ", so elements that are written would overlap; expected at least %" PRId64,
                  name, i, stride[i], reach);
    }
    reach += (dims.extent[i] - 1) * stride[i];
  }
  return TESSERA_OK;
}

// Signs, the last dim, and that the last element's byte offset fits. Sets the strides of size-1 dims to 0.
int check_strides(tessera_status* status, const char* name, const Dims& dims, int32_t element_bytes, int64_t* stride) {
  int64_t last = 1;
  bool empty = false;
  for (int i = 0; i < dims.rank; ++i) {
    if (dims.extent[i] == 0) empty = true;
    if (dims.extent[i] == 1) stride[i] = 0;
    if (stride[i] < 0) {
      return fail(status, TESSERA_INVALID_ARGUMENT, "%s.stride[%d] is %" PRId64 "; expected 0 or more", name, i,
                  stride[i]);
    }
  }
  for (int i = 0; i < dims.rank && !empty; ++i) {
    int64_t span = 0;
    if (__builtin_mul_overflow(dims.extent[i] - 1, stride[i], &span) || __builtin_add_overflow(last, span, &last) ||
        last > kMaxBytes / element_bytes) {
      return fail(status, TESSERA_INVALID_ARGUMENT,
                  "%s.stride[%d] is %" PRId64 " over %" PRId64 " elements; expected offsets below 2^61 bytes", name, i,
                  stride[i], dims.extent[i]);
    }
  }
  return TESSERA_OK;
}

// Row-major strides of `dims`; saturates, so that what is too large is refused by check_strides.
void contiguous_strides(const Dims& dims, int64_t* stride) {
  int64_t step = 1;
  for (int i = dims.rank - 1; i >= 0; --i) {
    stride[i] = step;
    if (__builtin_mul_overflow(step, std::max<int64_t>(dims.extent[i], 1), &step)) step = INT64_MAX;
  }
}

}  // namespace

int resolve_operand(tessera_status* status, const char* name, const tessera_desc& desc, int32_t dtype, const Dims& dims,
                    bool written, Operand* operand) {
  const int32_t bytes = dtype_bytes(dtype);
  if (const int code = check_align(status, name, desc.align, bytes, &operand->align)) return code;
  int64_t stride[4];
  std::copy(desc.stride, desc.stride + 4, stride);
  if (std::all_of(stride, stride + 4, [](int64_t s) { return s == 0; })) {
    contiguous_strides(dims, stride);
    if (dims.rank == 3) stride[3] = 0;
  }
  const int last = dims.rank - 1;
  if (dims.extent[last] > 1 && stride[last] != 1) {
    return fail(status, TESSERA_INVALID_ARGUMENT, "%s.stride[%d] is %" PRId64 "; expected 1, the head dim contiguous",
                name, last, stride[last]);
  }
  if (dims.rank == 3 && stride[3] != 0) {
    return fail(status, TESSERA_INVALID_ARGUMENT,
                "%s.stride[3] is %" PRId64 "; expected 0, packed operands have three dims", name, stride[3]);
  }
  if (const int code = check_strides(status, name, dims, bytes, stride)) return code;
  const bool empty = std::any_of(dims.extent, dims.extent + dims.rank, [](int64_t e) { return e == 0; });
  if (written && !empty) {
    if (const int code = check_disjoint(status, name, dims, stride, false)) return code;
  }
  operand->dtype = dtype;
  operand->batch_stride = dims.rank == 4 ? stride[0] : 0;
  operand->row_stride = stride[dims.rank - 3];
  operand->head_stride = stride[dims.rank - 2];
  return TESSERA_OK;
}

Dims query_dims(const Problem& p, int32_t dim) {
  if (p.layout_q == TESSERA_PACKED) return {{p.total_q, p.heads_q, dim, 0}, 3};
  return {{p.batch, p.seqlen_q, p.heads_q, dim}, 4};
}

Dims key_dims(const Problem& p, int32_t dim) {
  if (p.layout_kv == TESSERA_PACKED) return {{p.total_k, p.heads_kv, dim, 0}, 3};
  if (p.layout_kv == TESSERA_PAGED) return {{p.num_pages, p.page_size, p.heads_kv, dim}, 4};
  return {{p.batch_kv, p.seqlen_k, p.heads_kv, dim}, 4};
}

Dims value_dims(const Problem& p) {
  if (p.v_order == 0) return key_dims(p, p.head_dim_v);
  if (p.layout_kv == TESSERA_PACKED) return {{p.heads_kv, p.head_dim_v, packed_first_slot(p.total_k, p.batch), 0}, 3};
  const bool paged = p.layout_kv == TESSERA_PAGED;
  return {{paged ? p.num_pages : p.batch_kv, p.heads_kv, p.head_dim_v, paged ? p.page_size : whole_groups(p.seqlen_k)},
          4};
}

int refuse_dtype(tessera_status* status, const char* name, int32_t dtype, const char* expected) {
  return fail(status, TESSERA_INVALID_ARGUMENT, "%s.dtype is %d (%s); expected %s", name, dtype, dtype_name(dtype),
              expected);
}

int check_scale_strides(tessera_status* status, const char* name, const Dims& dims, int64_t* stride) {
  if (const int code = check_strides(status, name, dims, 4, stride)) return code;
  return check_disjoint(status, name, dims, stride, true);
}

int check_written(tessera_status* status, const char* name, const Operand& operand, const Dims& dims) {
  const int64_t stride[4] = {operand.batch_stride, operand.row_stride, operand.head_stride, 1};
  return check_disjoint(status, name, dims, stride, false);
}

namespace {

struct Context {
  const tessera_problem& given;
  Problem* problem;
  tessera_status* status;
};

int check_input_dtypes(const tessera_problem& g, int32_t q, int32_t k, int32_t v, tessera_status* status) {
  if (q < TESSERA_F64 || q > TESSERA_E4M3) return refuse_dtype(status, "q", q, "f64, f32, f16, bf16 or e4m3");
  const bool cache = is_quantized(k) && (q == TESSERA_F32 || is_16bit(q));
  if (k != q && !cache) {
    return fail(status, TESSERA_INVALID_ARGUMENT,
                "k.dtype is %d (%s) and q.dtype is %d (%s); expected k and v to have q's dtype, or int8 or e4m3 under "
                "f32, f16 or bf16 q",
                k, dtype_name(k), q, dtype_name(q));
  }
  if (v != k) {
    return fail(status, TESSERA_INVALID_ARGUMENT, "v.dtype is %d (%s) and k.dtype is %d (%s); expected the same", v,
                dtype_name(v), k, dtype_name(k));
  }
  if (!is_quantized(v) && g.v_order != 0) {
    return fail(status, TESSERA_INVALID_ARGUMENT, "v_order is %d and v is %s; expected 0 unless v is e4m3 or int8",
                g.v_order, dtype_name(v));
  }
  if (g.v_order == 1 && g.layout_kv == TESSERA_PAGED && g.page_size % kKeyGroup != 0) {
    return fail(status, TESSERA_INVALID_ARGUMENT,
                "page_size is %d and v_order is 1; expected a multiple of 16, the rows that it orders", g.page_size);
  }
  if (!is_quantized(v) && (g.flags & TESSERA_FLAG_V_MEAN) != 0) {
    return fail(status, TESSERA_INVALID_ARGUMENT, "flags has V_MEAN and v is %s; expected it only for e4m3 or int8 v",
                dtype_name(v));
  }
  if (g.layout_kv == TESSERA_PAGED && g.v_mean_stride != 0) {
    return fail(status, TESSERA_INVALID_ARGUMENT, "v_mean_stride is %" PRId64 "; expected 0 (shared) for paged v",
                g.v_mean_stride);
  }
  return TESSERA_OK;
}

// o, d_o and gradients: q's dtype, or f32 for narrower inputs.
int check_output_dtype(tessera_status* status, const char* name, int32_t dtype, int32_t q) {
  const bool partial = dtype == TESSERA_F32 && q != TESSERA_F64;
  const bool from_e4m3 = q == TESSERA_E4M3 && is_16bit(dtype);
  if ((dtype == q && q != TESSERA_E4M3) || partial || from_e4m3) return TESSERA_OK;
  return refuse_dtype(status, name, dtype,
                      q == TESSERA_F64    ? "f64 as q"
                      : q == TESSERA_E4M3 ? "f16, bf16 or f32 for e4m3 q"
                                          : "q's dtype, or f32 for f16 and bf16 q");
}

int resolve_bias(const Context& context, const char* name, const tessera_desc& desc, int32_t dtype, bool written,
                 BiasOperand* bias) {
  const Problem& p = *context.problem;
  if (const int code = check_align(context.status, name, desc.align, dtype_bytes(dtype), &bias->align)) return code;
  const Dims dims{{p.batch, p.heads_q, p.seqlen_q, p.seqlen_k}, 4};
  std::copy(desc.stride, desc.stride + 4, bias->stride);
  if (const int code = check_strides(context.status, name, dims, dtype_bytes(dtype), bias->stride)) return code;
  if (bias->stride[3] > 1) {
    return fail(context.status, TESSERA_INVALID_ARGUMENT,
                "%s.stride[3] is %" PRId64 "; expected 1, or 0 to broadcast over keys", name, bias->stride[3]);
  }
  bias->dtype = dtype;
  return written ? check_disjoint(context.status, name, dims, bias->stride, true) : TESSERA_OK;
}

int resolve_biases(const Context& context) {
  Problem* p = context.problem;
  if (!p->has(TESSERA_FLAG_BIAS)) return TESSERA_OK;
  const tessera_problem& g = context.given;
  const int32_t q = p->q.dtype;
  const int32_t dtype = g.bias.dtype != 0 ? g.bias.dtype : q;
  const bool as_q = dtype == q && !is_quantized(q);
  if (!as_q && dtype != TESSERA_F32 && dtype != TESSERA_U8) {
    return refuse_dtype(context.status, "bias", dtype, "f32, q's dtype, or u8 for a mask");
  }
  if (const int code = resolve_bias(context, "bias", g.bias, dtype, false, &p->bias)) return code;
  if (!p->has(TESSERA_FLAG_D_BIAS)) return TESSERA_OK;
  if (dtype == TESSERA_U8) {
    return fail(context.status, TESSERA_INVALID_ARGUMENT,
                "flags has D_BIAS and bias is a u8 mask; expected a float bias");
  }
  const int32_t d_dtype = g.d_bias.dtype != 0 ? g.d_bias.dtype : dtype;
  if (d_dtype != dtype && d_dtype != TESSERA_F32)
    return refuse_dtype(context.status, "d_bias", d_dtype, "bias's dtype or f32");
  return resolve_bias(context, "d_bias", g.d_bias, d_dtype, true, &p->d_bias);
}

int resolve_scale(const Context& context, const char* name, const tessera_desc& desc, int32_t rows, int32_t dtype,
                  bool keys, ScaleOperand* scale) {
  const Problem& p = *context.problem;
  tessera_status* status = context.status;
  const bool used =
      rows != 0 || desc.dtype != 0 || std::any_of(desc.stride, desc.stride + 4, [](int64_t s) { return s != 0; });
  if (!is_quantized(dtype)) {
    if (!used) return TESSERA_OK;
    return fail(status, TESSERA_INVALID_ARGUMENT,
                "%s is described but its operand is %s; expected scales only for e4m3 and int8", name,
                dtype_name(dtype));
  }
  if (desc.dtype != 0 && desc.dtype != TESSERA_F32) return refuse_dtype(status, name, desc.dtype, "f32");
  const bool paged = keys && p.layout_kv == TESSERA_PAGED;
  if (rows != 0 && rows != 1 && rows != 128 && !(paged && rows == p.page_size)) {
    return fail(status, TESSERA_INVALID_ARGUMENT, "%s_rows is %d; expected 0 (all), 1, 128%s", name, rows,
                paged ? " or page_size" : "");
  }
  const int64_t length = paged ? p.page_size : keys ? p.seqlen_k : p.seqlen_q;
  const int64_t blocks = rows == 0 ? 1 : (length + rows - 1) / rows;
  const Dims dims{{paged ? p.num_pages : keys ? p.batch_kv : p.batch, blocks, keys ? p.heads_kv : p.heads_q, 1}, 3};
  int64_t stride[4];
  std::copy(desc.stride, desc.stride + 4, stride);
  if (const int code = check_strides(status, name, dims, 4, stride)) return code;
  scale->rows = rows;
  std::copy(stride, stride + 3, scale->stride);
  return TESSERA_OK;
}

int resolve_scales(const Context& context) {
  const tessera_problem& g = context.given;
  Problem* p = context.problem;
  int code = resolve_scale(context, "q_scale", g.q_scale, g.q_scale_rows, p->q.dtype, false, &p->q_scale);
  if (code == TESSERA_OK)
    code = resolve_scale(context, "k_scale", g.k_scale, g.k_scale_rows, p->k.dtype, true, &p->k_scale);
  if (code == TESSERA_OK)
    code = resolve_scale(context, "v_scale", g.v_scale, g.v_scale_rows, p->v.dtype, true, &p->v_scale);
  return code;
}

int resolve_gradients(const Context& context, int32_t float_dtype) {
  const tessera_problem& g = context.given;
  Problem* p = context.problem;
  const Dims q_dims = query_dims(*p, g.head_dim_qk), o_dims = query_dims(*p, g.head_dim_v);
  const Dims k_dims = key_dims(*p, g.head_dim_qk), v_dims = key_dims(*p, g.head_dim_v);
  const int32_t d_o = g.d_o.dtype != 0 ? g.d_o.dtype : p->o.dtype;
  if (const int code = check_output_dtype(context.status, "d_o", d_o, p->q.dtype)) return code;
  if (const int code = resolve_operand(context.status, "d_o", g.d_o, d_o, o_dims, false, &p->d_o)) return code;
  const struct {
    const char* name;
    const tessera_desc& desc;
    const Dims& dims;
    Operand* operand;
  } gradients[] = {{"dq", g.dq, q_dims, &p->dq}, {"dk", g.dk, k_dims, &p->dk}, {"dv", g.dv, v_dims, &p->dv}};
  for (const auto& gradient : gradients) {
    const int32_t dtype = gradient.desc.dtype != 0 ? gradient.desc.dtype : float_dtype;
    if (const int code = check_output_dtype(context.status, gradient.name, dtype, p->q.dtype)) return code;
    if (const int code =
            resolve_operand(context.status, gradient.name, gradient.desc, dtype, gradient.dims, true, gradient.operand))
      return code;
  }
  return TESSERA_OK;
}

}  // namespace

int resolve_operands(const tessera_problem& given, Problem* problem, tessera_status* status) {
  const Context context{given, problem, status};
  const int32_t q = given.q.dtype;
  const int32_t k = given.k.dtype != 0 ? given.k.dtype : q;
  const int32_t v = given.v.dtype != 0 ? given.v.dtype : k;
  int code = check_input_dtypes(given, q, k, v, status);
  if (code != TESSERA_OK) return code;
  const int32_t float_dtype = q == TESSERA_E4M3 ? TESSERA_BF16 : q;  // what outputs default to
  const int32_t o = given.o.dtype != 0 ? given.o.dtype : float_dtype;
  code = check_output_dtype(status, "o", o, q);

  const bool backward = given.pass == TESSERA_BACKWARD;
  const Dims q_dims = query_dims(*problem, given.head_dim_qk), o_dims = query_dims(*problem, given.head_dim_v);
  const Dims k_dims = key_dims(*problem, given.head_dim_qk), v_dims = value_dims(*problem);
  if (code == TESSERA_OK) code = resolve_operand(context.status, "q", given.q, q, q_dims, false, &problem->q);
  if (code == TESSERA_OK) code = resolve_operand(context.status, "k", given.k, k, k_dims, false, &problem->k);
  if (code == TESSERA_OK) code = resolve_operand(context.status, "v", given.v, v, v_dims, false, &problem->v);
  if (given.v_order == 1) std::swap(problem->v.row_stride, problem->v.head_stride);
  if (code == TESSERA_OK) code = resolve_operand(context.status, "o", given.o, o, o_dims, !backward, &problem->o);
  if (code == TESSERA_OK) code = resolve_biases(context);
  if (code == TESSERA_OK) code = resolve_scales(context);
  if (code == TESSERA_OK && backward) code = resolve_gradients(context, float_dtype);
  // lse is contiguous: its offsets fit too.
  int64_t lse = 0, rows = given.layout_q == TESSERA_PACKED ? given.total_q : given.seqlen_q;
  const bool overflow = __builtin_mul_overflow(rows, int64_t{given.heads_q} * 8, &lse) ||
                        (given.layout_q == TESSERA_DENSE && __builtin_mul_overflow(lse, given.batch, &lse)) ||
                        lse > kMaxBytes;
  if (code == TESSERA_OK && overflow) {
    return fail(status, TESSERA_INVALID_ARGUMENT,
                "batch %" PRId64 ", heads_q %d and seqlen_q %" PRId64 " give an lse past 2^61 bytes; expected less",
                given.batch, given.heads_q, rows);
  }
  return code;
}

}  // namespace tessera::core
