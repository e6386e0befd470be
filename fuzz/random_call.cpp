#include "random_call.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>

namespace tessera::fuzz {

namespace {

constexpr size_t kLargest = size_t{1} << 20;  // bytes an operand may have

size_t element_size(int32_t dtype) {
  switch (dtype) {
    case TESSERA_F64:
      return 8;
    case TESSERA_F32:
      return 4;
    case TESSERA_F16:
    case TESSERA_BF16:
      return 2;
    default:
      return 1;
  }
}

// Sometimes contiguous by default, sometimes any order of the dimensions with gaps, rarely nonsense.
void make_strides(Bytes& bytes, std::initializer_list<int64_t> extents, tessera_desc* desc) {
  const int kind = bytes.byte() % 8;
  if (kind < 4) return;
  const int dims = static_cast<int>(extents.size());
  if (kind == 7) {
    for (int n = 0; n < dims; ++n) desc->stride[n] = bytes.number(-2, 300);
    return;
  }
  int order[4] = {0, 1, 2, 3};
  for (int n = dims - 2; n > 0; --n) std::swap(order[n], order[bytes.byte() % (n + 1)]);
  const int64_t* extent = extents.begin();
  int64_t stride = extent[dims - 1] + bytes.number(0, 3);
  desc->stride[dims - 1] = 1;
  for (int n = dims - 2; n >= 0; --n) {
    desc->stride[order[n]] = stride;
    stride = stride * std::max<int64_t>(extent[order[n]], 1) + bytes.number(0, 3);
  }
}

void make_operand_descs(Bytes& bytes, tessera_problem* p) {
  const int64_t kv_rows = p->batch_kv > 0 ? p->batch_kv : p->batch;
  const auto query = [&](tessera_desc* desc, int64_t dim) {
    if (p->layout_q == TESSERA_PACKED) {
      make_strides(bytes, {p->total_q, p->heads_q, dim}, desc);
      desc->stride[3] = 0;
    } else {
      make_strides(bytes, {p->batch, p->seqlen_q, p->heads_q, dim}, desc);
    }
  };
  const auto key = [&](tessera_desc* desc, int64_t dim) {
    if (p->layout_kv == TESSERA_PACKED) {
      make_strides(bytes, {p->total_k, p->heads_kv, dim}, desc);
      desc->stride[3] = 0;
    } else if (p->layout_kv == TESSERA_PAGED) {
      make_strides(bytes, {p->num_pages, p->page_size, p->heads_kv, dim}, desc);
    } else {
      make_strides(bytes, {kv_rows, p->seqlen_k, p->heads_kv, dim}, desc);
    }
  };
  query(&p->q, p->head_dim_qk);
  key(&p->k, p->head_dim_qk);
  key(&p->v, p->head_dim_v);
  query(&p->o, p->head_dim_v);
  if (p->pass == TESSERA_BACKWARD) {
    query(&p->d_o, p->head_dim_v);
    query(&p->dq, p->head_dim_qk);
    key(&p->dk, p->head_dim_qk);
    key(&p->dv, p->head_dim_v);
  }
  if ((p->flags & TESSERA_FLAG_BIAS) != 0) {
    make_strides(bytes, {p->batch, p->heads_q, p->seqlen_q, p->seqlen_k}, &p->bias);
    for (int n = 0; n < 3; ++n) p->bias.stride[n] = bytes.once_in(2) ? 0 : p->bias.stride[n];
  }
}

void make_dtypes(Bytes& bytes, tessera_problem* p) {
  static constexpr int32_t kFloats[] = {TESSERA_F32, TESSERA_F16, TESSERA_BF16, TESSERA_F64};
  const int32_t dtype = kFloats[bytes.byte() % 4];
  const auto element_align = static_cast<int32_t>(element_size(dtype));
  for (tessera_desc* desc : {&p->q, &p->k, &p->v, &p->o, &p->d_o, &p->dq, &p->dk, &p->dv}) {
    desc->dtype = dtype;
    desc->align = bytes.once_in(2) ? 0 : element_align << bytes.byte() % 4;
  }
  if (bytes.once_in(3)) p->o.dtype = TESSERA_F32;
  if (bytes.once_in(32)) p->k.dtype = static_cast<int32_t>(bytes.number(0, 8));
  if (bytes.once_in(6)) p->k.dtype = p->v.dtype = TESSERA_INT8;
  static constexpr int32_t kBias[] = {TESSERA_F32, TESSERA_U8};
  p->bias.dtype = bytes.once_in(3) ? dtype : kBias[bytes.byte() % 2];
  p->bias.align = static_cast<int32_t>(element_size(p->bias.dtype));
}

void make_layout(Bytes& bytes, tessera_problem* p) {
  p->layout_q = bytes.once_in(3) ? TESSERA_PACKED : TESSERA_DENSE;
  p->layout_kv = bytes.once_in(3) ? static_cast<int32_t>(bytes.number(0, 2)) : p->layout_q;
  if (p->layout_q == TESSERA_PACKED) p->total_q = bytes.number(0, 40);
  if (p->layout_kv == TESSERA_PACKED) p->total_k = bytes.number(0, 90);
  if (p->layout_kv == TESSERA_PAGED) {
    p->page_size = static_cast<int32_t>(bytes.number(1, 20));
    p->num_pages = bytes.number(0, 12);
    p->max_pages = bytes.number(0, 9);
    if (bytes.once_in(3)) p->page_table_stride = p->max_pages + bytes.number(-1, 3);
    if (!bytes.once_in(8)) p->flags |= TESSERA_FLAG_SEQUSED_K;
    if (!bytes.once_in(8)) p->seqlen_k = p->page_size * p->max_pages;
  }
}

}  // namespace

Block::Block(size_t bytes, size_t align) : bytes_(bytes) {
  void* storage = nullptr;
  require(posix_memalign(&storage, std::max<size_t>(2 * align, 16), bytes + align) == 0, "memory");
  storage_.reset(static_cast<std::byte*>(storage));
  data_ = storage_.get() + align;
}

void make_problem(Bytes& bytes, tessera_problem* p) {
  static constexpr int64_t kOptional = TESSERA_FLAG_ALIBI | TESSERA_FLAG_SINKS | TESSERA_FLAG_BIAS |
                                       TESSERA_FLAG_SEQUSED_Q | TESSERA_FLAG_SEQUSED_K | TESSERA_FLAG_LEFTPAD |
                                       TESSERA_FLAG_BATCH_IDX | TESSERA_FLAG_D_LSE;
  tessera_problem_init(p, sizeof *p);
  p->pass = bytes.once_in(16) ? TESSERA_BACKWARD : TESSERA_FORWARD;
  // Mostly small, so that many calls are tried; sometimes past the tiles of every kernel.
  const bool large = bytes.once_in(8);
  p->batch = bytes.number(0, large ? 1 : 3);
  p->seqlen_q = bytes.number(0, large ? 70 : 12);
  p->seqlen_k = bytes.number(0, large ? 140 : 40);
  p->heads_kv = static_cast<int32_t>(bytes.number(1, 3));
  p->heads_q = p->heads_kv * static_cast<int32_t>(bytes.number(1, 3)) + (bytes.once_in(32) ? 1 : 0);
  p->head_dim_qk = static_cast<int32_t>(bytes.number(1, large ? 80 : 24));
  p->head_dim_v = bytes.once_in(2) ? p->head_dim_qk : static_cast<int32_t>(bytes.number(1, large ? 80 : 24));
  p->left = bytes.once_in(2) ? -1 : bytes.number(-1, 60);
  p->right = bytes.once_in(2) ? -1 : bytes.number(-1, 20);
  p->mask_alignment = bytes.once_in(4) ? TESSERA_TOP_LEFT : TESSERA_BOTTOM_RIGHT;
  if (bytes.once_in(2)) p->scale = static_cast<double>(bytes.number(-20, 20)) / 16;
  if (bytes.once_in(4)) p->softcap = static_cast<double>(bytes.number(0, 40)) / 4;
  if (bytes.once_in(2)) p->flags |= TESSERA_FLAG_LSE;
  if (bytes.once_in(2)) p->flags |= static_cast<uint64_t>(bytes.word()) & kOptional;
  if (bytes.once_in(16)) p->flags |= static_cast<uint64_t>(bytes.word());
  make_layout(bytes, p);
  if ((p->flags & TESSERA_FLAG_BATCH_IDX) != 0) p->batch_kv = bytes.number(0, 4);
  if (bytes.once_in(4)) p->alibi_stride = bytes.number(0, 12);
  p->num_splits = bytes.once_in(3) ? static_cast<int32_t>(bytes.number(0, 5)) : 0;
  p->threads = static_cast<int32_t>(bytes.number(0, 2));
  p->isa = bytes.once_in(2) ? static_cast<int32_t>(bytes.number(0, 5)) : 0;
  make_dtypes(bytes, p);
  make_operand_descs(bytes, p);
}

namespace {

// Elements that sizes and strides reach. `strides` all zero: contiguous where the operand says so.
size_t reach(const int64_t* extent, int dims, const tessera_desc& desc, bool zero_is_contiguous) {
  int64_t contiguous = 1, last = 0;
  const bool all_zero = std::all_of(desc.stride, desc.stride + 4, [](int64_t s) { return s == 0; });
  for (int n = dims - 1; n >= 0; --n) {
    if (extent[n] == 0) return 0;
    const int64_t stride = all_zero && zero_is_contiguous ? contiguous : n == dims - 1 ? 1 : desc.stride[n];
    if (extent[n] > 1) last += (extent[n] - 1) * stride;
    contiguous *= extent[n];
  }
  return static_cast<size_t>(last + 1);
}

class Builder {
 public:
  Builder(Bytes& bytes, Call* call) : bytes_(bytes), call_(*call), p_(call->problem), noise_(bytes.word()) {}

