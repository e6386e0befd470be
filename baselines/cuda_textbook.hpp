// cuda.textbook: attention by its definition on the GPU. S = q k^T by cuBLAS in float32, a softmax kernel that writes P
// in the inputs' type, o = P v by cuBLAS; S and P lie whole in device memory, 6 bytes a pair of query and key.
#pragma once

#include <cuda_runtime_api.h>

#include "kernel_entry.hpp"

namespace tessera::baselines {

core::Refusal refuse_cuda_textbook(const core::Problem& problem, const core::DeviceInfo& device);
core::Launch configure_cuda_textbook(const core::Problem& problem, const core::DeviceInfo& device);
int prepare_cuda_textbook(const core::Plan& plan, tessera_status* status);
int run_cuda_textbook(const core::Plan& plan, const core::RunContext& context);

// Softmax of one row a block: scores [rows, seqlen_k] -> probs, lse [rows] (null: not wanted).
struct SoftmaxParams {
  const float* scores;
  void* probs;
  float* lse;
  const float *alibi_slopes, *sinks;
  int64_t rows, seqlen_q, seqlen_k, alibi_stride, left, right;
  int32_t heads_q;
  float scale, softcap;
  bool top_left, bf16;
};
cudaError_t launch_softmax(const SoftmaxParams& params, cudaStream_t stream);

}  // namespace tessera::baselines
