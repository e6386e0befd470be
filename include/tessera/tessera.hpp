// Tessera for C++20: a header-only layer over the C interface of tessera.h. Values own what they hold, errors are
// values too; nothing here throws. Semantics, shapes and units are those of tessera.h.
//
//   auto plan = tessera::plan(tessera::Problem::parse("fwd bf16 b4 hq32 hkv8 sq4096 d128 causal"));
//   if (!plan) return plan.status();
//   auto workspace = tessera::Workspace::allocate(plan->workspace_bytes());
//   if (!workspace) return workspace.status();
//   tessera::Status done = plan->run({.q = q, .k = k, .v = v, .o = o}, *workspace);
#ifndef TESSERA_TESSERA_HPP
#define TESSERA_TESSERA_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "tessera/tessera.h"

namespace tessera {

// The outcome of a call: a TESSERA_* code and one line that names the argument, its value and what was expected.
class Status {
 public:
  Status() noexcept = default;
  Status(int32_t code, const char* message) noexcept {
    raw_.code = code;
    std::strncpy(raw_.message, message, sizeof raw_.message - 1);
  }
  bool ok() const noexcept { return raw_.code == TESSERA_OK; }
  int32_t code() const noexcept { return raw_.code; }
  const char* message() const noexcept { return raw_.message; }
  tessera_status* raw() noexcept { return &raw_; }