  void* operand(const tessera_desc& desc, std::initializer_list<int64_t> extents, bool output,
                bool zero_contiguous = true) {
    const size_t elements = reach(extents.begin(), static_cast<int>(extents.size()), desc, zero_contiguous);
    const int32_t dtype = desc.dtype == 0 ? p_.q.dtype : desc.dtype;  // 0 follows q
    std::byte* data = block(elements * element_size(dtype), desc.align == 0 ? 16 : desc.align, output);
    if (!output && data != nullptr) fill(dtype, data, elements);
    return data;
  }
  void* query(const tessera_desc& desc, int64_t dim, bool output) {
    if (p_.layout_q == TESSERA_PACKED) return operand(desc, {p_.total_q, p_.heads_q, dim}, output);
    return operand(desc, {p_.batch, p_.seqlen_q, p_.heads_q, dim}, output);
  }
  void* key(const tessera_desc& desc, int64_t dim, bool output) {
    if (p_.layout_kv == TESSERA_PACKED) return operand(desc, {p_.total_k, p_.heads_kv, dim}, output);
    if (p_.layout_kv == TESSERA_PAGED) return operand(desc, {p_.num_pages, p_.page_size, p_.heads_kv, dim}, output);
    const int64_t rows = p_.batch_kv > 0 ? p_.batch_kv : p_.batch;
    return operand(desc, {rows, p_.seqlen_k, p_.heads_kv, dim}, output);
  }
  void* rows(bool output) {
    const int64_t count = p_.heads_q * (p_.layout_q == TESSERA_PACKED ? p_.total_q : p_.batch * p_.seqlen_q);
    const tessera_desc desc = {p_.q.dtype == TESSERA_F64 ? TESSERA_F64 : TESSERA_F32, 16, {0, 0, 0, 0}};
    return operand(desc, {count}, output);
  }
  const float* floats(int64_t count) {
    return static_cast<const float*>(operand({TESSERA_F32, 16, {0, 0, 0, 0}}, {count}, false));
  }
  // int32 metadata; `next` makes each element.
  template <class Next>
  const int32_t* integers(int64_t count, Next next) {
    auto* data = reinterpret_cast<int32_t*>(block(static_cast<size_t>(count) * 4, 16, false));
    for (int64_t n = 0; data != nullptr && n < count; ++n) data[n] = static_cast<int32_t>(next(n));
    return data;
  }
  const int32_t* cumulative(int64_t total) {
    int64_t sum = 0;
    return integers(p_.batch + 1, [&](int64_t n) {
      if (n > 0) sum = std::min(sum + bytes_.number(0, 40), bytes_.once_in(32) ? total + 1 : total);
      return bytes_.once_in(64) ? bytes_.number(-2, 200) : sum;
    });
  }
  // The call writes what was made as an input.
  void written(const void* data) {
    for (size_t n = 0; data != nullptr && n < call_.blocks.size(); ++n)
      if (call_.blocks[n].data() == data) call_.outputs.push_back(n);
  }
  const int32_t* lengths(int64_t most) {
    return integers(p_.batch, [&](int64_t) { return bytes_.number(bytes_.once_in(32) ? -1 : 0, most); });
  }

