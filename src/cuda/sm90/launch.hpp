// The compiled sm90 forward kernels as host code sees them: one table a (type, bucket), defined beside its kernels in
// instances/.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "params.hpp"

namespace tessera::cuda::sm90 {

struct Instance {
  int32_t dim_qk, dim_v, tile_m, tile_n, stages, query_stages, threads, consumer_registers, shared_bytes, span;
  double share;              // of the peak for its type that long rows reach, measured (docs/notes/hopper.md)
  double overhead_tiles;     // what a query tile costs beside its key tiles, in key tiles, measured
  cudaError_t (*prepare)();  // on the current device
  cudaError_t (*launch)(const Params& params, uint32_t blocks, cudaStream_t stream);
};

// The entry of a kernel of a shape.
template <class Config>
constexpr Instance instance_of(cudaError_t (*prepare)(),
                               cudaError_t (*launch)(const Params& params, uint32_t blocks, cudaStream_t stream)) {
  return {Config::kDimQk,
          Config::kDimV,
          Config::kTileM,
          Config::kTileN,
          Config::kStages,
          Config::kQueryStages,
          Config::kThreads,
          Config::kConsumerRegisters,
          Config::kSharedBytes,
          Config::kSpan,
          Config::kShare,
          Config::kOverheadTiles,
          prepare,
          launch};
}

// What config.hpp has for head dims; `general` also takes softcap, bias, ALiBi and any scale.
struct Bucket {
  Instance plain, wide, brief, narrow, general;
  // Wide from so many keys on, brief up to so many under a mask and for windows of up to so many.
  int32_t wide_keys, brief_keys, brief_window;
};

extern const Bucket kF16D64, kF16D96, kF16D128, kF16D192V128, kF16D192, kF16D256;
extern const Bucket kBf16D64, kBf16D96, kBf16D128, kBf16D192V128, kBf16D192, kBf16D256;
extern const Instance kE4m3D64, kE4m3D128, kE4m3D256;

}  // namespace tessera::cuda::sm90
