// Host side of one compiled forward kernel: what planning asks of it, its loading and its launch. nvcc gives kernel
// templates internal linkage, so every source in instances/ makes its own.
#pragma once

#include "forward.cuh"
#include "launch.hpp"

namespace tessera::cuda::sm80 {

template <class Element, class Config, ScoreKind kKind>
struct ForwardKernel {
  static cudaError_t prepare() {
    return cudaFuncSetAttribute(forward_kernel<Element, Config, kKind>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                Config::kDynamicBytes);
  }

  static cudaError_t launch(const ForwardParams& params, uint32_t blocks, cudaStream_t stream) {
    void* arguments[] = {const_cast<ForwardParams*>(&params)};
    return cudaLaunchKernel(forward_kernel<Element, Config, kKind>, dim3(blocks), dim3(Config::kThreads), arguments,
                            Config::kDynamicBytes, stream);
  }

  static constexpr ForwardInstance instance() {
    return {Config::kTileM,
            Config::kTileN,
            Config::kStages,
            Config::kThreads,
            Config::kSharedBytes,
            Config::kBlocksPerSm,
            Config::kWholeHead,
            prepare,
            launch};
  }
};

template <class Element, int kHeadDim, class PlainConfig = ForwardConfig<kHeadDim, ScoreKind::plain>>
constexpr ForwardPair forward_pair() {
  return {ForwardKernel<Element, PlainConfig, ScoreKind::plain>::instance(),
          ForwardKernel<Element, ForwardConfig<kHeadDim, ScoreKind::general>, ScoreKind::general>::instance()};
}

}  // namespace tessera::cuda::sm80
