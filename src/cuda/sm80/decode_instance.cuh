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

  static cudaError_t launch(const DecodeParams& params, uint32_t blocks, bool overlaps, cudaStream_t stream) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(Config::kThreads);
    config.dynamicSmemBytes = Config::kDynamicBytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = overlaps ? 1 : 0;
    return cudaLaunchKernelEx(&config, decode_kernel<Element, Cache, Config>, params);
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
