// Host side of one compiled decode kernel.
#pragma once

#include "decode.cuh"
#include "launch.hpp"

namespace tessera::cuda::sm80 {

template <class Element, class Cache, int kHeadDim, int kRowBlocks>
struct DecodeKernel {
  using Config = DecodeConfig<kHeadDim, Cache::kBytes, kRowBlocks>;

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
    return {kHeadDim,         Config::kTileRows,    Config::kWarps,       Config::kTileN, Config::kStages,
            Config::kThreads, Config::kSharedBytes, Config::kBlocksPerSm, prepare,        launch};
  }
};

template <class Element, class Cache, int kHeadDim>
constexpr DecodePair decode_pair() {
  return {DecodeKernel<Element, Cache, kHeadDim, kFewRowBlocks>::instance(),
          DecodeKernel<Element, Cache, kHeadDim, kManyRowBlocks>::instance()};
}

template <class Element, class Cache>
constexpr DecodeBuckets decode_buckets() {
  return {{decode_pair<Element, Cache, 64>(), decode_pair<Element, Cache, 128>(), decode_pair<Element, Cache, 256>()}};
}

}  // namespace tessera::cuda::sm80
