#include "layers.hpp"

#include <cuda_runtime.h>

#include <cmath>
#include <tuple>

#include "cuda_support.hpp"

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), int64_t blocks, cudaStream_t stream, Arguments... values) {
  const std::tuple<Parameters...> arguments{values...};
  std::apply(
      [&](const Parameters&... each) {
        void* pointers[] = {const_cast<Parameters*>(&each)...};
        check(cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), pointers, 0, stream),
              "cudaLaunchKernel");
      },
      arguments);
}

int64_t blocks_of(int64_t threads) { return (threads + kThreads - 1) / kThreads; }

__global__ void embed_kernel(const int32_t* tokens, const int32_t* positions, const __half* embedding,
                             const __half* position, int64_t count, int64_t dim, float* x) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x, row = at / dim, column = at % dim;
  if (row >= count) return;
  x[at] = __half2float(embedding[tokens[row] * dim + column]) + __half2float(position[positions[row] * dim + column]);
}

__device__ float sum_of_warp(float value) {
  for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_xor_sync(0xffffffffu, value, lanes);
  return value;
}

// A warp a row.
__global__ void normalize_kernel(const float* x, const float* gain, const float* bias, int64_t count, int64_t dim,
                                 __half* y) {
  const int lane = threadIdx.x % 32;
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (row >= count) return;
  x += row * dim, y += row * dim;
  float sum = 0, squares = 0;
  for (int64_t c = lane; c < dim; c += 32) sum += x[c];
  const float mean = sum_of_warp(sum) / static_cast<float>(dim);
  for (int64_t c = lane; c < dim; c += 32) squares += (x[c] - mean) * (x[c] - mean);
  const float deviation = sqrtf(sum_of_warp(squares) / static_cast<float>(dim) + 1e-5f);
  for (int64_t c = lane; c < dim; c += 32) y[c] = __float2half((x[c] - mean) / deviation * gain[c] + bias[c]);
}

__global__ void add_kernel(const float* product, const float* bias, int64_t count, int64_t dim, float* x) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at < count * dim) x[at] += product[at] + bias[at % dim];
}

__global__ void round_to_half_kernel(const float* product, const float* bias, bool gelu, int64_t count, int64_t dim,
                                     __half* y) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= count * dim) return;
  const float value = product[at] + bias[at % dim];
  y[at] = __float2half(gelu ? 0.5f * value * (1 + erff(value * 0.70710678f)) : value);
}

// A block a row. The best of equal ones is the first, as on the CPU.
struct Best {
  float logit;
  int32_t token;
};
__device__ Best better(Best a, Best b) {
  return b.logit > a.logit || (b.logit == a.logit && b.token < a.token) ? b : a;
}
__device__ Best best_of_warp(Best best) {
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    const float logit = __shfl_xor_sync(0xffffffffu, best.logit, lanes);
    best = better(best, {logit, __shfl_xor_sync(0xffffffffu, best.token, lanes)});
  }
  return best;
}
__global__ void choose_kernel(const float* logits, const int32_t* controls, int64_t controls_count, int64_t vocabulary,
                              int32_t* tokens, int32_t* lengths) {
  __shared__ Best found[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const float* row = logits + blockIdx.x * vocabulary;
  Best best{-INFINITY, 0};
  for (int64_t token = threadIdx.x; token < vocabulary; token += kThreads) {
    bool control = false;
    for (int64_t n = 0; n < controls_count; ++n) control = control || controls[n] == token;
    if (!control) best = better(best, {row[token], static_cast<int32_t>(token)});
  }
  best = best_of_warp(best);
  if (lane == 0) found[warp] = best;
  __syncthreads();
  if (warp > 0) return;
  best = best_of_warp(found[lane % kWarps]);
  if (lane == 0) tokens[blockIdx.x] = best.token, ++lengths[blockIdx.x];
}

}  // namespace

void embed(const int32_t* tokens, const int32_t* positions, const __half* embedding, const __half* position,
           int64_t count, int64_t dim, float* x, cudaStream_t stream) {
  launch(embed_kernel, blocks_of(count * dim), stream, tokens, positions, embedding, position, count, dim, x);
}

void normalize(const float* x, const float* gain, const float* bias, int64_t count, int64_t dim, __half* y,
               cudaStream_t stream) {
  launch(normalize_kernel, blocks_of(32 * count), stream, x, gain, bias, count, dim, y);
}

void add(const float* product, const float* bias, int64_t count, int64_t dim, float* x, cudaStream_t stream) {
  launch(add_kernel, blocks_of(count * dim), stream, product, bias, count, dim, x);
}

void round_to_half(const float* product, const float* bias, bool gelu, int64_t count, int64_t dim, __half* y,
                   cudaStream_t stream) {
  launch(round_to_half_kernel, blocks_of(count * dim), stream, product, bias, gelu, count, dim, y);
}

void choose(const float* logits, const int32_t* controls, int64_t controls_count, int64_t count, int64_t vocabulary,
            int32_t* tokens, int32_t* lengths, cudaStream_t stream) {
  launch(choose_kernel, count, stream, logits, controls, controls_count, vocabulary, tokens, lengths);
}
