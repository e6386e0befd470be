// Problem: everything about a call but its pointers, checked and resolved. validate() is the only way to make one, so
// kernels never meet an absent default, a stride that was left zero, or a mask bound that overflows.
#pragma once

#include <cstdint>

#include "semantics.hpp"
#include "tessera/tessera.h"

namespace tessera::core {

// A q/k/v/o-like operand: element (b, i, h, c) is at b * batch_stride + i * row_stride + h * head_stride + c, in
// elements. Packed operands have batch_stride 0 and i counts rows of the whole array; paged ones use batch_stride for
// pages. v under v_order 1: element (b, h, c, slot) is at b * batch_stride + h * head_stride + c * row_stride + slot.
struct Operand {
  int32_t dtype = 0;  // 0: absent
  int32_t align = 16;
  int64_t batch_stride = 0, row_stride = 0, head_stride = 0;
};

// bias and d_bias: [batch, heads_q, seqlen_q, seqlen_k] with free strides; 0 broadcasts.
struct BiasOperand {
  int32_t dtype = 0, align = 16;
  int64_t stride[4] = {0, 0, 0, 0};
};

// Scales: element (batch or page, row block, head) by its strides; rows 0 means one block for all rows.
struct ScaleOperand {
  int32_t rows = 0;
  int64_t stride[3] = {0, 0, 0};
};

struct Problem {
  int32_t pass, device;
  int64_t batch, batch_kv, seqlen_q, seqlen_k, total_q, total_k;
  int64_t num_pages, max_pages, page_table_stride, alibi_stride, v_mean_stride;
  int64_t left, right;  // as given: -1 unbounded; make_band resolves them per sequence
  int32_t heads_q, heads_kv, group, head_dim_qk, head_dim_v;
  int32_t layout_q, layout_kv, page_size;
  bool top_left;
  double scale, softcap;  // scale is resolved
  uint64_t flags;
  Operand q, k, v, o, d_o, dq, dk, dv;
  BiasOperand bias, d_bias;
  ScaleOperand q_scale, k_scale, v_scale;
  int32_t v_order, num_splits, sm_margin, threads, isa;  // threads as given (0: all), isa cap as given (0: none)
  char kernel[64], device_name[32];

  TESSERA_HD bool has(uint64_t flag) const { return (flags & flag) != 0; }
  // Both head dims: either may be all that an int32 holds.
  int64_t head_dims() const { return int64_t{head_dim_qk} + head_dim_v; }
  TESSERA_HD bool banded() const { return left >= 0 || right >= 0; }
  TESSERA_HD Band band(int64_t used_q, int64_t used_k) const {
    return make_band(used_q, used_k, left, right, top_left);
  }
};

// Bytes of one element, 0 for an unknown dtype; its name in problem text ("bf16"), "?" for an unknown one.
int32_t dtype_bytes(int32_t dtype);
const char* dtype_name(int32_t dtype);
// The dtype of lse for inputs of `dtype`: F64 for F64, else F32.
inline int32_t lse_dtype(int32_t dtype) { return dtype == TESSERA_F64 ? TESSERA_F64 : TESSERA_F32; }

// What tessera_problem_init gives: forward, CPU, f32 q, everything else as q or absent.
tessera_problem default_problem();

// Checks every rule on numbers once, in the caller's words, and resolves defaults. On failure *problem is untouched.
int validate(const tessera_problem& given, Problem* problem, tessera_status* status);

// Useful FLOPs (4 * head dims * kept pairs; backward 2.5x) and the least bytes of device memory traffic, for lengths at
// their maxima (packed: spread evenly over the batch).
struct Work {
  double flops, bytes;
};
// (row, key) pairs that the band keeps, in closed form.
double kept_pairs(const Band& band);
Work count_work(const Problem& problem);

}  // namespace tessera::core
