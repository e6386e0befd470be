// The shared host side of the CUDA forward kernels.
#include "forward_host.hpp"

#include <span>

#include "tile/scheduler.cuh"

namespace tessera::cuda {

using core::Operand;
using core::Problem;
using core::Refusal;

namespace {

struct StrideRule {
  const char* argument;
  int64_t stride, count;
};

Refusal refuse_rows(std::span<const StrideRule> rules, int64_t unit) {
  for (const StrideRule& rule : rules) {
    if (rule.count > 1 && rule.stride % unit != 0) {
      return {"needs rows that start at multiples of 16 bytes, so strides in multiples of 16 bytes", rule.argument,
              rule.stride};
    }
  }
  return {};
}

int64_t query_rows(const Problem& p) { return p.layout_q == TESSERA_PACKED ? p.total_q : p.batch * p.seqlen_q; }
void fill_pointers(const tessera_tensors& t, const Problem& p, ForwardParams* out) {
  out->q = t.q;
  out->k = t.k;
  out->v = t.v;
  out->o = t.o;
  out->lse = p.has(TESSERA_FLAG_LSE) ? static_cast<float*>(t.lse) : nullptr;
  out->cu_seqlens_q = p.layout_q == TESSERA_PACKED ? t.cu_seqlens_q : nullptr;
  out->cu_seqlens_k = p.layout_kv == TESSERA_PACKED ? t.cu_seqlens_k : nullptr;
  out->seqused_q = p.has(TESSERA_FLAG_SEQUSED_Q) ? t.seqused_q : nullptr;
  out->seqused_k = p.has(TESSERA_FLAG_SEQUSED_K) ? t.seqused_k : nullptr;
  out->page_table = t.page_table;
  out->leftpad = p.has(TESSERA_FLAG_LEFTPAD) ? t.leftpad : nullptr;
  out->batch_idx = p.has(TESSERA_FLAG_BATCH_IDX) ? t.batch_idx : nullptr;
  out->cu_seqlens_new = t.append != nullptr ? t.append->cu_seqlens_new : nullptr;
  out->seqlen_new = t.append != nullptr ? t.append->seqlen_new : 0;
  out->alibi_slopes = p.has(TESSERA_FLAG_ALIBI) ? t.alibi_slopes : nullptr;
  out->sinks = p.has(TESSERA_FLAG_SINKS) ? t.sinks : nullptr;
  out->bias = p.has(TESSERA_FLAG_BIAS) ? t.bias : nullptr;
}

}  // namespace

bool is_plain(const Problem& p) {
  return p.softcap == 0 && !p.has(TESSERA_FLAG_BIAS) && !p.has(TESSERA_FLAG_ALIBI) && p.scale > 1e-30 && p.scale < 1e30;
}

Strides strides(const Operand& operand, int64_t batches, int64_t rows, int64_t heads) {
  return {batches > 1 ? operand.batch_stride : 0, rows > 1 ? operand.row_stride : 0,
          heads > 1 ? operand.head_stride : 0};
}

Extents extents(const Problem& p) {
  const bool packed_q = p.layout_q == TESSERA_PACKED, packed_k = p.layout_kv == TESSERA_PACKED,
             paged = p.layout_kv == TESSERA_PAGED;
  return {packed_q ? 1 : p.batch, packed_q ? p.total_q : p.seqlen_q,
          paged      ? p.num_pages
          : packed_k ? 1
                     : p.batch_kv,
          paged      ? p.page_size
          : packed_k ? p.total_k
                     : p.seqlen_k};
}

int64_t value_rows(const Problem& p) { return p.v_order == 1 ? p.head_dim_v : extents(p).rows_k; }

Refusal refuse_operands(const Problem& p, int32_t pass, bool bytes) {
  const bool quantised = bytes && (p.k.dtype == TESSERA_INT8 || p.k.dtype == TESSERA_E4M3);
  if (p.pass != pass) return {pass == TESSERA_FORWARD ? "forward pass only" : "backward pass only"};
  if (p.q.dtype != TESSERA_F16 && p.q.dtype != TESSERA_BF16) return {"takes f16 and bf16", "q.dtype", p.q.dtype};
  if (p.k.dtype != p.q.dtype && !quantised)
    return {bytes ? "takes k of q's dtype, int8 or e4m3" : "takes k of q's dtype", "k.dtype", p.k.dtype};
  if (p.v.dtype != p.k.dtype) return {bytes ? "takes v of k's dtype" : "takes v of q's dtype", "v.dtype", p.v.dtype};
  if (p.o.dtype != p.q.dtype && p.o.dtype != TESSERA_F32) return {"writes o in q's dtype or f32", "o.dtype", p.o.dtype};
  if (p.head_dim_qk > 256 || p.head_dim_qk % 8 != 0)
    return {"takes head_dim_qk 8 to 256 in multiples of 8", "head_dim_qk", p.head_dim_qk};
  if (p.head_dim_v > 256 || p.head_dim_v % 8 != 0)
    return {"takes head_dim_v 8 to 256 in multiples of 8", "head_dim_v", p.head_dim_v};
  if (p.v_order != 0) return {"reads v in the order of its rows only", "v_order", p.v_order};
  if (p.has(TESSERA_FLAG_V_MEAN)) return {"takes no v_mean"};
  return {};
}

Refusal refuse_layout(const Problem& p) {
  const auto [batches_q, rows_q, batches_k, rows_k] = extents(p);
  const struct {
    const char *align, *batch, *row, *head;
    const Operand& operand;
    bool of_keys, forward;
  } rules[] = {
      {"q.align", "q.batch stride", "q.row stride", "q.head stride", p.q, false, true},
      {"k.align", "k.batch stride", "k.row stride", "k.head stride", p.k, true, true},
      {"v.align", "v.batch stride", "v.row stride", "v.head stride", p.v, true, true},
      {"o.align", "o.batch stride", "o.row stride", "o.head stride", p.o, false, true},
      {"d_o.align", "d_o.batch stride", "d_o.row stride", "d_o.head stride", p.d_o, false, false},
      {"dq.align", "dq.batch stride", "dq.row stride", "dq.head stride", p.dq, false, false},
      {"dk.align", "dk.batch stride", "dk.row stride", "dk.head stride", p.dk, true, false},
      {"dv.align", "dv.batch stride", "dv.row stride", "dv.head stride", p.dv, true, false},
  };
  for (const auto& rule : rules) {
    if (!rule.forward && p.pass == TESSERA_FORWARD) continue;
    const Operand& operand = rule.operand;
    if (operand.align % 16 != 0) return {"needs operands at multiples of 16 bytes", rule.align, operand.align};
    const StrideRule strides[] = {
        {rule.batch, operand.batch_stride, rule.of_keys ? batches_k : batches_q},
        {rule.row, operand.row_stride,
         &operand == &p.v ? value_rows(p)
         : rule.of_keys   ? rows_k
                          : rows_q},
        {rule.head, operand.head_stride, rule.of_keys ? p.heads_kv : p.heads_q},
    };
    if (const Refusal refusal = refuse_rows(strides, 16 / core::dtype_bytes(operand.dtype))) return refusal;
  }
  return {};
}

Refusal refuse_sizes(const Problem& p, int32_t tile_m) {
  if (p.seqlen_q > kMaxInt) return {"takes at most 2147483647 queries a sequence", "seqlen_q", p.seqlen_q};
  if (p.seqlen_k > kMaxInt) return {"takes at most 2147483647 keys a sequence", "seqlen_k", p.seqlen_k};
  if (p.batch_kv > kMaxInt) return {"takes at most 2147483647 cache rows", "batch_kv", p.batch_kv};
  if (p.num_pages > kMaxInt) return {"takes at most 2147483647 pages", "num_pages", p.num_pages};
  if (p.max_pages > kMaxInt || (p.page_size > 0 && p.max_pages > kMaxInt / p.page_size)) {
    return {"takes at most 2147483647 keys in a row of the page table", "max_pages", p.max_pages};
  }
  if (p.batch > kMaxInt / p.heads_q) return {"takes at most 2147483647 pairs of batch and head", "batch", p.batch};
  const int64_t head_batches = p.batch * p.heads_q, rows = (p.seqlen_q + 7) / 8;
  if (p.batch > 0 && (query_blocks(p, tile_m) * splits(p) > kMaxInt / head_batches || rows > kMaxInt / head_batches)) {
    return {"takes at most 2147483647 blocks of queries", "batch", p.batch};
  }
  return {};
}

int64_t partial_o_bytes(const Problem& p, int64_t n) {
  return align_256(n * query_rows(p) * p.heads_q * p.head_dim_v * 4);
}
int64_t partial_lse_bytes(const Problem& p, int64_t n) { return align_256(n * query_rows(p) * p.heads_q * 4); }

int32_t heads_together(const Problem& p, int64_t l2_bytes, int64_t heads, int64_t unit, int64_t blocks,
                       int64_t wave_blocks) {
  if (heads == 0 || blocks == 0) return 1;
  const int64_t bytes = 2 * p.seqlen_k * p.head_dims() / unit + 1;
  int64_t fitting = l2_bytes / 2 / bytes;
  if (!p.banded()) {
    const int64_t wave = wave_blocks / blocks;
    fitting = wave < fitting ? wave : fitting;
  }
  const int64_t whole = fitting / unit * unit;
  return static_cast<int32_t>(clamp_to(whole, unit < heads ? unit : heads, heads));
}

ForwardParams make_params(const Problem& p, const tessera_tensors& tensors) {
  ForwardParams out{};
  fill_pointers(tensors, p, &out);
  const auto [batches_q, rows_q, batches_k, rows_k] = extents(p);
  out.q_stride = strides(p.q, batches_q, rows_q, p.heads_q);
  out.o_stride = strides(p.o, batches_q, rows_q, p.heads_q);
  out.k_stride = strides(p.k, batches_k, rows_k, p.heads_kv);
  out.v_stride = strides(p.v, batches_k, value_rows(p), p.heads_kv);
  for (int i = 0; i < 4; ++i) out.bias_stride[i] = p.bias.stride[i];
  out.page_table_stride = p.page_table_stride;
  out.alibi_stride = p.alibi_stride;
  out.total_q = p.total_q;
  out.total_k = p.total_k;
  out.left = p.left;
  out.right = p.right;
  out.seqlen_q = static_cast<int32_t>(p.seqlen_q);
  out.seqlen_k = static_cast<int32_t>(p.seqlen_k);
  out.batch_kv = static_cast<int32_t>(p.batch_kv);
  out.heads_q = p.heads_q;
  out.group = p.group;
  out.head_dim_qk = p.head_dim_qk;
  out.head_dim_v = p.head_dim_v;
  out.num_pages = static_cast<int32_t>(p.num_pages);
  out.max_pages = static_cast<int32_t>(p.max_pages);
  out.page_size = p.layout_kv == TESSERA_PAGED ? p.page_size : 0;
  out.bias_dtype = p.has(TESSERA_FLAG_BIAS) ? p.bias.dtype : 0;
  out.num_splits = 1;
  out.scale = static_cast<float>(p.scale);
  out.scale_log2 = static_cast<float>(p.scale * core::kLog2E);
  out.softcap = static_cast<float>(p.softcap);
  out.top_left = p.top_left;
  out.o_is_float = p.o.dtype == TESSERA_F32;
  return out;
}

ForwardParams make_partial(const Problem& p, const ForwardParams& params, int32_t n, std::byte* workspace) {
  ForwardParams out = params;
  const bool packed_q = p.layout_q == TESSERA_PACKED;
  out.o = workspace;
  out.lse = reinterpret_cast<float*>(workspace + partial_o_bytes(p, n));
  out.o_is_float = true;
  out.sinks = nullptr;
  out.num_splits = n;
  const int64_t row = int64_t{p.heads_q} * p.head_dim_v;
  out.o_stride = {packed_q ? 0 : p.seqlen_q * row, row, p.head_dim_v};
  out.o_split_stride = query_rows(p) * row;
  out.lse_split_stride = query_rows(p) * p.heads_q;
  return out;
}

}  // namespace tessera::cuda
