// The compiled kernels as host code sees them: one table entry an instance, defined beside its kernel in instances/.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "forward_params.hpp"
#include "tessera/tessera.h"

namespace tessera::cuda {

struct ForwardInstance {
  int32_t tile_m, tile_n, stages, threads, shared_bytes, blocks_per_sm;
  cudaError_t (*prepare)();  // on the current device
  cudaError_t (*launch)(const ForwardParams& params, uint32_t blocks, cudaStream_t stream);
};

struct ForwardPair {
  ForwardInstance plain, general;
};

namespace sm80 {

extern const ForwardPair kForwardF16D64, kForwardF16D96, kForwardF16D128, kForwardF16D192, kForwardF16D256;
extern const ForwardPair kForwardBf16D64, kForwardBf16D96, kForwardBf16D128, kForwardBf16D192, kForwardBf16D256;

// The same for compute capability 12.0 and later (NarrowConfig64).
extern const ForwardPair kForwardF16D64Narrow, kForwardBf16D64Narrow;

}  // namespace sm80

// Merges the partial states of a split forward, in order, with sinks: final_params' o and lse from `partial`'s.
cudaError_t launch_combine(const ForwardParams& partial, const ForwardParams& final_params, bool bf16,
                           cudaStream_t stream);
uint64_t combine_blocks(const ForwardParams& params);
cudaError_t prepare_combine(bool bf16);  // on the current device

// tessera_merge and tessera_merge_backward, for at least one row.
cudaError_t launch_merge(const tessera_merge_args& args, bool backward, cudaStream_t stream);

}  // namespace tessera::cuda
