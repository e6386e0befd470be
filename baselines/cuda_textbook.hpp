// cuda.textbook: attention by its definition on the GPU, products by cuBLAS, everything of N^2 elements whole in device
// memory. Forward: S = q k^T in float32, a softmax kernel that writes P in the inputs' type, o = P v. Backward: P from
// S and lse, dv = P^T d_o, dP = d_o v^T over S, dS over P, dq = dS k, dk = dS^T q. 6 bytes a pair of query and key, 10
// in backward with a softcap, whose derivative reads S again.
#pragma once

#include <cuda_runtime_api.h>

#include "kernel_entry.hpp"

namespace tessera::baselines {

core::Refusal refuse_cuda_textbook(const core::Problem& problem, const core::DeviceInfo& device);
core::Launch configure_cuda_textbook(const core::Problem& problem, const core::DeviceInfo& device);
int prepare_cuda_textbook(const core::Plan& plan, tessera_status* status);
int run_cuda_textbook(const core::Plan& plan, const core::RunContext& context);
inline constexpr core::KernelEntry kCudaTextbook{
    "cuda.textbook", refuse_cuda_textbook, configure_cuda_textbook, run_cuda_textbook, true, prepare_cuda_textbook};

// A backward problem's forward and backward pass in one run, as training does them: P is kept between, so S is computed
// once, and o and lse are written, not read. Six products for the row's two and five. Therefore no row of kernels().
core::Refusal refuse_textbook_step(const core::Problem& problem, const core::DeviceInfo& device);
core::Launch configure_textbook_step(const core::Problem& problem, const core::DeviceInfo& device);
int run_textbook_step(const core::Plan& plan, const core::RunContext& context);
inline constexpr core::KernelEntry kTextbookStep{
    "cuda.textbook.step", refuse_textbook_step, configure_textbook_step, run_textbook_step, true,
    prepare_cuda_textbook};

// Where each piece of the workspace begins, in bytes. What a pass does not need is empty.
struct TextbookWorkspace {
  int64_t scores;   // float32 [batch, heads_q, seqlen_q, seqlen_k]
  int64_t probs;    // of q's type; dS takes its place
  int64_t d_probs;  // float32; in place of the scores where no softcap reads them again
  int64_t delta;    // float32 [batch, heads_q, seqlen_q]
  int64_t dk, dv;   // float32 [batch, heads_q, seqlen_k, dim], to be summed over the heads of a group
  int64_t bytes;
};
TextbookWorkspace lay_out_textbook(const core::Problem& problem);

// Scores before and after the row-wise steps. Rows are [batch, heads_q, seqlen_q].
struct ScoreParams {
  const float* scores;  // [rows, seqlen_k], without the scale
  void* probs;          // [rows, seqlen_k]
  float* lse;           // [rows]; the softmax writes it (null: not wanted), probabilities from lse read it
  const float *alibi_slopes, *sinks;
  int64_t rows, seqlen_q, seqlen_k, alibi_stride, left, right;
  int32_t heads_q;
  float scale, softcap;
  bool top_left, bf16;
};
// Softmax of one row a block: scores -> probs, lse.
cudaError_t launch_softmax(const ScoreParams& params, cudaStream_t stream);
// scores, lse -> probs.
cudaError_t launch_probs(const ScoreParams& params, cudaStream_t stream);

struct DeltaParams {
  const void *o, *d_o;
  const float* d_lse;  // [rows]; null: zero
  float* delta;        // [rows]
  int64_t rows, seqlen_q;
  int64_t o_stride[3], d_o_stride[3];  // batch, head, row
  int32_t heads_q, dim;
  bool o_is_float, bf16;
};
// delta = rowsum(d_o o) - d_lse, one row a warp.
cudaError_t launch_delta(const DeltaParams& params, cudaStream_t stream);
// dS = P (dP - delta), times the softcap's derivative, over s.probs; one row a block.
cudaError_t launch_d_scores(const ScoreParams& s, const float* d_probs, const float* delta, cudaStream_t stream);
// d_sinks [heads_q] = -sum over a head's rows of exp(sink - lse) delta.
cudaError_t launch_d_sinks(const ScoreParams& s, const float* delta, int64_t batch, float* d_sinks,
                           cudaStream_t stream);

// out [batch, heads_kv, keys, dim], by strides of batch, head and row, from sums [batch, heads_kv, group, keys, dim].
struct GroupSumParams {
  const float* sums;
  void* out;
  int64_t batch, keys, stride[3];
  int32_t heads_kv, group, dim;
  bool out_is_float, bf16;
};
cudaError_t launch_group_sum(const GroupSumParams& params, cudaStream_t stream);

}  // namespace tessera::baselines
