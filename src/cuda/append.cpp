// tessera_append and runs that append, on operands of a CUDA device: what the kernel does not take, and its parameters.
// src/append_rules.cpp has checked the arguments.
#include "append.hpp"

#include <algorithm>

#include "device.hpp"
#include "forward_host.hpp"
#include "launch.hpp"

namespace tessera::core {
namespace {

using cuda::AppendParams;
using cuda::AppendRows;
using cuda::Divisor;

int32_t pieces(int64_t count) { return static_cast<int32_t>((count + cuda::kAppendUnit - 1) / cuda::kAppendUnit); }

// Whether 8 elements from the start of any row are whole 16-byte accesses (8 bytes of a quantised cache).
bool is_aligned(const void* pointer, const cuda::Strides& strides, int32_t dtype) {
  const int64_t element = dtype_bytes(dtype), access = std::min<int64_t>(16, element * cuda::kAppendUnit);
  return reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(access) == 0 &&
         ((strides.batch | strides.row | strides.head) * element) % access == 0;
}

// Rows to turn, where `turned` pairs of tables are given, and to write.
struct Job {
  const void* from;
  void* to;
  const Operand &source, &target;
  cuda::Strides from_stride, to_stride;
  int64_t rows;
  int32_t heads, dim, turned;
};

// Adds the blocks of one kind of rows; returns how many there are with it.
int64_t add_rows(const Job& job, int32_t interleaved, int64_t blocks, AppendRows* out) {
  out->from = job.from, out->to = job.to;
  out->from_stride = job.from_stride, out->to_stride = job.to_stride;
  out->rows = job.rows;
  out->from_dtype = job.source.dtype, out->to_dtype = job.target.dtype;
  out->dim = job.dim, out->pairs = job.turned;
  out->turned_units = pieces(job.turned);
  const int64_t units = out->turned_units + pieces(job.dim - 2 * job.turned), row_units = job.heads * units;
  out->units = Divisor(static_cast<uint32_t>(units)), out->row_units = Divisor(static_cast<uint32_t>(row_units));
  out->rows_per_block =
      static_cast<int32_t>(std::max<int64_t>(1, cuda::kAppendThreads / std::max<int64_t>(1, row_units)));
  out->first_block = static_cast<uint32_t>(blocks);
  const bool aligned =
      is_aligned(job.from, job.from_stride, out->from_dtype) && is_aligned(job.to, job.to_stride, out->to_dtype);
  out->turned_aligned = aligned && (interleaved != 0 || job.turned % cuda::kAppendUnit == 0);
  out->plain_aligned = aligned && 2 * job.turned % cuda::kAppendUnit == 0;
  return blocks + (job.rows + out->rows_per_block - 1) / out->rows_per_block;
}

void add_scales(const ScaleOperand& operand, const float* scale, AppendRows* out) {
  out->scale = scale;
  std::copy_n(operand.stride, 3, out->scale_stride);
  out->scale_rows = Divisor(static_cast<uint32_t>(operand.rows));
}

void fill_metadata(const Problem& p, const tessera_tensors& t, const tessera_append_args& args, AppendParams* out) {
  const bool paged = p.layout_kv == TESSERA_PAGED;
  out->seqused_k = t.seqused_k;
  out->page_table = t.page_table;
  out->batch_idx = p.has(TESSERA_FLAG_BATCH_IDX) ? t.batch_idx : nullptr;
  out->cu_seqlens_new = args.cu_seqlens_new;
  out->cu_seqlens_q = p.layout_q == TESSERA_PACKED ? t.cu_seqlens_q : nullptr;
  out->seqused_q = p.has(TESSERA_FLAG_SEQUSED_Q) ? t.seqused_q : nullptr;
  out->cos = args.rotary_cos, out->sin = args.rotary_sin;
  out->page_table_stride = p.page_table_stride;
  // Lengths are int32, so no sequence grows beyond.
  out->capacity = std::min(paged ? std::min(p.seqlen_k, p.max_pages * p.page_size) : p.seqlen_k, cuda::kMaxInt);
  out->seqlen_new = Divisor(static_cast<uint32_t>(args.seqlen_new));
  out->seqlen_q = Divisor(static_cast<uint32_t>(p.seqlen_q));
  out->rotary_seqlen = args.rotary_seqlen;
  out->batch = static_cast<int32_t>(p.batch), out->batch_kv = static_cast<int32_t>(p.batch_kv);
  out->num_pages = static_cast<int32_t>(p.num_pages), out->page_size = Divisor(paged ? p.page_size : 0);
  out->rotary_dtype = p.q.dtype, out->rotary_interleaved = args.rotary_interleaved;
  out->banded = p.banded();
  const cuda::Strides table{0, args.rotary_dim / 2, 0};
  out->tables_aligned = is_aligned(args.rotary_cos, table, p.q.dtype) && is_aligned(args.rotary_sin, table, p.q.dtype);
}

// The parameters of the launch; returns its blocks.
int64_t make_params(const Problem& p, const tessera_tensors& t, const Append& append, AppendParams* out) {
  const tessera_append_args& args = *append.args;
  fill_metadata(p, t, args, out);
  const bool packed = args.cu_seqlens_new != nullptr, packed_q = p.layout_q == TESSERA_PACKED;
  const int64_t batches = packed ? 1 : p.batch, rows = packed ? args.total_new : args.seqlen_new;
  const auto [batches_q, rows_q, batches_k, rows_k] = cuda::extents(p);
  const auto of_new = [&](const Operand& x) { return cuda::strides(x, batches, rows, p.heads_kv); };
  const auto of_cache = [&](const Operand& x) { return cuda::strides(x, batches_k, rows_k, p.heads_kv); };
  const auto of_query = [&](const Operand& x) { return cuda::strides(x, batches_q, rows_q, p.heads_q); };
  const int32_t pairs = args.rotary_dim / 2;
  const int64_t new_rows = p.batch > 0 && out->capacity > 0 ? batches * rows : 0;
  int64_t blocks = add_rows({args.k_new_data, args.k_cache, append.k_new, p.k, of_new(append.k_new), of_cache(p.k),
                             new_rows, p.heads_kv, p.head_dim_qk, pairs},
                            args.rotary_interleaved, 0, &out->rows[0]);
  blocks = add_rows({args.v_new_data, args.v_cache, append.v_new, p.v, of_new(append.v_new), of_cache(p.v), new_rows,
                     p.heads_kv, p.head_dim_v, 0},
                    0, blocks, &out->rows[1]);
  add_scales(p.k_scale, t.k_scale, &out->rows[0]);
  add_scales(p.v_scale, t.v_scale, &out->rows[1]);
  const int64_t queries = !append.rotates_q || p.batch == 0 ? 0 : packed_q ? p.total_q : p.batch * p.seqlen_q;
  return add_rows({t.q, args.q_rotated, p.q, append.rotates_q ? append.q_out : p.q, of_query(p.q),
                   of_query(append.rotates_q ? append.q_out : p.q), queries, p.heads_q, p.head_dim_qk, pairs},
                  args.rotary_interleaved, blocks, &out->rows[2]);
}

}  // namespace

int check_append_cuda(const Problem& p, const tessera_append_args& args, tessera_status* status) {
  if (p.k.dtype == TESSERA_F64) {
    return fail(status, TESSERA_UNSUPPORTED,
                "k.dtype is f64; appending on CUDA devices takes caches of f32, f16, bf16, int8 and e4m3");
  }
  const struct {
    const char* name;
    int64_t value;
  } counts[] = {{"batch", p.batch}, {"batch_kv", p.batch_kv}, {"num_pages", p.num_pages}};
  for (const auto& count : counts) {
    if (count.value <= cuda::kMaxInt) continue;
    return fail(status, TESSERA_UNSUPPORTED, "%s is %lld; appending on CUDA devices takes at most 2147483647",
                count.name, static_cast<long long>(count.value));
  }
  const int64_t rows = args.cu_seqlens_new != nullptr ? args.total_new : p.batch * args.seqlen_new;
  const int64_t queries = p.layout_q == TESSERA_PACKED ? p.total_q : p.batch * p.seqlen_q;
  const int64_t heads = std::max(p.heads_q, p.heads_kv), dim = std::max(p.head_dim_qk, p.head_dim_v);
  if (std::max(rows, queries) > cuda::kMaxInt / 3 || heads > cuda::kMaxInt / dim) {
    return fail(status, TESSERA_UNSUPPORTED,
                "%lld rows of %lld heads of %lld elements; appending on CUDA devices takes at most 715827882 rows and "
                "2147483647 elements a row",
                static_cast<long long>(std::max(rows, queries)), static_cast<long long>(heads),
                static_cast<long long>(dim));
  }
  if (args.cu_seqlens_new == nullptr && p.batch > 0 && args.seqlen_new > p.seqlen_k) {
    return fail(status, TESSERA_INVALID_ARGUMENT, "seqlen_new is %lld; expected at most the room, seqlen_k = %lld",
                static_cast<long long>(args.seqlen_new), static_cast<long long>(p.seqlen_k));
  }
  if (args.rotary_dim > 0 && args.rotary_seqlen == 0) {
    return fail(status, TESSERA_INVALID_ARGUMENT,
                "rotary_seqlen is 0 and rotary_dim is %d; expected at least 1 row of the tables", args.rotary_dim);
  }
  return TESSERA_OK;
}

int run_append_cuda(const Problem& p, const tessera_tensors& tensors, const Append& append, void* stream,
                    tessera_status* status) {
  AppendParams params{};
  const int64_t blocks = make_params(p, tensors, append, &params);
  if (blocks == 0) return TESSERA_OK;
  cuda::DeviceScope scope(p.device);
  if (scope.error() != cudaSuccess) return scope.finish(scope.error(), "append: making the device current", status);
  return scope.finish(cuda::launch_append(params, static_cast<uint32_t>(blocks), static_cast<cudaStream_t>(stream)),
                      "append: launch", status);
}

int prepare_append_cuda(int32_t device, tessera_status* status) {
  cuda::DeviceScope scope(device);
  if (scope.error() != cudaSuccess) return scope.finish(scope.error(), "append: making the device current", status);
  return scope.finish(cuda::prepare_append(), "append: loading the kernel", status);
}

}  // namespace tessera::core
