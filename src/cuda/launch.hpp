// The compiled kernels as host code sees them: one table entry an instance, defined beside its kernel in instances/.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "append_params.hpp"
#include "backward_params.hpp"
#include "decode_params.hpp"
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

struct BackwardInstance {
  int32_t tile_m, tile_n, stages, threads, shared_bytes;
  cudaError_t (*prepare)();  // on the current device
  cudaError_t (*launch)(const BackwardParams& params, uint32_t blocks, cudaStream_t stream);
};

struct DecodeInstance {
  int32_t head_dim, warps, tile_n, stages, threads, shared_bytes, blocks_per_sm;
  cudaError_t (*prepare)();  // on the current device
  cudaError_t (*launch)(const DecodeParams& params, uint32_t blocks, cudaStream_t stream);
};

// By sm80::kDecodeBuckets.
struct DecodeBuckets {
  DecodeInstance of[3];
};

// The kernels of one element type, head-dim bucket and size of shared memory. d_bias: its gradient alone.
struct BackwardKernels {
  BackwardInstance plain, general, d_bias;
};

namespace sm80 {

extern const ForwardPair kForwardF16D64, kForwardF16D96, kForwardF16D128, kForwardF16D192, kForwardF16D256;
extern const ForwardPair kForwardBf16D64, kForwardBf16D96, kForwardBf16D128, kForwardBf16D192, kForwardBf16D256;

// The same for compute capability 12.0 and later (NarrowConfig64).
extern const ForwardPair kForwardF16D64Narrow, kForwardBf16D64Narrow;

extern const BackwardKernels kBackwardF16D64, kBackwardF16D96, kBackwardF16D128, kBackwardF16D192, kBackwardF16D256;
extern const BackwardKernels kBackwardBf16D64, kBackwardBf16D96, kBackwardBf16D128, kBackwardBf16D192,
    kBackwardBf16D256;
// The same where a block has less than 160 KB of shared memory.
extern const BackwardKernels kBackwardF16D128Small, kBackwardF16D192Small, kBackwardF16D256Small;
extern const BackwardKernels kBackwardBf16D128Small, kBackwardBf16D192Small, kBackwardBf16D256Small;

extern const DecodeBuckets kDecodeF16, kDecodeBf16;
// Over caches of bytes.
extern const DecodeBuckets kDecodeF16Int8, kDecodeF16E4m3, kDecodeBf16Int8, kDecodeBf16E4m3;

}  // namespace sm80

// How the sums of dq lie: columns (a head-dim bucket), and the form of the fragments.
struct DqSums {
  int32_t dim;
  bool transposed;  // Hopper's, with dim 64, 128, 192 or 256
};

// Before and after the main kernel of a backward pass; `blocks`: of kRowTile rows.
cudaError_t launch_preprocess(const BackwardParams& params, bool bf16, const DqSums& sums, uint32_t blocks,
                              cudaStream_t stream);
cudaError_t launch_postprocess(const BackwardParams& params, bool bf16, const DqSums& sums, uint32_t blocks,
                               cudaStream_t stream);
cudaError_t launch_sum_sinks(const BackwardParams& params, cudaStream_t stream);
cudaError_t prepare_backward_rows(bool bf16, const DqSums& sums);  // all three, on the current device

// Merges the partial states of a split forward, in order, with sinks: final_params' o and lse from `partial`'s.
cudaError_t launch_combine(const ForwardParams& partial, const ForwardParams& final_params, bool bf16,
                           cudaStream_t stream);
uint64_t combine_blocks(const ForwardParams& params);
cudaError_t prepare_combine(bool bf16);  // on the current device

// tessera_merge and tessera_merge_backward, for at least one row.
cudaError_t launch_merge(const tessera_merge_args& args, bool backward, cudaStream_t stream);

// New rows into a cache, for at least one block.
cudaError_t launch_append(const AppendParams& params, uint32_t blocks, cudaStream_t stream);
cudaError_t prepare_append();  // on the current device

}  // namespace tessera::cuda
