// Host side of the compiled sm90 forward kernels for e4m3, as forward_instance.cuh.
#pragma once

#include "fp8_config.hpp"
#include "fp8_forward.cuh"
#include "launch.hpp"

namespace tessera::cuda::sm90 {

template <class Config>
struct Fp8Kernel {
  static cudaError_t prepare() {
    return cudaFuncSetAttribute(fp8_forward_kernel<Config>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                Config::kSharedBytes);
  }

  static cudaError_t launch(const Params& params, uint32_t blocks, cudaStream_t stream) {
    void* arguments[] = {const_cast<Params*>(&params)};
    return cudaLaunchKernel(fp8_forward_kernel<Config>, dim3(blocks), dim3(Config::kThreads), arguments,
                            Config::kSharedBytes, stream);
  }

  static constexpr Instance instance() { return instance_of<Config>(prepare, launch); }
};

}  // namespace tessera::cuda::sm90
