// Host side of the compiled sm90 forward kernels of one type and head-dim bucket. nvcc gives kernel templates internal
// linkage, so every source in instances/ makes its own.
#pragma once

#include "forward.cuh"
#include "launch.hpp"

namespace tessera::cuda::sm90 {

template <class Element, class Config, ScoreKind kKind>
struct ForwardKernel {
  static cudaError_t prepare() {
    return cudaFuncSetAttribute(forward_kernel<Element, Config, kKind>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                Config::kSharedBytes);
  }

  static cudaError_t launch(const Params& params, uint32_t blocks, cudaStream_t stream) {
    void* arguments[] = {const_cast<Params*>(&params)};
    return cudaLaunchKernel(forward_kernel<Element, Config, kKind>, dim3(blocks), dim3(Config::kThreads), arguments,
                            Config::kSharedBytes, stream);
  }

  static constexpr Instance instance() { return instance_of<Config>(prepare, launch); }
};

template <class Element, int kDimQk, int kDimV>
constexpr Bucket bucket() {
  using Shapes = ForwardConfig<kDimQk, kDimV>;
  return {ForwardKernel<Element, typename Shapes::Plain, ScoreKind::plain>::instance(),
          ForwardKernel<Element, typename Shapes::Wide, ScoreKind::plain>::instance(),
          ForwardKernel<Element, typename Shapes::Brief, ScoreKind::plain>::instance(),
          ForwardKernel<Element, typename Shapes::Narrow, ScoreKind::plain>::instance(),
          ForwardKernel<Element, typename Shapes::General, ScoreKind::general>::instance(),
          Shapes::kWideKeys,
          Shapes::kBriefKeys,
          Shapes::kBriefWindow};
}

}  // namespace tessera::cuda::sm90
