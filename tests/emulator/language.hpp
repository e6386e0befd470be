// CUDA C++ for a host compiler: put before every device source. Qualifiers vanish, threads are fibers (block.hpp),
// __shared__ variables belong to the host thread that runs the block, and what lanes or threads do together goes to the
// block.
#pragma once

#include <cuda_runtime_api.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include "builtins.hpp"
#include "device.hpp"
#include "runtime.hpp"
#include "shared_memory.hpp"
#include "warp.hpp"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ thread_local

inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline int __float_as_int(float value) { return std::bit_cast<int>(value); }
inline int __ffs(int bits) { return bits == 0 ? 0 : std::countr_zero(static_cast<unsigned>(bits)) + 1; }
inline int __clz(int bits) { return std::countl_zero(static_cast<unsigned>(bits)); }
template <class T>
T __ldg(const T* pointer) {
  return *pointer;
}

// Writes of one thread are seen by all others at once; a fence is a place where others may go first.
inline void __threadfence() { tessera::emulator::Block::running()->pause(); }
inline void __threadfence_block() { __threadfence(); }

inline void __syncthreads(TESSERA_WHERE) {
  auto& block = *tessera::emulator::Block::running();
  block.sync(0, block.threads(), where);
}
inline void __syncwarp(unsigned mask = 0xffffffffu, TESSERA_WHERE) {
  tessera::emulator::meet(mask, tessera::emulator::kSyncWarp, nullptr, where);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, TESSERA_WHERE) {
  return tessera::emulator::vote(mask, predicate != 0, where);
}
inline int __any_sync(unsigned mask, int predicate, TESSERA_WHERE) {
  return tessera::emulator::vote(mask, predicate != 0, where) != 0;
}
inline int __all_sync(unsigned mask, int predicate, TESSERA_WHERE) {
  return tessera::emulator::vote(mask, predicate != 0, where) == mask;
}

namespace tessera::emulator {

template <class T>
T shuffled(unsigned mask, T value, int source, Where where) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  ShuffleOperand operand{0, source};
  std::memcpy(&operand.value, &value, sizeof value);
  meet(mask, kShuffle, &operand, where);
  std::memcpy(&value, &operand.value, sizeof value);
  return value;
}
inline int lane() { return Block::running()->thread().lane; }

// A read and a write that no other thread comes between.
template <class T, class Change>
T atomically(T* pointer, Change change) {
  Block::running()->pause();
  T before;
  __atomic_load(pointer, &before, __ATOMIC_SEQ_CST);
  T after = change(before);
  while (!__atomic_compare_exchange(pointer, &before, &after, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    after = change(before);
  }
  return before;
}

template <class... Parameters, size_t... kIndex>
cudaError_t launch_typed(void (*kernel)(Parameters...), dim3 grid, dim3 block, void** arguments, size_t shared_bytes,
                         cudaStream_t stream, std::index_sequence<kIndex...>) {
  const std::tuple<std::remove_cv_t<Parameters>...> copies{
      *static_cast<std::remove_cv_t<Parameters>*>(arguments[kIndex])...};
  const Launch launch{grid, block, shared_bytes, [kernel, copies] { std::apply(kernel, copies); }};
  if (const cudaError_t error = check_launch(reinterpret_cast<const void*>(kernel), launch)) return error;
  return submit(stream, [launch] {
    run(launch);
    return cudaSuccess;
  });
}

}  // namespace tessera::emulator

// Segments of `width` lanes; a source beyond the segment gives the lane its own value.
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, TESSERA_WHERE) {
  const int first = tessera::emulator::lane() / width * width;
  return tessera::emulator::shuffled(mask, value, first + (source & (width - 1)), where);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, TESSERA_WHERE) {
  const int lane = tessera::emulator::lane(), other = lane ^ lanes;
  return tessera::emulator::shuffled(mask, value, other / width <= lane / width ? other : lane, where);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned lanes, int width = 32, TESSERA_WHERE) {
  const int lane = tessera::emulator::lane(), other = lane - static_cast<int>(lanes);
  return tessera::emulator::shuffled(mask, value, other >= lane / width * width ? other : lane, where);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned lanes, int width = 32, TESSERA_WHERE) {
  const int lane = tessera::emulator::lane(), other = lane + static_cast<int>(lanes);
  return tessera::emulator::shuffled(mask, value, other < (lane / width + 1) * width ? other : lane, where);
}

template <class T>
T atomicAdd(T* pointer, std::type_identity_t<T> value) {
  return tessera::emulator::atomically(pointer, [=](T before) { return static_cast<T>(before + value); });
}
template <class T>
T atomicExch(T* pointer, std::type_identity_t<T> value) {
  return tessera::emulator::atomically(pointer, [=](T) { return value; });
}
template <class T>
T atomicMax(T* pointer, std::type_identity_t<T> value) {
  return tessera::emulator::atomically(pointer, [=](T before) { return before < value ? value : before; });
}
template <class T>
T atomicMin(T* pointer, std::type_identity_t<T> value) {
  return tessera::emulator::atomically(pointer, [=](T before) { return value < before ? value : before; });
}
template <class T>
T atomicCAS(T* pointer, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  return tessera::emulator::atomically(pointer, [=](T before) { return before == expected ? value : before; });
}

// A launch needs the kernel's type: `arguments` are read by it.
template <class... Parameters>
cudaError_t cudaLaunchKernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, void** arguments,
                             size_t shared_bytes, cudaStream_t stream) {
  return tessera::emulator::launch_typed(kernel, grid, block, arguments, shared_bytes, stream,
                                         std::index_sequence_for<Parameters...>{});
}
cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) = delete;

// A launch with attributes. The one there is lets it overlap the launch before it, which nothing does here.
enum cudaLaunchAttributeID : int { cudaLaunchAttributeProgrammaticStreamSerialization = 6 };
union cudaLaunchAttributeValue {
  int programmaticStreamSerializationAllowed;
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  cudaLaunchAttributeValue val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

template <class... Parameters>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               std::type_identity_t<const std::remove_cv_t<Parameters>&>... arguments) {
  // What 9.0 brought.
  if (config->numAttrs != 0 && tessera::emulator::architecture() < 90) return cudaErrorInvalidValue;
  void* pointers[] = {const_cast<std::remove_cv_t<Parameters>*>(&arguments)...};
  return cudaLaunchKernel(kernel, config->gridDim, config->blockDim, pointers, config->dynamicSmemBytes,
                          config->stream);
}

template <class... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute attribute, int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
template <class... Parameters>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void (*kernel)(Parameters...)) {
  return cudaFuncGetAttributes(attributes, reinterpret_cast<const void*>(kernel));
}
template <class... Parameters>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void (*kernel)(Parameters...), int threads,
                                                          size_t shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, reinterpret_cast<const void*>(kernel), threads,
                                                       shared_bytes);
}
