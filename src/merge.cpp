// Merge of partial states: the rules on its arguments, and the CPU's loops (the GPU's are in cuda/merge.cuh). Rows are
// independent, states are taken in the order given, and a row's arithmetic does not depend on the thread count, so
// results are bitwise repeatable.
#include "merge.hpp"

#include <algorithm>
#include <cinttypes>
#include <cmath>

#include "cpu/thread_pool.hpp"
#include "device_info.hpp"
#include "element.hpp"
#include "kernel_entry.hpp"
#include "merge_states.hpp"
#include "status.hpp"

namespace tessera::core {
namespace {

bool is_narrow(int32_t dtype) { return dtype == TESSERA_F32 || dtype == TESSERA_F16 || dtype == TESSERA_BF16; }

int check_numbers(const tessera_merge_args& args, tessera_status* status) {
  const struct {
    const char* name;
    int64_t value, minimum;
  } sizes[] = {{"states", args.states, 0},
               {"batch", args.batch, 0},
               {"seqlen_q", args.seqlen_q, 0},
               {"heads", args.heads, 1},
               {"head_dim_v", args.head_dim_v, 1}};
  int64_t bytes = 8;
  for (const auto& size : sizes) {
    if (size.value < size.minimum || size.value > INT32_MAX) {
      return fail(status, TESSERA_INVALID_ARGUMENT, "%s is %" PRId64 "; expected %" PRId64 " to 2147483647", size.name,
                  size.value, size.minimum);
    }
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(size.value, 1), &bytes)) {
      return fail(status, TESSERA_INVALID_ARGUMENT, "%s is %" PRId64 "; expected an o below 2^63 bytes", size.name,
                  size.value);
    }
  }
  const bool doubles = args.dtype == TESSERA_F64 && args.out_dtype == TESSERA_F64;
  if (!doubles && !is_narrow(args.dtype)) {
    return fail(status, TESSERA_INVALID_ARGUMENT, "dtype is %d; expected f32, f16 or bf16, or f64 with out_dtype f64",
                args.dtype);
  }
  if (!doubles && !is_narrow(args.out_dtype)) {
    return fail(status, TESSERA_INVALID_ARGUMENT, "out_dtype is %d; expected f32, f16 or bf16, or f64 with dtype f64",
                args.out_dtype);
  }
  if (args.device < -1)
    return fail(status, TESSERA_INVALID_ARGUMENT, "device is %d; expected -1 (the CPU) or a CUDA device number",
                args.device);
  const char* reason = nullptr;
  if (args.device >= 0 && cuda_info(args.device, &reason) == nullptr)
    return fail(status, TESSERA_NO_DEVICE, "device is %d, but %s", args.device, reason);
  return TESSERA_OK;
}

struct PointerRule {
  const char* name;
  const void* pointer;
  int32_t align;
  bool needed, written;
};

template <size_t count>
int check_pointers(const PointerRule (&rules)[count], tessera_status* status) {
  for (const PointerRule& rule : rules) {
    if (rule.pointer == nullptr && !rule.needed) continue;
    if (rule.pointer == nullptr)
      return fail(status, TESSERA_INVALID_ARGUMENT, "%s is NULL; expected a pointer", rule.name);
    if (reinterpret_cast<uintptr_t>(rule.pointer) % static_cast<uintptr_t>(rule.align) != 0) {
      return fail(status, TESSERA_INVALID_ARGUMENT, "%s is %p; expected a multiple of %d bytes", rule.name,
                  rule.pointer, rule.align);
    }
    for (const PointerRule* other = rules; other != &rule; ++other) {
      if (other->pointer != rule.pointer || !(other->written || rule.written)) continue;
      return fail(status, TESSERA_INVALID_ARGUMENT,
                  "%s and %s are both %p; expected memory of its own for what is written", other->name, rule.name,
                  rule.pointer);
    }
  }
  return TESSERA_OK;
}

// Row r of [batch, seqlen_q, heads] order: where its o starts (times head_dim_v) and its lse lies, for state 0.
struct Rows {
  int64_t seqlen_q, heads, count;  // count: rows of one state
  explicit Rows(const tessera_merge_args& args)
      : seqlen_q(args.seqlen_q), heads(args.heads), count(args.batch * args.seqlen_q * args.heads) {}
  int64_t lse_index(int64_t row) const {
    const int64_t head = row % heads, query = row / heads % seqlen_q, batch = row / heads / seqlen_q;
    return (batch * heads + head) * seqlen_q + query;
  }
};