 private:
  std::byte* block(size_t size, size_t align, bool output) {
    if (size > kLargest || call_.too_large) {
      call_.too_large = true;
      return nullptr;
    }
    if (output) call_.outputs.push_back(call_.blocks.size());
    call_.blocks.emplace_back(size, align);
    std::memset(call_.blocks.back().data(), 0x7f, size);
    return call_.blocks.back().data();
  }
  // Values in [-2, 2) that every type holds exactly.
  void fill(int32_t dtype, std::byte* data, size_t elements) {
    const size_t size = element_size(dtype);
    for (size_t n = 0; n < elements; ++n) {
      noise_ = noise_ * 6364136223846793005u + 1442695040888963407u;
      const float value = static_cast<float>(static_cast<int64_t>(noise_ >> 59) - 16) / 8;
      const double wide = value;
      uint32_t bits;
      std::memcpy(&bits, &value, 4);
      const auto upper = static_cast<uint16_t>(bits >> 16);
      const auto half = static_cast<uint16_t>(
          value == 0 ? 0 : (bits >> 16 & 0x8000) | ((bits >> 23 & 255) - 112) << 10 | (bits >> 13 & 1023));
      const auto low = static_cast<uint8_t>(noise_ >> 59 & 1);
      const void* from = dtype == TESSERA_F64    ? static_cast<const void*>(&wide)
                         : dtype == TESSERA_F32  ? static_cast<const void*>(&value)
                         : dtype == TESSERA_BF16 ? static_cast<const void*>(&upper)
                         : dtype == TESSERA_F16  ? static_cast<const void*>(&half)
                                                 : static_cast<const void*>(&low);
      std::memcpy(data + n * size, from, size);
    }
  }

