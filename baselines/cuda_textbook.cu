// What the textbook does between its products: rows of S, P, dP and dS in device memory, and sums of rows.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "cuda_textbook.hpp"
#include "semantics.hpp"

namespace tessera::baselines {
namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr int64_t kMostBlocks = 1 << 20;

__device__ float load_narrow(const void* data, int64_t at, bool bf16) {
  return bf16 ? __bfloat162float(static_cast<const __nv_bfloat16*>(data)[at])
              : __half2float(static_cast<const __half*>(data)[at]);
}
__device__ void store_narrow(void* data, int64_t at, bool bf16, float value) {
  if (bf16) {
    static_cast<__nv_bfloat16*>(data)[at] = __float2bfloat16(value);
  } else {
    static_cast<__half*>(data)[at] = __float2half(value);
  }
}

template <class T, class Combine>
__device__ T reduce_block(T value, Combine combine) {
  __shared__ T shared[kThreads];
  __syncthreads();
  shared[threadIdx.x] = value;
  for (unsigned width = kThreads / 2; width > 0; width /= 2) {
    __syncthreads();
    if (threadIdx.x < width) shared[threadIdx.x] = combine(shared[threadIdx.x], shared[threadIdx.x + width]);
  }
  __syncthreads();
  return shared[0];
}

// One row's scores, as the definition turns the products into them.
struct Row {
  const ScoreParams& p;
  core::Band band;
  int64_t query, head;
  const float* scores;
  float slope;

  __device__ Row(const ScoreParams& params, int64_t row)
      : p(params), band(core::make_band(p.seqlen_q, p.seqlen_k, p.left, p.right, p.top_left)), query(row % p.seqlen_q) {
    const int64_t head_batch = row / p.seqlen_q, batch = head_batch / p.heads_q;
    head = head_batch % p.heads_q;
    scores = p.scores + row * p.seqlen_k;
    slope = p.alibi_slopes != nullptr ? p.alibi_slopes[batch * p.alibi_stride + head] : 0.0f;
  }
  __device__ float capped(int64_t key) const {
    const float x = scores[key] * p.scale;
    return p.softcap > 0.0f ? core::apply_softcap(x, p.softcap) : x;
  }
  __device__ float score(int64_t key) const {
    if (!band.keeps(query, key)) return -INFINITY;
    const float x = capped(key);
    return p.alibi_slopes != nullptr ? x + core::alibi_bias(slope, band.diagonal(query), key) : x;
  }
};

__global__ void __launch_bounds__(kThreads) softmax_kernel(const __grid_constant__ ScoreParams p) {
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const Row at(p, row);
    const float sink = p.sinks != nullptr ? p.sinks[at.head] : -INFINITY;
    float maximum = sink, sum = 0.0f;
    for (int64_t key = threadIdx.x; key < p.seqlen_k; key += kThreads) maximum = fmaxf(maximum, at.score(key));
    maximum = reduce_block(maximum, [](float a, float b) { return fmaxf(a, b); });
    const float base = maximum == -INFINITY ? 0.0f : maximum;
    for (int64_t key = threadIdx.x; key < p.seqlen_k; key += kThreads) sum += expf(at.score(key) - base);
    sum = reduce_block(sum, [](float a, float b) { return a + b; }) + expf(sink - base);
    const float lse = sum == 0.0f ? -INFINITY : base + logf(sum);
    if (p.lse != nullptr && threadIdx.x == 0) p.lse[row] = lse;
    for (int64_t key = threadIdx.x; key < p.seqlen_k; key += kThreads) {
      const float prob = sum == 0.0f ? 0.0f : expf(at.score(key) - base) / sum;
      store_narrow(p.probs, row * p.seqlen_k + key, p.bf16, prob);
    }
  }
}

__global__ void __launch_bounds__(kThreads) probs_kernel(const __grid_constant__ ScoreParams p) {
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const Row at(p, row);
    const float lse = p.lse[row];
    for (int64_t key = threadIdx.x; key < p.seqlen_k; key += kThreads) {
      // A rounded lse must not make a probability more than 1.
      const float prob = lse == -INFINITY ? 0.0f : expf(fminf(at.score(key) - lse, 0.0f));
      store_narrow(p.probs, row * p.seqlen_k + key, p.bf16, prob);
    }
  }
}

__global__ void __launch_bounds__(kThreads) delta_kernel(const __grid_constant__ DeltaParams p) {
  const int64_t warps = int64_t{gridDim.x} * (kThreads / kWarp);
  for (int64_t row = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp; row < p.rows; row += warps) {
    const int64_t query = row % p.seqlen_q, head_batch = row / p.seqlen_q;
    const int64_t head = head_batch % p.heads_q, batch = head_batch / p.heads_q;
    const int64_t o = batch * p.o_stride[0] + head * p.o_stride[1] + query * p.o_stride[2];
    const int64_t d_o = batch * p.d_o_stride[0] + head * p.d_o_stride[1] + query * p.d_o_stride[2];
    float sum = 0.0f;
    for (int c = threadIdx.x % kWarp; c < p.dim; c += kWarp) {
      const float value = p.o_is_float ? static_cast<const float*>(p.o)[o + c] : load_narrow(p.o, o + c, p.bf16);
      sum = fmaf(load_narrow(p.d_o, d_o + c, p.bf16), value, sum);
    }
    for (int lane = 1; lane < kWarp; lane *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lane);
    if (threadIdx.x % kWarp == 0) p.delta[row] = p.d_lse != nullptr ? sum - p.d_lse[row] : sum;
  }
}

