// Reads of 16 bytes a thread, from shared memory and from device memory. What is read is added up, so that it must be,
// in few enough instructions to hide: four beside a load that takes a multiprocessor's shared memory four cycles.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "cuda_bandwidth.hpp"

namespace tessera::baselines {
namespace {

constexpr int kThreads = 1024, kBlocksPerUnit = 2, kLaunches = 8;
constexpr int kChunks = 2048;  // 32 KB a block
constexpr int kRounds = 8192, kAhead = 8;
constexpr int64_t kDeviceChunks = int64_t{1} << 26;  // 1 GiB

__device__ __forceinline__ void add(uint4& sum, const uint4& x) {
  sum.x ^= x.x;
  sum.y ^= x.y;
  sum.z ^= x.z;
  sum.w ^= x.w;
}
// Never true of the zeros that are read; the compiler does not know.
__device__ __forceinline__ void use(const uint4& sum, uint4* sink) {
  if ((sum.x | sum.y | sum.z | sum.w) != 0) *sink = sum;
}

__global__ void __launch_bounds__(kThreads, kBlocksPerUnit) read_shared(const uint4* from, uint4* sink, int rounds) {
  __shared__ uint4 tile[kChunks];
  for (int i = static_cast<int>(threadIdx.x); i < kChunks; i += kThreads) tile[i] = from[i];
  __syncthreads();
  uint4 sum = make_uint4(0, 0, 0, 0);
  // Neighbours read neighbouring chunks: no bank conflicts. The place moves, so no read is another's.
  uint32_t at = threadIdx.x;
  for (int round = 0; round < rounds; round += kAhead) {
#pragma unroll
    for (uint32_t i = 0; i < kAhead; ++i) add(sum, tile[(at + i * 32) % kChunks]);
    at += 40;
  }
  use(sum, sink);
}

__global__ void __launch_bounds__(kThreads, kBlocksPerUnit) read_device(const uint4* from, uint4* sink, int64_t count) {
  uint4 sum = make_uint4(0, 0, 0, 0);
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (; at + (kAhead - 1) * stride < count; at += kAhead * stride) {
    uint4 ahead[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) ahead[i] = from[at + i * stride];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) add(sum, ahead[i]);
  }
  for (; at < count; at += stride) add(sum, from[at]);
  use(sum, sink);
}

// Seconds of the fastest of kLaunches.
template <class Launch>
cudaError_t time_launches(Launch launch, double* seconds) {
  cudaEvent_t begin = nullptr, end = nullptr;
  cudaError_t error = cudaEventCreate(&begin);
  if (error == cudaSuccess) error = cudaEventCreate(&end);
  *seconds = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kLaunches && error == cudaSuccess; ++i) {
    float milliseconds = 0;
    error = cudaEventRecord(begin);
    if (error == cudaSuccess) error = launch();
    if (error == cudaSuccess) error = cudaEventRecord(end);
    if (error == cudaSuccess) error = cudaEventSynchronize(end);
    if (error == cudaSuccess) error = cudaEventElapsedTime(&milliseconds, begin, end);
    *seconds = std::min(*seconds, milliseconds * 1e-3);
  }
  if (begin != nullptr) cudaEventDestroy(begin);
  if (end != nullptr) cudaEventDestroy(end);
  return error;
}

cudaError_t measure(uint4* memory, int units, Bandwidth* bandwidth) {
  const dim3 blocks(static_cast<unsigned>(units * kBlocksPerUnit)), threads(kThreads);
  const uint4* from = memory;
  uint4* sink = memory + kDeviceChunks;
  int rounds = kRounds;
  int64_t count = kDeviceChunks;
  void *of_shared[] = {&from, &sink, &rounds}, *of_device[] = {&from, &sink, &count};
  double seconds = 0;
  cudaError_t error = cudaMemset(memory, 0, (kDeviceChunks + 1) * sizeof(uint4));
  if (error != cudaSuccess) return error;
  error =
      time_launches([&] { return cudaLaunchKernel(read_shared, blocks, threads, of_shared, 0, nullptr); }, &seconds);
  bandwidth->shared = double{kRounds} * sizeof(uint4) * kThreads * blocks.x / seconds;
  if (error != cudaSuccess) return error;
  error =
      time_launches([&] { return cudaLaunchKernel(read_device, blocks, threads, of_device, 0, nullptr); }, &seconds);
  bandwidth->device = static_cast<double>(kDeviceChunks) * sizeof(uint4) / seconds;
  return error;
}

}  // namespace

cudaError_t measure_bandwidth(Bandwidth* bandwidth) {
  int device = 0, units = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, device);
  void* memory = nullptr;
  if (error == cudaSuccess) error = cudaMalloc(&memory, (kDeviceChunks + 1) * sizeof(uint4));
  if (error != cudaSuccess) return error;
  error = measure(static_cast<uint4*>(memory), units, bandwidth);
  const cudaError_t freed = cudaFree(memory);
  return error != cudaSuccess ? error : freed;
}

}  // namespace tessera::baselines
