// Host side of the compiled sm90 backward kernels of one type and head-dim bucket. nvcc gives kernel templates internal
// linkage, so every source in instances/ makes its own.
#pragma once

#include "backward.cuh"
#include "backward_launch.hpp"

namespace tessera::cuda::sm90 {

template <class Element, class Config, ScoreKind kKind>
struct BackwardKernel {
  static cudaError_t prepare() {
    return cudaFuncSetAttribute(backward_kernel<Element, Config, kKind>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                Config::kSharedBytes);
  }
  static cudaError_t launch(const BackwardLaunchParams& params, uint32_t blocks, cudaStream_t stream) {
    void* arguments[] = {const_cast<BackwardLaunchParams*>(&params)};
    return cudaLaunchKernel(backward_kernel<Element, Config, kKind>, dim3(blocks), dim3(Config::kThreads), arguments,
                            Config::kSharedBytes, stream);
  }
  static constexpr BackwardInstance instance() {
    return {Config::kDim,
            Config::kTileM,
            Config::kTileN,
            Config::kStages,
            Config::kThreads,
            Config::kConsumerRegisters,
            Config::kSharedBytes,
            Config::kPersistent,
            prepare,
            launch};
  }
};

template <class Element, int kDim>
constexpr BackwardBucket backward_bucket() {
  return {BackwardKernel<Element, BackwardConfig<kDim, ScoreKind::plain>, ScoreKind::plain>::instance(),
          BackwardKernel<Element, BackwardConfig<kDim, ScoreKind::general>, ScoreKind::general>::instance()};
}

}  // namespace tessera::cuda::sm90
