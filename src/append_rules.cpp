// The rules on an append: numbers, dtypes, strides and pointers, each once, in the caller's words; and tessera_append,
// which holds its tensors to the same rules on lengths, page tables and shared memory as a run.
#include <algorithm>
#include <cinttypes>

#include "aliases.hpp"
#include "append.hpp"
#include "cpu/thread_pool.hpp"
#include "kernel_entry.hpp"
#include "operand_rules.hpp"
#include "pointer_rules.hpp"
#include "status.hpp"

namespace tessera::core {
namespace {

int refuse(tessera_status* status, const char* argument, int64_t value, const char* expected) {
  return fail(status, TESSERA_INVALID_ARGUMENT, "%s is %" PRId64 "; expected %s", argument, value, expected);
}

// What the problem must be, and what no append does.
int check_cache(const Problem& p, tessera_status* status) {
  if (p.pass != TESSERA_FORWARD) return refuse(status, "pass", p.pass, "TESSERA_FORWARD (0) where rows are appended");
  if (p.layout_kv == TESSERA_PACKED)
    return refuse(status, "layout_kv", p.layout_kv, "a dense (0) or paged (2) cache to append to");
  if (!p.has(TESSERA_FLAG_SEQUSED_K)) {
    return fail(status, TESSERA_INVALID_ARGUMENT,
                "flags lacks SEQUSED_K; expected it where rows are appended, seqused_k the lengths before");
  }
  if (p.v_order != 0)
    return fail(status, TESSERA_UNSUPPORTED, "v_order is %d; this build appends v in the order of its rows", p.v_order);
  if (p.has(TESSERA_FLAG_V_MEAN))
    return fail(status, TESSERA_UNSUPPORTED, "flags has V_MEAN; this build appends v without a mean");
  return TESSERA_OK;
}

int check_numbers(const Problem& p, const tessera_append_args& args, tessera_status* status) {
  const struct {
    const char* name;
    int64_t value;
  } counts[] = {{"seqlen_new", args.seqlen_new}, {"total_new", args.total_new}, {"rotary_seqlen", args.rotary_seqlen}};
  for (const auto& count : counts) {
    if (count.value < 0 || count.value > INT32_MAX) return refuse(status, count.name, count.value, "0 to 2147483647");
  }
  if (args.rotary_dim < 0 || args.rotary_dim > p.head_dim_qk || args.rotary_dim % 2 != 0) {
    return fail(status, TESSERA_INVALID_ARGUMENT, "rotary_dim is %d; expected an even number of 0 to head_dim_qk = %d",
                args.rotary_dim, p.head_dim_qk);
  }
  if (args.rotary_interleaved != 0 && args.rotary_interleaved != 1)
    return refuse(status, "rotary_interleaved", args.rotary_interleaved, "0 (halves) or 1 (neighbours)");
  if (args.rotary_dim > 0 && p.q.dtype == TESSERA_E4M3) {
    return fail(status, TESSERA_UNSUPPORTED, "q.dtype is e4m3 and rotary_dim is %d; tables are f64, f32, f16 or bf16",
                args.rotary_dim);
  }
  if (args.rotary_dim == 0 && args.q_rotated != nullptr) {
    return fail(status, TESSERA_INVALID_ARGUMENT,
                "q_rotated is %p and rotary_dim is 0; expected NULL where nothing is turned", args.q_rotated);
  }
  return TESSERA_OK;
}

// New rows become the cache's type in one rounding.
int check_new_dtype(tessera_status* status, const char* name, int32_t dtype, int32_t cache) {
  const bool narrow = dtype == TESSERA_F32 || dtype == TESSERA_F16 || dtype == TESSERA_BF16;
  if (cache == TESSERA_F64 ? dtype == TESSERA_F64 : narrow) return TESSERA_OK;
  return fail(status, TESSERA_INVALID_ARGUMENT, "%s.dtype is %d (%s); expected %s", name, dtype, dtype_name(dtype),
              cache == TESSERA_F64 ? "f64 for an f64 cache" : "f32, f16 or bf16");
}

int resolve(const Problem& p, const tessera_append_args& args, Append* append, tessera_status* status) {
  const int32_t k = args.k_new.dtype != 0 ? args.k_new.dtype : p.q.dtype;
  const int32_t v = args.v_new.dtype != 0 ? args.v_new.dtype : p.q.dtype;
  const auto dims = [&](int64_t dim) {
    return args.cu_seqlens_new != nullptr ? Dims{{args.total_new, p.heads_kv, dim, 0}, 3}
                                          : Dims{{p.batch, args.seqlen_new, p.heads_kv, dim}, 4};
  };
  int code = check_new_dtype(status, "k_new", k, p.k.dtype);
  if (code == TESSERA_OK) code = check_new_dtype(status, "v_new", v, p.v.dtype);
  if (code == TESSERA_OK)
    code = resolve_operand(status, "k_new", args.k_new, k, dims(p.head_dim_qk), false, &append->k_new);
  if (code == TESSERA_OK)
    code = resolve_operand(status, "v_new", args.v_new, v, dims(p.head_dim_v), false, &append->v_new);
  if (code == TESSERA_OK) code = check_written(status, "k", p.k, key_dims(p, p.head_dim_qk));
  if (code == TESSERA_OK) code = check_written(status, "v", p.v, key_dims(p, p.head_dim_v));
  if (code != TESSERA_OK || !append->rotates_q) return code;
  if (args.q_out.dtype != 0 && args.q_out.dtype != p.q.dtype) {
    return fail(status, TESSERA_INVALID_ARGUMENT, "q_out.dtype is %d (%s); expected 0 or q's, %s", args.q_out.dtype,
                dtype_name(args.q_out.dtype), dtype_name(p.q.dtype));
  }
  return resolve_operand(status, "q_out", args.q_out, p.q.dtype, query_dims(p, p.head_dim_qk), true, &append->q_out);
}

bool has_queries(const Problem& p) {
  return p.layout_q == TESSERA_PACKED ? p.total_q > 0 : p.batch > 0 && p.seqlen_q > 0;
}

int check_pointers(const Problem& p, const tessera_tensors& t, const Append& append, tessera_status* status) {
  const tessera_append_args& args = *append.args;
  const int64_t rows = args.cu_seqlens_new != nullptr ? args.total_new : args.seqlen_new;
  const bool some = p.batch > 0 && rows > 0, queries = append.rotates_q && has_queries(p);
  const bool turns = args.rotary_dim > 0 && args.rotary_seqlen > 0 && (some || queries);
  const int32_t number = dtype_bytes(p.q.dtype);
  const PointerRule rules[] = {
      {"k_new_data", args.k_new_data, append.k_new.align, some},
      {"v_new_data", args.v_new_data, append.v_new.align, some},
      {"rotary_cos", args.rotary_cos, number, turns},
      {"rotary_sin", args.rotary_sin, number, turns},
      {"cu_seqlens_new", args.cu_seqlens_new, 4, args.cu_seqlens_new != nullptr},
      {"k_cache", args.k_cache, p.k.align, some},
      {"v_cache", args.v_cache, p.v.align, some},
      {"q", t.q, p.q.align, queries},
      {"q_rotated", args.q_rotated, append.q_out.align, queries},
  };
  return check_rules(rules, status);
}

}  // namespace

int check_append(const Problem& p, const tessera_tensors& tensors, Append* append, tessera_status* status) {
  const tessera_append_args& args = *tensors.append;
  if (args.size != sizeof args) {
    return fail(status, TESSERA_INVALID_ARGUMENT, "append_args.size is %zu; expected %zu", args.size, sizeof args);
  }
  int code = check_cache(p, status);
  if (code == TESSERA_OK) code = check_numbers(p, args, status);
  if (code != TESSERA_OK) return code;
  append->args = &args;
  append->rotates_q = args.q_rotated != nullptr;
  code = resolve(p, args, append, status);
  if (code == TESSERA_OK && p.device >= 0) code = check_append_cuda(p, args, status);
  return code == TESSERA_OK ? check_pointers(p, tensors, *append, status) : code;
}

namespace {

int check_device(const Problem& p, tessera_status* status) {
  const char* reason = "";
  if (p.device < 0 || cuda_info(p.device, &reason) != nullptr) return TESSERA_OK;
  return fail(status, TESSERA_NO_DEVICE, "device is %d, but %s", p.device, reason);
}

}  // namespace

int append(const tessera_problem& given, const tessera_tensors& tensors, const tessera_append_args& args,
           const tessera_exec* exec, tessera_status* status) {
  Problem problem;
  if (const int code = validate(given, &problem, status)) return code;
  if (const int code = check_device(problem, status)) return code;
  if (const int code = check_exec(exec, problem.device < 0, status)) return code;
  tessera_tensors own = tensors;
  own.append = &args;
  own.k = args.k_cache, own.v = args.v_cache;
  own.o = own.lse = nullptr;
  if (args.q_rotated == nullptr) {  // no rule on queries, which are not read
    own.q = nullptr;
    problem.layout_q = TESSERA_DENSE, problem.seqlen_q = 0;
    problem.flags &= ~TESSERA_FLAG_SEQUSED_Q;
  }
  Append rows;
  if (const int code = check_append(problem, own, &rows, status)) return code;
  if (const int code = check_scales(problem, own, status)) return code;
  if (const int code = check_aliases(problem, own, rows, status)) return code;
  if (const int code = check_metadata_pointers(problem, own, status)) return code;
  if (problem.device >= 0) {
    const int code = run_append_cuda(problem, own, rows, exec != nullptr ? exec->cuda_stream : nullptr, status);
    return code == TESSERA_OK ? succeed(status) : code;
  }
  if (const int code = check_metadata_cpu(problem, own, status)) return code;
  run_append(problem, own, rows,
             exec != nullptr && exec->executor != nullptr ? *exec->executor : cpu::default_executor());
  return succeed(status);
}

}  // namespace tessera::core