template <class Number>
MergedStates<double> merge_row_states(const tessera_merge_args& args, int64_t index, int64_t state_stride) {
  const auto* lse = static_cast<const Number*>(args.lse) + index;
  return merge_states<double>(args.states, [=](int64_t s) { return static_cast<double>(lse[s * state_stride]); });
}

template <class In, class Out>
struct ForwardBody {
  using Number = typename In::Number;
  const tessera_merge_args& args;
  Rows rows;
  int64_t tasks;

  void merge_row(int64_t row) const {
    const int64_t dim = args.head_dim_v, index = rows.lse_index(row);
    const auto* lse = static_cast<const Number*>(args.lse);
    const auto* o = static_cast<const typename In::Storage*>(args.o);
    auto* out = static_cast<typename Out::Storage*>(args.o_out) + row * dim;
    const MergedStates<double> merged = merge_row_states<Number>(args, index, rows.count);
    constexpr int64_t kBlock = 256;  // 1 or 2 KiB of accumulators on the stack
    for (int64_t begin = 0; begin < dim; begin += kBlock) {
      const int64_t size = std::min(kBlock, dim - begin);
      Number sum[kBlock] = {};
      for (int64_t s = 0; s < args.states; ++s) {
        const double state_lse = static_cast<double>(lse[s * rows.count + index]);
        if (state_lse == -INFINITY) continue;  // whatever an empty state's o holds
        const auto weight = static_cast<Number>(merged.weight(state_lse) / merged.sum);
        const auto* from = o + (s * rows.count + row) * dim + begin;
        for (int64_t c = 0; c < size; ++c) sum[c] += weight * In::load(from[c]);
      }
      for (int64_t c = 0; c < size; ++c) out[begin + c] = Out::store(sum[c]);
    }
    if (args.lse_out != nullptr) static_cast<Number*>(args.lse_out)[index] = static_cast<Number>(merged.lse());
  }

  void operator()(int64_t task) const {
    const int64_t per_task = (rows.count + tasks - 1) / tasks, end = std::min(rows.count, (task + 1) * per_task);
    for (int64_t row = task * per_task; row < end; ++row) merge_row(row);
  }
};

template <class In, class Out>
struct BackwardBody {
  using Number = typename In::Number;
  const tessera_merge_args& args;
  Rows rows;
  int64_t tasks;

  void state_row(int64_t row, int64_t state, double weight, double d_merged) const {
    const int64_t dim = args.head_dim_v, at = (state * rows.count + row) * dim;
    const auto* o = static_cast<const typename In::Storage*>(args.o) + at;
    const auto* out = static_cast<const typename Out::Storage*>(args.o_out) + row * dim;
    const auto* d_out = static_cast<const typename Out::Storage*>(args.d_o_out) + row * dim;
    auto* d_o = static_cast<typename In::Storage*>(args.d_o) + at;
    double dot = 0;
    if (weight == 0) {
      std::fill(d_o, d_o + dim, typename In::Storage{});
    } else {
      for (int64_t c = 0; c < dim; ++c) {
        const Number d = Out::load(d_out[c]);
        dot += static_cast<double>(d) * (static_cast<double>(In::load(o[c])) - static_cast<double>(Out::load(out[c])));
        d_o[c] = In::store(static_cast<Number>(weight * static_cast<double>(d)));
      }
    }
    auto* d_lse = static_cast<Number*>(args.d_lse) + state * rows.count + rows.lse_index(row);
    *d_lse = weight == 0 ? Number(0) : static_cast<Number>(weight * (dot + d_merged));
  }

  void operator()(int64_t task) const {
    const int64_t per_task = (rows.count + tasks - 1) / tasks, end = std::min(rows.count, (task + 1) * per_task);
    const auto* lse = static_cast<const Number*>(args.lse);
    const auto* d_lse_out = static_cast<const Number*>(args.d_lse_out);
    for (int64_t row = task * per_task; row < end; ++row) {
      const int64_t index = rows.lse_index(row);
      const MergedStates<double> merged = merge_row_states<Number>(args, index, rows.count);
      const double d_merged = d_lse_out != nullptr ? static_cast<double>(d_lse_out[index]) : 0.0;
      for (int64_t s = 0; s < args.states; ++s) {
        const double weight = merged.weight(static_cast<double>(lse[s * rows.count + index]));
        state_row(row, s, weight == 0 ? 0 : weight / merged.sum, d_merged);
      }
    }
  }
};

