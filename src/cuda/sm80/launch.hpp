// The compiled sm80 kernels as host code sees them: one table entry an instance, defined beside its kernel in
// instances/.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "../backward_params.hpp"
#include "../decode_params.hpp"
#include "../forward_params.hpp"

namespace tessera::cuda::sm80 {

struct ForwardInstance {
  int32_t tile_m, tile_n, stages, threads, shared_bytes, blocks_per_sm;
  bool whole_head;           // a block goes over all query tiles of its head
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

// The kernels of one element type, head-dim bucket and size of shared memory. d_bias: its gradient alone.
struct BackwardKernels {
  BackwardInstance plain, general, d_bias;
};

struct DecodeInstance {
  int32_t head_dim, tile_rows, warps, tile_n, stages, threads, shared_bytes, blocks_per_sm;
  cudaError_t (*prepare)();  // on the current device
  // `overlaps`: may begin before the launch in front of it has ended; from compute capability 9.0 on.
  cudaError_t (*launch)(const DecodeParams& params, uint32_t blocks, bool overlaps, cudaStream_t stream);
};

struct DecodePair {
  DecodeInstance few, many;  // rows: up to 8, and more
};

// By kDecodeBuckets.
struct DecodeBuckets {
  DecodePair of[3];
};

extern const ForwardPair kForwardF16D64, kForwardF16D96, kForwardF16D128, kForwardF16D192, kForwardF16D256;
extern const ForwardPair kForwardBf16D64, kForwardBf16D96, kForwardBf16D128, kForwardBf16D192, kForwardBf16D256;

// The same for compute capability 12.0 and later (NarrowConfig64).
extern const ForwardPair kForwardF16D64Narrow, kForwardBf16D64Narrow;

extern const BackwardKernels kBackwardF16D64, kBackwardF16D96, kBackwardF16D128, kBackwardF16D192, kBackwardF16D256;
extern const BackwardKernels kBackwardBf16D64, kBackwardBf16D96, kBackwardBf16D128, kBackwardBf16D192,
    kBackwardBf16D256;
// The same where a block has 227 KB of shared memory.
extern const BackwardKernels kBackwardF16D256Wide, kBackwardBf16D256Wide;
// The same where it has less than the large ones take.
extern const BackwardKernels kBackwardF16D128Small, kBackwardF16D192Small, kBackwardF16D256Small;
extern const BackwardKernels kBackwardBf16D128Small, kBackwardBf16D192Small, kBackwardBf16D256Small;

extern const DecodeBuckets kDecodeF16, kDecodeBf16;
// Over caches of bytes.
extern const DecodeBuckets kDecodeF16Int8, kDecodeF16E4m3, kDecodeBf16Int8, kDecodeBf16E4m3;

}  // namespace tessera::cuda::sm80
