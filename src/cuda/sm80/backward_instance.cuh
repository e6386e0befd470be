// Host side of the compiled backward kernels: what planning asks of them, their loading and their launch. nvcc gives
// kernel templates internal linkage, so every source in instances/ makes its own.
#pragma once

#include "backward.cuh"
#include "bias_gradient.cuh"
#include "launch.hpp"

namespace tessera::cuda::sm80 {

template <auto kKernel, class Config>
struct BackwardLaunch {
  static cudaError_t prepare() {
    return cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Config::kDynamicBytes);
  }
  static cudaError_t launch(const BackwardParams& params, uint32_t blocks, cudaStream_t stream) {
    void* arguments[] = {const_cast<BackwardParams*>(&params)};
    return cudaLaunchKernel(kKernel, dim3(blocks), dim3(Config::kThreads), arguments, Config::kDynamicBytes, stream);
  }
  static constexpr BackwardInstance instance() {
    return {Config::kTileM, Config::kTileN, Config::kStages, Config::kThreads, Config::kSharedBytes, prepare, launch};
  }
};

template <class Element, int kHeadDim, BackwardSize kSize = BackwardSize::large>
constexpr BackwardKernels backward_kernels() {
  using General = BackwardConfig<kHeadDim, kSize, ScoreKind::general>;
  // The small kernels are for devices whose speed no figure depends on: one kernel serves all scores.
  constexpr ScoreKind kPlainKind = kSize == BackwardSize::small ? ScoreKind::general : ScoreKind::plain;
  using PlainConfig = BackwardConfig<kHeadDim, kSize, kPlainKind>;
  return {BackwardLaunch<backward_kernel<Element, PlainConfig, kPlainKind>, PlainConfig>::instance(),
          BackwardLaunch<backward_kernel<Element, General, ScoreKind::general>, General>::instance(),
          BackwardLaunch<bias_gradient_kernel<Element, General>, General>::instance()};
}

}  // namespace tessera::cuda::sm80