template <template <class, class> class Body, class In, class Out>
int run_body(const tessera_merge_args& args, const tessera_exec* exec) {
  const tessera_executor& executor =
      exec != nullptr && exec->executor != nullptr ? *exec->executor : cpu::default_executor();
  const Rows rows(args);
  // A task is worth its hand-over from about 16k elements on.
  const int64_t elements_per_row = std::max<int64_t>(args.states, 1) * args.head_dim_v;
  const int64_t grain = std::max<int64_t>(16384 / elements_per_row, 1);
  const int64_t tasks = std::clamp<int64_t>(rows.count / grain, 1, executor.threads);
  const Body<In, Out> body{args, rows, tasks};
  cpu::parallel_tasks(executor, tasks, body);
  return TESSERA_OK;
}

template <template <class, class> class Body, class In>
int run_for_output(const tessera_merge_args& args, const tessera_exec* exec) {
  if (args.out_dtype == TESSERA_F16) return run_body<Body, In, ElementF16>(args, exec);
  if (args.out_dtype == TESSERA_BF16) return run_body<Body, In, ElementBF16>(args, exec);
  return run_body<Body, In, ElementF32>(args, exec);
}

template <template <class, class> class Body>
int run_for_dtypes(const tessera_merge_args& args, const tessera_exec* exec) {
  if (args.dtype == TESSERA_F64) return run_body<Body, ElementF64, ElementF64>(args, exec);
  if (args.dtype == TESSERA_F16) return run_for_output<Body, ElementF16>(args, exec);
  if (args.dtype == TESSERA_BF16) return run_for_output<Body, ElementBF16>(args, exec);
  return run_for_output<Body, ElementF32>(args, exec);
}

}  // namespace

int merge(const tessera_merge_args& args, const tessera_exec* exec, tessera_status* status) {
  if (const int code = check_numbers(args, status)) return code;
  if (const int code = check_exec(exec, args.device < 0, status)) return code;
  const bool rows = args.batch > 0 && args.seqlen_q > 0, inputs = rows && args.states > 0;
  const int32_t in = dtype_bytes(args.dtype), out = dtype_bytes(args.out_dtype),
                lse = dtype_bytes(lse_dtype(args.dtype));
  const PointerRule rules[] = {{"o", args.o, in, inputs, false},
                               {"lse", args.lse, lse, inputs, false},
                               {"o_out", args.o_out, out, rows, true},
                               {"lse_out", args.lse_out, lse, false, true}};
  if (const int code = check_pointers(rules, status)) return code;
  if (rows && args.device >= 0) return merge_cuda(args, exec, false, status);
  if (rows) run_for_dtypes<ForwardBody>(args, exec);
  return succeed(status);
}

int merge_backward(const tessera_merge_args& args, const tessera_exec* exec, tessera_status* status) {
  if (const int code = check_numbers(args, status)) return code;
  if (const int code = check_exec(exec, args.device < 0, status)) return code;
  const bool some = args.batch > 0 && args.seqlen_q > 0 && args.states > 0;
  const int32_t in = dtype_bytes(args.dtype), out = dtype_bytes(args.out_dtype),
                lse = dtype_bytes(lse_dtype(args.dtype));
  const PointerRule rules[] = {{"o", args.o, in, some, false},
                               {"lse", args.lse, lse, some, false},
                               {"o_out", args.o_out, out, some, false},
                               {"d_o_out", args.d_o_out, out, some, false},
                               {"d_lse_out", args.d_lse_out, lse, false, false},
                               {"d_o", args.d_o, in, some, true},
                               {"d_lse", args.d_lse, lse, some, true}};
  if (const int code = check_pointers(rules, status)) return code;
  if (some && args.device >= 0) return merge_cuda(args, exec, true, status);
  if (some) run_for_dtypes<BackwardBody>(args, exec);
  return succeed(status);
}

}  // namespace tessera::core
