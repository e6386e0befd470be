// Runs of cuda.textbook: the order of products and kernels, and where their operands lie.
#include "cuda_textbook.hpp"

#include "cuda_blas.hpp"
#include "status.hpp"

namespace tessera::baselines {
namespace {

using core::Operand;
using core::Problem;

int64_t rows_of(const Problem& p) { return p.batch * p.heads_q * p.seqlen_q; }

// The products of one batch row and key/value head (group 1: of all heads at once).
struct Slice {
  int64_t batch, head_kv, head, count;
};

// One run: the products and kernels of a pass in order on a stream. Members return a status code.
class Run {
 public:
  Run(const Problem& problem, const core::RunContext& context)
      : p_(problem),
        t_(*context.tensors),
        workspace_(context.workspace),
        at_(lay_out_textbook(problem)),
        stream_(static_cast<cudaStream_t>(context.cuda_stream)),
        status_(context.status),
        blas_(problem.device, stream_) {}

  int forward(bool with_lse) const {
    ScoreParams scores = score_params();
    scores.lse = with_lse ? static_cast<float*>(t_.lse) : nullptr;
    int code = multiply_scores();
    if (code == TESSERA_OK) code = check(launch_softmax(scores, stream_));
    return code == TESSERA_OK ? multiply_values() : code;
  }

  // P from the given lse, so that a lse merged over several calls gives their common gradient.
  int recompute_probs() const {
    if (const int code = multiply_scores()) return code;
    return check(launch_probs(score_params(), stream_));
  }

  // With P in the workspace, and S under a softcap.
  int backward() const {
    const float* delta = float_at(at_.delta);
    const ScoreParams scores = score_params();
    if (const int code = check(launch_delta(delta_params(), stream_))) return code;
    if (p_.has(TESSERA_FLAG_D_SINKS)) {
      if (const int code = check(launch_d_sinks(scores, delta, p_.batch, t_.d_sinks, stream_))) return code;
    }
    if (const int code = multiply_keys(p_.d_o, t_.d_o, p_.dv, t_.dv, at_.dv, p_.head_dim_v, 1.0f)) return code;
    if (const int code = multiply_d_probs()) return code;
    if (const int code = check(launch_d_scores(scores, float_at(at_.d_probs), delta, stream_))) return code;
    if (const int code = multiply_d_queries()) return code;
    return multiply_keys(p_.q, t_.q, p_.dk, t_.dk, at_.dk, p_.head_dim_qk, static_cast<float>(p_.scale));
  }

 private:
  int check(cudaError_t error) const {
    if (error == cudaSuccess) return TESSERA_OK;
    return core::fail(status_, TESSERA_DEVICE_ERROR, "cuda.textbook: %s", cudaGetErrorString(error));
  }
  float* float_at(int64_t offset) const { return reinterpret_cast<float*>(workspace_ + offset); }

  Factor queries(const Operand& x, const void* data, const Slice& s) const {
    const int64_t first = s.batch * x.batch_stride + s.head * x.head_stride;
    return {static_cast<const std::byte*>(data) + 2 * first, x.head_stride, x.row_stride, false};
  }
  Factor keys(const Operand& x, const void* data, const Slice& s, bool transposed) const {
    const int64_t first = s.batch * x.batch_stride + s.head_kv * x.head_stride;
    return {static_cast<const std::byte*>(data) + 2 * first, p_.group == 1 ? x.head_stride : 0, x.row_stride,
            transposed};
  }
  int64_t matrix(const Slice& s) const { return (s.batch * p_.heads_q + s.head) * p_.seqlen_q * p_.seqlen_k; }
  Factor probs(const Slice& s, bool transposed) const {
    return {workspace_ + at_.probs + 2 * matrix(s), p_.seqlen_q * p_.seqlen_k, p_.seqlen_k, transposed};
  }
  Result float_matrix(int64_t offset, const Slice& s) const {
    return {float_at(offset) + matrix(s), p_.seqlen_q * p_.seqlen_k, p_.seqlen_k, TESSERA_F32};
  }
  Result result(const Operand& x, void* data, const Slice& s) const {
    const int64_t first = s.batch * x.batch_stride + s.head * x.head_stride, width = x.dtype == TESSERA_F32 ? 4 : 2;
    return {static_cast<std::byte*>(data) + width * first, x.head_stride, x.row_stride, x.dtype};
  }

  template <class Make>
  int for_slices(Make make) const {
    const int64_t slices = p_.group == 1 ? 1 : p_.heads_kv;
    for (int64_t batch = 0; batch < p_.batch; ++batch) {
      for (int64_t head_kv = 0; head_kv < slices; ++head_kv) {
        const Slice slice{batch, head_kv, head_kv * p_.group, p_.group == 1 ? p_.heads_q : p_.group};
        if (const int code = blas_.multiply(make(slice), status_)) return code;
      }
    }
    return TESSERA_OK;
  }

