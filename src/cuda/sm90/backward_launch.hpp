// The compiled sm90 backward kernels as host code sees them: one table a (type, bucket), defined beside its kernels in
// instances/.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "../backward_params.hpp"

namespace tessera::cuda::sm90 {

// What a launch hands the kernel by value. q, d_o: (column, row, head, batch), boxes of tile_m rows; k, v the same with
// boxes of tile_n rows.
struct BackwardLaunchParams {
  CUtensorMap q_map, k_map, v_map, d_o_map;
  BackwardParams backward;  // its schedule counts key tiles
};

struct BackwardInstance {
  int32_t dim, tile_m, tile_n, stages, threads, consumer_registers, shared_bytes;
  bool persistent;           // blocks take key tiles until none is left
  cudaError_t (*prepare)();  // on the current device
  cudaError_t (*launch)(const BackwardLaunchParams& params, uint32_t blocks, cudaStream_t stream);
};

// capped: with a softcap.
struct BackwardBucket {
  BackwardInstance plain, capped;
};

extern const BackwardBucket kBackwardF16D64, kBackwardF16D128, kBackwardF16D192, kBackwardF16D256, kBackwardBf16D64,
    kBackwardBf16D128, kBackwardBf16D192, kBackwardBf16D256;

}  // namespace tessera::cuda::sm90
