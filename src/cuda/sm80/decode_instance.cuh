// Host side of one compiled decode kernel.
#pragma once

#include "decode.cuh"
#include "launch.hpp"

namespace tessera::cuda::sm80 {

template <class Element, class Cache, int kHeadDim>
struct DecodeKernel {
  using Config = DecodeConfig<kHeadDim, Cache::kBytes>;

  static cudaError_t prepare() {
    return cudaFuncSetAttribute(decode_kernel<Element, Cache, Config>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                Config::kDynamicBytes);
  }

  static cudaError_t launch(const DecodeParams& params, uint32_t blocks, cudaStream_t stream) {
    void* arguments[] = {const_cast<DecodeParams*>(&params)};
    return cudaLaunchKernel(decode_kernel<Element, Cache, Config>, dim3(blocks), dim3(Config::kThreads), arguments,
                            Config::kDynamicBytes, stream);
  }

  static constexpr DecodeInstance instance() {
    return {kHeadDim,
            Config::kWarps,
            Config::kTileN,
            Config::kStages,
            Config::kThreads,
            Config::kSharedBytes,
            Config::kBlocksPerSm,
            prepare,
            launch};
  }
};

template <class Element, class Cache>
constexpr DecodeBuckets decode_buckets() {
  return {{DecodeKernel<Element, Cache, 64>::instance(), DecodeKernel<Element, Cache, 128>::instance(),
           DecodeKernel<Element, Cache, 256>::instance()}};
}

}  // namespace tessera::cuda::sm80
