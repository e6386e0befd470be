// run_plan(): every rule on pointers, once: present where needed, aligned as promised, not written over an input, a
// workspace that is large enough. Then metadata (CPU), then the kernel. Allocates nothing and reads no environment.
#include <cinttypes>

#include "aliases.hpp"
#include "append.hpp"
#include "cpu/thread_pool.hpp"
#include "kernel_entry.hpp"
#include "pointer_rules.hpp"
#include "status.hpp"

namespace tessera::core {
namespace {

constexpr uintptr_t kWorkspaceAlign = 256;

// Operands that have elements are needed; an empty one may be NULL.
struct Extent {
  bool q, k;
};
Extent extents(const Problem& p) {
  const bool q = p.layout_q == TESSERA_PACKED ? p.total_q > 0 : p.batch > 0 && p.seqlen_q > 0;
  const bool k = p.layout_kv == TESSERA_PACKED  ? p.total_k > 0
                 : p.layout_kv == TESSERA_PAGED ? p.num_pages > 0
                                                : p.batch_kv > 0 && p.seqlen_k > 0;
  return {q, k};
}

}  // namespace

int check_metadata_pointers(const Problem& p, const tessera_tensors& t, tessera_status* status) {
  const bool some = p.batch > 0;
  const bool packed_q = p.layout_q == TESSERA_PACKED, packed_k = p.layout_kv == TESSERA_PACKED;
  const PointerRule rules[] = {
      {"cu_seqlens_q", t.cu_seqlens_q, 4, packed_q},
      {"cu_seqlens_k", t.cu_seqlens_k, 4, packed_k},
      {"seqused_q", t.seqused_q, 4, some && p.has(TESSERA_FLAG_SEQUSED_Q)},
      {"seqused_k", t.seqused_k, 4, some && p.has(TESSERA_FLAG_SEQUSED_K)},
      {"page_table", t.page_table, 4, some && p.layout_kv == TESSERA_PAGED && p.max_pages > 0},
      {"leftpad", t.leftpad, 4, some && p.has(TESSERA_FLAG_LEFTPAD)},
      {"batch_idx", t.batch_idx, 4, some && p.has(TESSERA_FLAG_BATCH_IDX)},
  };
  return check_rules(rules, status);
}

namespace {

int check_pointers(const Problem& p, const tessera_tensors& t, tessera_status* status) {
  const auto [q, k] = extents(p);
  const bool backward = p.pass == TESSERA_BACKWARD, some = p.batch > 0;
  const int32_t lse_align = dtype_bytes(lse_dtype(p.q.dtype));
  const PointerRule rules[] = {
      {"q", t.q, p.q.align, q},
      {"k", t.k, p.k.align, k},
      {"v", t.v, p.v.align, k},
      {"o", t.o, p.o.align, q},
      {"lse", t.lse, lse_align, q && (backward || p.has(TESSERA_FLAG_LSE))},
      {"alibi_slopes", t.alibi_slopes, 4, some && p.has(TESSERA_FLAG_ALIBI)},
      {"sinks", t.sinks, 4, some && p.has(TESSERA_FLAG_SINKS)},
      {"v_mean", t.v_mean, 4, some && p.has(TESSERA_FLAG_V_MEAN)},
      {"bias", t.bias, p.bias.align, q && k && p.has(TESSERA_FLAG_BIAS)},
  };
  if (const int code = check_rules(rules, status)) return code;
  if (const int code = check_metadata_pointers(p, t, status)) return code;
  if (!backward) return TESSERA_OK;
  const PointerRule backward_rules[] = {
      {"d_o", t.d_o, p.d_o.align, q},
      {"d_lse", t.d_lse, lse_align, q && p.has(TESSERA_FLAG_D_LSE)},
      {"dq", t.dq, p.dq.align, q},
      {"dk", t.dk, p.dk.align, k},
      {"dv", t.dv, p.dv.align, k},
      {"d_bias", t.d_bias, p.d_bias.align, q && k && p.has(TESSERA_FLAG_D_BIAS)},
      {"d_sinks", t.d_sinks, 4, p.has(TESSERA_FLAG_D_SINKS)},
  };
  return check_rules(backward_rules, status);
}

}  // namespace

int check_scales(const Problem& p, const tessera_tensors& t, tessera_status* status) {
  const struct {
    const char* name;
    const float* pointer;
    int32_t dtype;
  } scales[] = {
      {"q_scale", t.q_scale, p.q.dtype}, {"k_scale", t.k_scale, p.k.dtype}, {"v_scale", t.v_scale, p.v.dtype}};
  for (const auto& scale : scales) {
    if (scale.pointer == nullptr) continue;
    if (scale.dtype != TESSERA_E4M3 && scale.dtype != TESSERA_INT8) {
      return fail(status, TESSERA_INVALID_ARGUMENT,
                  "%s is given but its operand is %s; expected NULL unless it is e4m3 or int8", scale.name,
                  dtype_name(scale.dtype));
    }
    if (const int code = check_pointer(status, scale.name, scale.pointer, 4)) return code;
  }
  return TESSERA_OK;
}

namespace {

int check_workspace(const Plan& plan, const void* workspace, size_t bytes, tessera_status* status) {
  const int64_t needed = plan.launch.workspace_bytes;
  if (needed == 0) return TESSERA_OK;
  if (bytes < static_cast<size_t>(needed)) {
    return fail(status, TESSERA_WORKSPACE_TOO_SMALL, "workspace has %zu bytes; expected at least %" PRId64, bytes,
                needed);
  }
  return check_pointer(status, "workspace", workspace, kWorkspaceAlign);
}

}  // namespace

int check_exec(const tessera_exec* exec, bool is_cpu, tessera_status* status) {
  if (exec == nullptr) return TESSERA_OK;
  if (exec->size != sizeof(tessera_exec)) {
    return fail(status, TESSERA_INVALID_ARGUMENT, "exec.size is %zu; expected %zu", exec->size, sizeof(tessera_exec));
  }
  const tessera_executor* executor = exec->executor;
  if (executor == nullptr || !is_cpu) return TESSERA_OK;
  if (executor->size != sizeof(tessera_executor)) {
    return fail(status, TESSERA_INVALID_ARGUMENT, "executor.size is %zu; expected %zu", executor->size,
                sizeof(tessera_executor));
  }
  if (executor->parallel == nullptr)
    return fail(status, TESSERA_INVALID_ARGUMENT, "executor.parallel is NULL; expected a function");
  if (executor->threads < 1) {
    return fail(status, TESSERA_INVALID_ARGUMENT, "executor.threads is %d; expected 1 or more", executor->threads);
  }
  return TESSERA_OK;
}

namespace {

int check_structs(const Plan& plan, const tessera_tensors* tensors, const tessera_exec* exec, tessera_status* status) {
  if (!plan.device->present) {
    return fail(status, TESSERA_NO_DEVICE, "the plan is for the named device \"%s\"; it explains but does not run",
                plan.device->name);
  }
  if (tensors == nullptr) return fail(status, TESSERA_INVALID_ARGUMENT, "tensors is NULL; expected a pointer");
  if (tensors->size != sizeof(tessera_tensors)) {
    return fail(status, TESSERA_INVALID_ARGUMENT, "tensors.size is %zu; expected %zu", tensors->size,
                sizeof(tessera_tensors));
  }
  return check_exec(exec, plan.device->is_cpu, status);
}

}  // namespace

int check_metadata(const Plan& plan, const tessera_tensors* tensors, const tessera_exec* exec, tessera_status* status) {
  if (const int code = check_structs(plan, tensors, exec, status)) return code;
  Append append;
  if (tensors->append != nullptr) {
    if (const int code = check_append(plan.problem, *tensors, &append, status)) return code;
  }
  if (const int code = check_metadata_pointers(plan.problem, *tensors, status)) return code;
  const int code = plan.device->is_cpu ? check_metadata_cpu(plan.problem, *tensors, status)
                                       : check_metadata_cuda(plan, *tensors, exec, status);
  return code == TESSERA_OK ? succeed(status) : code;
}

namespace {

// What a run asks of an append beside its own rules: it is to the cache that attention reads, and q is turned with k.
int check_append_of_run(const Problem& p, const tessera_tensors& t, Append* append, tessera_status* status) {
  if (const int code = check_append(p, t, append, status)) return code;
  const tessera_append_args& args = *t.append;
  if (args.k_cache != t.k || args.v_cache != t.v) {
    return fail(status, TESSERA_INVALID_ARGUMENT,
                "k_cache is %p and v_cache is %p; expected k and v of the run, %p and %p", args.k_cache, args.v_cache,
                t.k, t.v);
  }
  if (args.rotary_dim > 0 && args.q_rotated == nullptr && extents(p).q)
    return fail(status, TESSERA_INVALID_ARGUMENT,
                "q_rotated is NULL; expected a pointer, attention reads the turned q");
  return TESSERA_OK;
}

// The new rows first, then attention to the cache with them; every kernel takes the lengths with the new rows from
// locate_sequence, and q, where it was turned, as if it had been given so.
int run_with_append(const Plan& plan, const RunContext& context, const Append& append) {
  if (plan.device->is_cpu) {
    run_append(plan.problem, *context.tensors, append, *context.executor);
  } else if (const int code =
                 run_append_cuda(plan.problem, *context.tensors, append, context.cuda_stream, context.status)) {
    return code;
  }
  if (!append.rotates_q) return plan.entry->run(plan, context);
  Plan turned = plan;
  turned.problem.q = append.q_out;
  tessera_tensors tensors = *context.tensors;
  tensors.q = append.args->q_rotated;
  RunContext with_q = context;
  with_q.tensors = &tensors;
  return turned.entry->run(turned, with_q);
}

}  // namespace

int run_plan(const Plan& plan, const tessera_tensors* tensors, void* workspace, size_t bytes, const tessera_exec* exec,
             tessera_status* status) {
  if (const int code = check_structs(plan, tensors, exec, status)) return code;
  if (const int code = check_pointers(plan.problem, *tensors, status)) return code;
  if (const int code = check_scales(plan.problem, *tensors, status)) return code;
  Append append;
  if (tensors->append != nullptr) {
    if (const int code = check_append_of_run(plan.problem, *tensors, &append, status)) return code;
  }
  if (const int code = check_aliases(plan.problem, *tensors, append, status)) return code;
  if (const int code = check_workspace(plan, workspace, bytes, status)) return code;
  RunContext context{tensors, static_cast<std::byte*>(workspace), nullptr, nullptr, status};
  if (plan.device->is_cpu) {
    if (const int code = check_metadata_cpu(plan.problem, *tensors, status)) return code;
    context.executor = exec != nullptr && exec->executor != nullptr ? exec->executor : &cpu::default_executor();
  } else {
    context.cuda_stream = exec != nullptr ? exec->cuda_stream : nullptr;
  }
  const int code = tensors->append != nullptr ? run_with_append(plan, context, append) : plan.entry->run(plan, context);
  return code == TESSERA_OK ? succeed(status) : code;
}

}  // namespace tessera::core