  // S = q k^T
  int multiply_scores() const {
    return for_slices([&](const Slice& s) {
      return Product{queries(p_.q, t_.q, s),
                     keys(p_.k, t_.k, s, true),
                     float_matrix(at_.scores, s),
                     p_.seqlen_q,
                     p_.seqlen_k,
                     p_.head_dim_qk,
                     s.count,
                     p_.q.dtype};
    });
  }
  // o = P v
  int multiply_values() const {
    return for_slices([&](const Slice& s) {
      return Product{probs(s, false),
                     keys(p_.v, t_.v, s, false),
                     result(p_.o, t_.o, s),
                     p_.seqlen_q,
                     int64_t{p_.head_dim_v},
                     p_.seqlen_k,
                     s.count,
                     p_.q.dtype};
    });
  }
  // dP = d_o v^T
  int multiply_d_probs() const {
    return for_slices([&](const Slice& s) {
      return Product{queries(p_.d_o, t_.d_o, s),
                     keys(p_.v, t_.v, s, true),
                     float_matrix(at_.d_probs, s),
                     p_.seqlen_q,
                     p_.seqlen_k,
                     p_.head_dim_v,
                     s.count,
                     p_.q.dtype};
    });
  }
  // dq = scale dS k
  int multiply_d_queries() const {
    return for_slices([&](const Slice& s) {
      return Product{probs(s, false),
                     keys(p_.k, t_.k, s, false),
                     result(p_.dq, t_.dq, s),
                     p_.seqlen_q,
                     p_.head_dim_qk,
                     p_.seqlen_k,
                     s.count,
                     p_.q.dtype,
                     static_cast<float>(p_.scale)};
    });
  }
  // dv = P^T d_o or dk = scale dS^T q: into `out` where every head has keys of its own, else as float32 sums of a head
  // each at `sums`, then their sum over the group.
  int multiply_keys(const Operand& x, const void* data, const Operand& out, void* out_data, int64_t sums, int32_t dim,
                    float scale) const {
    const int64_t head = p_.seqlen_k * dim;
    for (int64_t batch = 0; batch < p_.batch; ++batch) {
      const Slice all{batch, 0, 0, p_.heads_q};
      const Result target = p_.group == 1 ? result(out, out_data, all)
                                          : Result{float_at(sums) + batch * p_.heads_q * head, head, dim, TESSERA_F32};
      const Product product{
          probs(all, true), queries(x, data, all), target, p_.seqlen_k, dim, p_.seqlen_q, all.count, p_.q.dtype, scale};
      if (const int code = blas_.multiply(product, status_)) return code;
    }
    if (p_.group == 1) return TESSERA_OK;
    GroupSumParams params{};
    params.sums = float_at(sums);
    params.out = out_data;
    params.batch = p_.batch;
    params.keys = p_.seqlen_k;
    params.stride[0] = out.batch_stride;
    params.stride[1] = out.head_stride;
    params.stride[2] = out.row_stride;
    params.heads_kv = p_.heads_kv;
    params.group = p_.group;
    params.dim = dim;
    params.out_is_float = out.dtype == TESSERA_F32;
    params.bf16 = out.dtype == TESSERA_BF16;
    return check(launch_group_sum(params, stream_));
  }

  ScoreParams score_params() const {
    ScoreParams out{};
    out.scores = float_at(at_.scores);
    out.probs = workspace_ + at_.probs;
    out.lse = static_cast<float*>(t_.lse);
    out.alibi_slopes = p_.has(TESSERA_FLAG_ALIBI) ? t_.alibi_slopes : nullptr;
    out.sinks = p_.has(TESSERA_FLAG_SINKS) ? t_.sinks : nullptr;
    out.rows = rows_of(p_);
    out.seqlen_q = p_.seqlen_q;
    out.seqlen_k = p_.seqlen_k;
    out.alibi_stride = p_.alibi_stride;
    out.left = p_.left;
    out.right = p_.right;
    out.heads_q = p_.heads_q;
    out.scale = static_cast<float>(p_.scale);
    out.softcap = static_cast<float>(p_.softcap);
    out.top_left = p_.top_left;
    out.bf16 = p_.q.dtype == TESSERA_BF16;
    return out;
  }

  DeltaParams delta_params() const {
    DeltaParams out{};
    out.o = t_.o;
    out.d_o = t_.d_o;
    out.d_lse = p_.has(TESSERA_FLAG_D_LSE) ? static_cast<const float*>(t_.d_lse) : nullptr;
    out.delta = float_at(at_.delta);
    out.rows = rows_of(p_);
    out.seqlen_q = p_.seqlen_q;
    const auto copy = [](const Operand& x, int64_t* stride) {
      stride[0] = x.batch_stride;
      stride[1] = x.head_stride;
      stride[2] = x.row_stride;
    };
    copy(p_.o, out.o_stride);
    copy(p_.d_o, out.d_o_stride);
    out.heads_q = p_.heads_q;
    out.dim = p_.head_dim_v;
    out.o_is_float = p_.o.dtype == TESSERA_F32;
    out.bf16 = p_.q.dtype == TESSERA_BF16;
    return out;
  }

  const Problem& p_;
  const tessera_tensors& t_;
  std::byte* workspace_;
  const TextbookWorkspace at_;
  cudaStream_t stream_;
  tessera_status* status_;
  const CublasRun blas_;
};

}  // namespace

int run_cuda_textbook(const core::Plan& plan, const core::RunContext& context) {
  const Run run(plan.problem, context);
  if (plan.problem.pass == TESSERA_FORWARD) return run.forward(plan.problem.has(TESSERA_FLAG_LSE));
  const int code = run.recompute_probs();
  return code == TESSERA_OK ? run.backward() : code;
}

int run_textbook_step(const core::Plan& plan, const core::RunContext& context) {
  const Run run(plan.problem, context);
  const int code = run.forward(true);
  return code == TESSERA_OK ? run.backward() : code;
}

}  // namespace tessera::baselines
