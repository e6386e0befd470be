// The softmax of the textbook: three passes over a row of S in device memory.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda_textbook.hpp"
#include "semantics.hpp"

namespace tessera::baselines {
namespace {

constexpr int kThreads = 256;

template <class Combine>
__device__ float reduce_block(float value, Combine combine) {
  __shared__ float shared[kThreads];
  __syncthreads();
  shared[threadIdx.x] = value;
  for (int width = kThreads / 2; width > 0; width /= 2) {
    __syncthreads();
    if (threadIdx.x < width) shared[threadIdx.x] = combine(shared[threadIdx.x], shared[threadIdx.x + width]);
  }
  __syncthreads();
  return shared[0];
}

__global__ void __launch_bounds__(kThreads) softmax_kernel(const __grid_constant__ SoftmaxParams p) {
  const core::Band band = core::make_band(p.seqlen_q, p.seqlen_k, p.left, p.right, p.top_left);
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const int64_t query = row % p.seqlen_q, head_batch = row / p.seqlen_q;
    const int64_t head = head_batch % p.heads_q, batch = head_batch / p.heads_q;
    const float slope = p.alibi_slopes != nullptr ? p.alibi_slopes[batch * p.alibi_stride + head] : 0.0f;
    const float* scores = p.scores + row * p.seqlen_k;
    const auto score = [&](int64_t key) {
      if (!band.keeps(query, key)) return -INFINITY;
      float x = scores[key] * p.scale;
      if (p.softcap > 0.0f) x = core::apply_softcap(x, p.softcap);
      if (p.alibi_slopes != nullptr) x += core::alibi_bias(slope, band.diagonal(query), key);
      return x;
    };
    const float sink = p.sinks != nullptr ? p.sinks[head] : -INFINITY;
    float maximum = sink, sum = 0.0f;
    for (int64_t key = threadIdx.x; key < p.seqlen_k; key += kThreads) maximum = fmaxf(maximum, score(key));
    maximum = reduce_block(maximum, [](float a, float b) { return fmaxf(a, b); });
    const float base = maximum == -INFINITY ? 0.0f : maximum;
    for (int64_t key = threadIdx.x; key < p.seqlen_k; key += kThreads) sum += expf(score(key) - base);
    sum = reduce_block(sum, [](float a, float b) { return a + b; }) + expf(sink - base);
    const float lse = sum == 0.0f ? -INFINITY : base + logf(sum);
    if (p.lse != nullptr && threadIdx.x == 0) p.lse[row] = lse;
    for (int64_t key = threadIdx.x; key < p.seqlen_k; key += kThreads) {
      const float prob = sum == 0.0f ? 0.0f : expf(score(key) - base) / sum;
      if (p.bf16) {
        static_cast<__nv_bfloat16*>(p.probs)[row * p.seqlen_k + key] = __float2bfloat16(prob);
      } else {
        static_cast<__half*>(p.probs)[row * p.seqlen_k + key] = __float2half(prob);
      }
    }
  }
}

}  // namespace

cudaError_t launch_softmax(const SoftmaxParams& params, cudaStream_t stream) {
  constexpr int64_t kMostBlocks = 1 << 20;
  const auto blocks = static_cast<unsigned>(params.rows < kMostBlocks ? params.rows : kMostBlocks);
  void* arguments[] = {const_cast<SoftmaxParams*>(&params)};
  return cudaLaunchKernel(reinterpret_cast<const void*>(softmax_kernel), dim3(blocks), dim3(kThreads), arguments, 0,
                          stream);
}

}  // namespace tessera::baselines