  Bytes& bytes_;
  Call& call_;
  const tessera_problem& p_;
  uint64_t noise_;
};

void make_rotary(Bytes& bytes, Builder& build, Call* call) {
  const tessera_problem& p = call->problem;
  tessera_append_args& a = call->append;
  const int64_t half = bytes.once_in(3) ? 0 : bytes.number(0, p.head_dim_qk / 2);
  a.rotary_dim = static_cast<int32_t>(2 * half + (bytes.once_in(32) ? 1 : 0));
  a.rotary_interleaved = static_cast<int32_t>(bytes.once_in(32) ? 2 : bytes.number(0, 1));
  a.rotary_seqlen = bytes.number(0, 80);
  const tessera_desc table = {p.q.dtype, 16, {0, 0, 0, 0}};
  a.rotary_cos = build.operand(table, {a.rotary_seqlen, half}, false);
  a.rotary_sin = build.operand(table, {a.rotary_seqlen, half}, false);
  if (half == 0 || bytes.once_in(8)) return;
  if (bytes.once_in(4)) {
    a.q_out = p.q, a.q_rotated = const_cast<void*>(call->tensors.q);
    build.written(a.q_rotated);
    return;
  }
  if (p.layout_q == TESSERA_DENSE) make_strides(bytes, {p.batch, p.seqlen_q, p.heads_q, p.head_dim_qk}, &a.q_out);
  a.q_rotated = build.query(a.q_out, p.head_dim_qk, true);
}

// New rows for the cache, which the call then writes.
void make_append(Bytes& bytes, Builder& build, Call* call) {
  const tessera_problem& p = call->problem;
  tessera_append_args& a = call->append;
  a = {};
  a.size = sizeof a;
  const bool packed = bytes.once_in(3);
  a.seqlen_new = bytes.number(0, packed ? 12 : 4);
  if (packed) a.total_new = bytes.number(0, 12), a.cu_seqlens_new = build.cumulative(a.total_new);
  static constexpr int32_t kTypes[] = {0, TESSERA_F32, TESSERA_F16, TESSERA_BF16};
  const auto rows = [&](tessera_desc* desc, int64_t dim) {
    desc->dtype = bytes.once_in(2) ? 0 : kTypes[bytes.byte() % 4];
    if (packed) {
      make_strides(bytes, {a.total_new, p.heads_kv, dim}, desc);
      desc->stride[3] = 0;
      return build.operand(*desc, {a.total_new, p.heads_kv, dim}, false);
    }
    make_strides(bytes, {p.batch, a.seqlen_new, p.heads_kv, dim}, desc);
    return build.operand(*desc, {p.batch, a.seqlen_new, p.heads_kv, dim}, false);
  };
  a.k_new_data = rows(&a.k_new, p.head_dim_qk);
  a.v_new_data = rows(&a.v_new, p.head_dim_v);
  make_rotary(bytes, build, call);
  a.k_cache = const_cast<void*>(call->tensors.k), a.v_cache = const_cast<void*>(call->tensors.v);
  build.written(a.k_cache), build.written(a.v_cache);
  call->tensors.append = &a;
}

}  // namespace

void make_tensors(Bytes& bytes, Call* call) {
  const tessera_problem& p = call->problem;
  tessera_tensors& t = call->tensors;
  const auto has = [&](uint64_t flag) { return (p.flags & flag) != 0; };
  call->blocks.reserve(48);
  Builder build(bytes, call);
  t = {};
  t.size = sizeof t;
  t.q = build.query(p.q, p.head_dim_qk, false);
  t.k = build.key(p.k, p.head_dim_qk, false);
  t.v = build.key(p.v, p.head_dim_v, false);
  const bool forward = p.pass == TESSERA_FORWARD;
  t.o = build.query(p.o, p.head_dim_v, forward);
  if (has(TESSERA_FLAG_LSE) || !forward) t.lse = build.rows(forward);
  if (!forward) {
    t.d_o = build.query(p.d_o, p.head_dim_v, false);
    t.dq = build.query(p.dq, p.head_dim_qk, true);
    t.dk = build.key(p.dk, p.head_dim_qk, true);
    t.dv = build.key(p.dv, p.head_dim_v, true);
    if (has(TESSERA_FLAG_D_LSE)) t.d_lse = build.rows(false);
  }
  if (has(TESSERA_FLAG_BIAS))
    t.bias = build.operand(p.bias, {p.batch, p.heads_q, p.seqlen_q, p.seqlen_k}, false, false);
  if (has(TESSERA_FLAG_SINKS)) t.sinks = build.floats(p.heads_q);
  if (has(TESSERA_FLAG_ALIBI)) {
    const int64_t further = p.batch > 0 ? (p.batch - 1) * p.alibi_stride : 0;
    t.alibi_slopes = build.floats(further + p.heads_q);
  }
  if (p.layout_q == TESSERA_PACKED) t.cu_seqlens_q = build.cumulative(p.total_q);
  if (p.layout_kv == TESSERA_PACKED) t.cu_seqlens_k = build.cumulative(p.total_k);
  if (has(TESSERA_FLAG_SEQUSED_Q)) t.seqused_q = build.lengths(p.seqlen_q);
  if (has(TESSERA_FLAG_SEQUSED_K)) t.seqused_k = build.lengths(p.seqlen_k);
  if (has(TESSERA_FLAG_LEFTPAD)) t.leftpad = build.lengths(std::min<int64_t>(p.seqlen_k, 9));
  if (has(TESSERA_FLAG_BATCH_IDX)) t.batch_idx = build.lengths(std::max<int64_t>(p.batch_kv - 1, 0));
  if (p.layout_kv == TESSERA_PAGED && p.batch > 0) {
    const int64_t stride = p.page_table_stride > 0 ? p.page_table_stride : p.max_pages;
    t.page_table = build.integers((p.batch - 1) * stride + p.max_pages, [&](int64_t) {
      return bytes.once_in(64) ? bytes.number(-1, 40) : bytes.number(0, std::max<int64_t>(p.num_pages - 1, 0));
    });
  }
  const bool cache = forward && p.layout_kv != TESSERA_PACKED && has(TESSERA_FLAG_SEQUSED_K);
  if (cache && bytes.once_in(2)) make_append(bytes, build, call);
}

}  // namespace tessera::fuzz