__global__ void __launch_bounds__(kThreads)
    d_scores_kernel(const __grid_constant__ ScoreParams p, const float* d_probs, const float* deltas) {
  constexpr int kTogether = 4;  // loads in flight; dS over P keeps the compiler from hoisting them itself
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const Row at(p, row);
    const int64_t first = row * p.seqlen_k;
    const float delta = deltas[row];
    for (int64_t begin = threadIdx.x; begin < p.seqlen_k; begin += kTogether * kThreads) {
      float prob[kTogether], d_prob[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int64_t key = begin + i * kThreads;
        prob[i] = key < p.seqlen_k ? load_narrow(p.probs, first + key, p.bf16) : 0.0f;
        d_prob[i] = key < p.seqlen_k ? d_probs[first + key] : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int64_t key = begin + i * kThreads;
        if (key >= p.seqlen_k) break;
        // 0 also where a key that the row does not see made dP infinite.
        float d_score = prob[i] == 0.0f ? 0.0f : prob[i] * (d_prob[i] - delta);
        if (p.softcap > 0.0f) d_score *= core::softcap_derivative(at.capped(key), p.softcap);
        store_narrow(p.probs, first + key, p.bf16, d_score);
      }
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    d_sinks_kernel(const __grid_constant__ ScoreParams p, const float* deltas, int64_t batch, float* d_sinks) {
  const float sink = p.sinks[blockIdx.x];
  double sum = 0.0;
  for (int64_t i = threadIdx.x; i < batch * p.seqlen_q; i += kThreads) {
    const int64_t row = (i / p.seqlen_q * p.heads_q + blockIdx.x) * p.seqlen_q + i % p.seqlen_q;
    if (sink != -INFINITY) sum -= expf(fminf(sink - p.lse[row], 0.0f)) * deltas[row];
  }
  sum = reduce_block(sum, [](double a, double b) { return a + b; });
  if (threadIdx.x == 0) d_sinks[blockIdx.x] = static_cast<float>(sum);
}

__global__ void __launch_bounds__(kThreads) group_sum_kernel(const __grid_constant__ GroupSumParams p) {
  const int64_t head_size = p.keys * p.dim, count = p.batch * p.heads_kv * head_size;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += int64_t{gridDim.x} * kThreads) {
    const int64_t within = i % head_size, head_batch = i / head_size;
    const float* sums = p.sums + head_batch * p.group * head_size + within;
    float sum = 0.0f;
    for (int g = 0; g < p.group; ++g) sum += sums[g * head_size];
    const int64_t out = head_batch / p.heads_kv * p.stride[0] + head_batch % p.heads_kv * p.stride[1] +
                        within / p.dim * p.stride[2] + within % p.dim;
    if (p.out_is_float) {
      static_cast<float*>(p.out)[out] = sum;
    } else {
      store_narrow(p.out, out, p.bf16, sum);
    }
  }
}

template <class... Arguments>
cudaError_t launch(void (*kernel)(Arguments...), int64_t blocks, cudaStream_t stream,
                   const std::type_identity_t<Arguments>&... arguments) {
  void* pointers[] = {const_cast<void*>(static_cast<const void*>(&arguments))...};
  const auto count = static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks);
  return cudaLaunchKernel(kernel, dim3(count), dim3(kThreads), pointers, 0, stream);
}

int64_t blocks_for(int64_t threads) { return (threads + kThreads - 1) / kThreads; }

}  // namespace

cudaError_t launch_softmax(const ScoreParams& params, cudaStream_t stream) {
  return launch(softmax_kernel, params.rows, stream, params);
}

cudaError_t launch_probs(const ScoreParams& params, cudaStream_t stream) {
  return launch(probs_kernel, params.rows, stream, params);
}

cudaError_t launch_delta(const DeltaParams& params, cudaStream_t stream) {
  return launch(delta_kernel, blocks_for(params.rows * kWarp), stream, params);
}

cudaError_t launch_d_scores(const ScoreParams& s, const float* d_probs, const float* delta, cudaStream_t stream) {
  return launch(d_scores_kernel, s.rows, stream, s, d_probs, delta);
}

cudaError_t launch_d_sinks(const ScoreParams& s, const float* delta, int64_t batch, float* d_sinks,
                           cudaStream_t stream) {
  return launch(d_sinks_kernel, s.heads_q, stream, s, delta, batch, d_sinks);
}

cudaError_t launch_group_sum(const GroupSumParams& params, cudaStream_t stream) {
  return launch(group_sum_kernel, blocks_for(params.batch * params.heads_kv * params.keys * params.dim), stream,
                params);
}

}  // namespace tessera::baselines