 private:
  tessera_status raw_{};
};

// A T, or the Status that says why there is none. Reading the T of a failed result is undefined, as with std::optional.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) noexcept : value_(std::move(value)) {}
  Result(const Status& status) noexcept : status_(status) {}
  bool ok() const noexcept { return value_.has_value(); }
  explicit operator bool() const noexcept { return ok(); }
  const Status& status() const noexcept { return status_; }
  T& operator*() & noexcept { return *value_; }
  const T& operator*() const& noexcept { return *value_; }
  T&& operator*() && noexcept { return *std::move(value_); }
  T* operator->() noexcept { return &*value_; }
  const T* operator->() const noexcept { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

namespace detail {

// Calls fill(buffer, capacity), which returns a length as snprintf does; "" when memory is short.
template <class Fill>
std::string read_text(Fill fill) noexcept {
  try {
    std::string text(fill(nullptr, 0), '\0');
    // The text is made anew and may have changed: never more than what fits.
    const size_t length = fill(text.data(), text.size() + 1);
    if (length < text.size()) text.resize(length);
    return text;
  } catch (...) {
    return {};
  }
}

}  // namespace detail

// Everything about a call but its pointers: tessera_problem with its defaults (forward, CPU, f32, batch 0, no band).
// Fields can be set directly; the setters only save typing. Checked as a whole by plan().
struct Problem : tessera_problem {
  Problem() noexcept { tessera_problem_init(this, sizeof(tessera_problem)); }
  explicit Problem(const tessera_problem& raw) noexcept : tessera_problem(raw) {}

  // A problem line, "fwd bf16 b4 hq32 hkv8 sq4096 d128 causal". INVALID_ARGUMENT names the word.
  static Result<Problem> parse(const char* text) noexcept {
    Problem problem;
    Status status;
    if (tessera_problem_parse(text, &problem, status.raw()) != TESSERA_OK) return status;
    return problem;
  }
  static Result<Problem> parse(const std::string& text) noexcept { return parse(text.c_str()); }
  // The canonical line.
  std::string format() const noexcept {
    return detail::read_text([&](char* text, size_t capacity) { return tessera_problem_format(this, text, capacity); });
  }

  // q's dtype; k, v, o and the gradients follow it where they are left 0.
  Problem& set_dtype(int32_t dtype) noexcept { return q.dtype = dtype, *this; }
  Problem& set_batch(int64_t count) noexcept { return batch = count, *this; }
  Problem& set_heads(int32_t queries, int32_t keys) noexcept { return heads_q = queries, heads_kv = keys, *this; }
  Problem& set_seqlen(int64_t queries, int64_t keys) noexcept { return seqlen_q = queries, seqlen_k = keys, *this; }
  Problem& set_head_dim(int32_t dim) noexcept { return set_head_dim(dim, dim); }
  Problem& set_head_dim(int32_t qk, int32_t of_v) noexcept { return head_dim_qk = qk, head_dim_v = of_v, *this; }
  Problem& set_causal() noexcept { return right = 0, *this; }
  // Keys that a query keeps to the left and right of its diagonal; -1: unbounded.
  Problem& set_window(int64_t to_left, int64_t to_right) noexcept { return left = to_left, right = to_right, *this; }
  Problem& set_flags(uint64_t bits) noexcept { return flags |= bits, *this; }
  // Name or glob of at most 63 characters; a longer one is refused by plan().
  Problem& set_kernel(const char* glob) noexcept { return std::strncpy(kernel, glob, sizeof kernel), *this; }
};

// The pointers of one run, in the order of tessera_tensors; see there for shapes and dtypes. Unused ones stay null.
struct Tensors {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void *o = nullptr, *lse = nullptr;
  const int32_t *cu_seqlens_q = nullptr, *cu_seqlens_k = nullptr, *seqused_q = nullptr, *seqused_k = nullptr;
  const int32_t *page_table = nullptr, *leftpad = nullptr, *batch_idx = nullptr;
  const float *alibi_slopes = nullptr, *sinks = nullptr;
  const float *q_scale = nullptr, *k_scale = nullptr, *v_scale = nullptr, *v_mean = nullptr;
  const void* bias = nullptr;
  const void *d_o = nullptr, *d_lse = nullptr;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr, *d_bias = nullptr;
  float* d_sinks = nullptr;
  const tessera_append_args* append = nullptr;

  tessera_tensors raw() const noexcept {
    return {sizeof(tessera_tensors),
            q,
            k,
            v,
            o,
            lse,
            cu_seqlens_q,
            cu_seqlens_k,
            seqused_q,
            seqused_k,
            page_table,
            leftpad,
            batch_idx,
            alibi_slopes,
            sinks,
            q_scale,
            k_scale,
            v_scale,
            v_mean,
            bias,
            d_o,
            d_lse,
            dq,
            dk,
            dv,
            d_bias,
            d_sinks,
            append};
  }
};

// How to run: a CUDA stream, or the caller's executor for the CPU; nothing: the default stream, the library's own pool.
struct Exec {
  Exec(void* stream = nullptr) noexcept : cuda_stream(stream) {}
  Exec(const tessera_executor& threads) noexcept : executor(&threads) {}
  tessera_exec raw() const noexcept { return {sizeof(tessera_exec), cuda_stream, executor}; }

  void* cuda_stream = nullptr;
  const tessera_executor* executor = nullptr;
};

// Somebody's memory: 256-byte aligned, busy until the run that was given it is done.
struct WorkspaceView {
  void* data = nullptr;
  size_t bytes = 0;
};

// Host memory for CPU plans, 256-byte aligned, freed with the object.
class Workspace {
 public:
  // OUT_OF_MEMORY where there is none. 0 bytes allocates nothing.
  static Result<Workspace> allocate(size_t bytes) noexcept {
    Workspace workspace;
    if (bytes == 0) return Result<Workspace>(std::move(workspace));  // nvcc moves no local by itself
    workspace.data_.reset(::operator new (bytes, std::align_val_t{kAlign}, std::nothrow));
    if (workspace.data_ == nullptr) return Status(TESSERA_OUT_OF_MEMORY, "no host memory for the workspace");
    workspace.bytes_ = bytes;
    return Result<Workspace>(std::move(workspace));
  }
  void* data() const noexcept { return data_.get(); }
  size_t bytes() const noexcept { return bytes_; }
  operator WorkspaceView() const noexcept { return {data(), bytes()}; }

 private:
  static constexpr size_t kAlign = 256;
  struct Free {
    void operator()(void* data) const noexcept { ::operator delete (data, std::align_val_t{kAlign}); }
  };
  std::unique_ptr<void, Free> data_;
  size_t bytes_ = 0;
};

// A chosen kernel and how it is launched. Immutable; any number of threads may run it, each with its own workspace.
class Plan {
 public:
  // Bytes of workspace that a run needs; 0: none.
  size_t workspace_bytes() const noexcept { return tessera_plan_workspace(plan_.get()); }
  const char* kernel() const noexcept { return tessera_plan_kernel(plan_.get()); }  // "cpu.avx2.forward"
  // How many rows before the chosen one refused, and why the first of them did ("" where none did).
  int passed_over() const noexcept { return tessera_plan_passed_over(plan_.get(), nullptr); }
  const char* first_reason() const noexcept {
    const char* reason = "";
    tessera_plan_passed_over(plan_.get(), &reason);
    return reason;
  }
  // In words, or as one JSON object.
  std::string explain(bool json = false) const noexcept {
    return detail::read_text(
        [&](char* text, size_t capacity) { return tessera_plan_explain(plan_.get(), json ? 1 : 0, text, capacity); });
  }
  // INVALID_ARGUMENT, WORKSPACE_TOO_SMALL or a device's error; then nothing was written.
  Status run(const Tensors& tensors, const WorkspaceView& workspace = {}, const Exec& exec = {}) const noexcept {
    Status status;
    const tessera_tensors raw_tensors = tensors.raw();
    const tessera_exec raw_exec = exec.raw();
    tessera_plan_run(plan_.get(), &raw_tensors, workspace.data, workspace.bytes, &raw_exec, status.raw());
    return status;
  }
  // Lengths, page tables, leftpad and batch_idx; blocks on CUDA.
  Status check_metadata(const Tensors& tensors, const Exec& exec = {}) const noexcept {
    Status status;
    const tessera_tensors raw_tensors = tensors.raw();
    const tessera_exec raw_exec = exec.raw();
    tessera_check_metadata(plan_.get(), &raw_tensors, &raw_exec, status.raw());
    return status;
  }
  const tessera_plan* raw() const noexcept { return plan_.get(); }

 private:
  friend Result<Plan> plan(const tessera_problem& problem) noexcept;
  struct Destroy {
    void operator()(tessera_plan* plan) const noexcept { tessera_plan_destroy(plan); }
  };
  std::unique_ptr<tessera_plan, Destroy> plan_;
};

// Validates and chooses a kernel. INVALID_ARGUMENT, UNSUPPORTED (with every row's reason) or NO_DEVICE.
inline Result<Plan> plan(const tessera_problem& problem) noexcept {
  Status status;
  tessera_plan* raw = nullptr;
  if (tessera_plan_create(&problem, &raw, status.raw()) != TESSERA_OK) return status;
  Plan made;
  made.plan_.reset(raw);
  return Result<Plan>(std::move(made));
}
// The same; a problem that could not be parsed passes its status on.
inline Result<Plan> plan(const Result<Problem>& problem) noexcept {
  if (!problem) return problem.status();
  return plan(*problem);
}

// OK, or the code that plan() would fail with; `reasons` says why, one line a kernel.
inline int32_t supports(const tessera_problem& problem, std::string* reasons = nullptr) noexcept {
  const int32_t code = tessera_supports(&problem, nullptr, 0);
  if (reasons == nullptr) return code;
  try {
    reasons->assign(8192, '\0');  // a hundred rows' lines
    tessera_supports(&problem, reasons->data(), reasons->size() + 1);
    reasons->resize(std::strlen(reasons->c_str()));
  } catch (...) {
    return TESSERA_OUT_OF_MEMORY;
  }
  return code;
}

// Partial states of the same queries over disjoint keys; see tessera_merge_args.
struct MergeArgs {
  int64_t states = 0, batch = 0, seqlen_q = 0;
  int32_t heads = 0, head_dim_v = 0, dtype = TESSERA_F32, out_dtype = TESSERA_F32, device = -1;
  const void *o = nullptr, *lse = nullptr;
  void *o_out = nullptr, *lse_out = nullptr;
  const void *d_o_out = nullptr, *d_lse_out = nullptr;
  void *d_o = nullptr, *d_lse = nullptr;

  tessera_merge_args raw() const noexcept {
    return {sizeof(tessera_merge_args),
            states,
            batch,
            seqlen_q,
            heads,
            head_dim_v,
            dtype,
            out_dtype,
            device,
            0,
            o,
            lse,
            o_out,
            lse_out,
            d_o_out,
            d_lse_out,
            d_o,
            d_lse};
  }
};
inline Status merge(const MergeArgs& args, const Exec& exec = {}) noexcept {
  Status status;
  const tessera_merge_args raw_args = args.raw();
  const tessera_exec raw_exec = exec.raw();
  tessera_merge(&raw_args, &raw_exec, status.raw());
  return status;
}
inline Status merge_backward(const MergeArgs& args, const Exec& exec = {}) noexcept {
  Status status;
  const tessera_merge_args raw_args = args.raw();
  const tessera_exec raw_exec = exec.raw();
  tessera_merge_backward(&raw_args, &raw_exec, status.raw());
  return status;
}

// New rows for a cache, with rotary embedding; see tessera_append_args.
struct AppendArgs {
  int64_t seqlen_new = 0, total_new = 0, rotary_seqlen = 0;
  int32_t rotary_dim = 0;
  bool rotary_interleaved = false;
  tessera_desc k_new{}, v_new{}, q_out{};
  const void *k_new_data = nullptr, *v_new_data = nullptr, *rotary_cos = nullptr, *rotary_sin = nullptr;
  const int32_t* cu_seqlens_new = nullptr;
  void *k_cache = nullptr, *v_cache = nullptr, *q_rotated = nullptr;

  // Also what Tensors::append points at, to append in the call that attends.
  tessera_append_args raw() const noexcept {
    return {sizeof(tessera_append_args),
            seqlen_new,
            total_new,
            rotary_seqlen,
            rotary_dim,
            rotary_interleaved ? 1 : 0,
            k_new,
            v_new,
            q_out,
            k_new_data,
            v_new_data,
            rotary_cos,
            rotary_sin,
            cu_seqlens_new,
            k_cache,
            v_cache,
            q_rotated};
  }
};
// INVALID_ARGUMENT or UNSUPPORTED; then nothing was written.
inline Status append(const tessera_problem& problem, const Tensors& tensors, const AppendArgs& args,
                     const Exec& exec = {}) noexcept {
  Status status;
  const tessera_tensors raw_tensors = tensors.raw();
  const tessera_append_args raw_args = args.raw();
  const tessera_exec raw_exec = exec.raw();
  tessera_append(&problem, &raw_tensors, &raw_args, &raw_exec, status.raw());
  return status;
}

// q, k or v to e4m3 or int8 with scales; see tessera_quantize_args.
struct QuantizeArgs {
  int64_t batch = 0, seqlen = 0, total = 0;
  uint64_t seed = 0;
  int32_t heads = 0, head_dim = 0, device = -1, layout = TESSERA_DENSE, scale_rows = 0, order = 0;
  bool hadamard = false, subtract_mean = false;
  tessera_desc x{}, y{}, scale{};
  const void* x_data = nullptr;
  const int32_t* cu_seqlens = nullptr;
  void* y_data = nullptr;
  float *scale_data = nullptr, *mean = nullptr;

  tessera_quantize_args raw() const noexcept {
    return {sizeof(tessera_quantize_args),
            batch,
            seqlen,
            total,
            seed,
            heads,
            head_dim,
            device,
            layout,
            scale_rows,
            order,
            hadamard ? 1 : 0,
            subtract_mean ? 1 : 0,
            x,
            y,
            scale,
            x_data,
            cu_seqlens,
            y_data,
            scale_data,
            mean};
  }
};
// INVALID_ARGUMENT, UNSUPPORTED or NO_DEVICE; then nothing was written.
inline Status quantize(const QuantizeArgs& args, const Exec& exec = {}) noexcept {
  Status status;
  const tessera_quantize_args raw_args = args.raw();
  const tessera_exec raw_exec = exec.raw();
  tessera_quantize(&raw_args, &raw_exec, status.raw());
  return status;
}

// What this machine has and which kernels it can run, in words or as JSON.
inline std::string devices(bool json = false) noexcept {
  return detail::read_text([&](char* text, size_t capacity) { return tessera_devices(json ? 1 : 0, text, capacity); });
}

}  // namespace tessera

#endif
