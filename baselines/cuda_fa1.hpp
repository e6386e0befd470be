// cuda.fa1: FlashAttention-1's schedule (fa1.hpp) on mma.sync, for what a change of schedule gives on the same
// instructions. One block a (batch, query head); rows for budgets of 32, 64, 128 and 200 KiB of shared memory.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/forward_params.hpp"
#include "fa1.hpp"

namespace tessera::baselines {

inline constexpr int kFa1HeadDims[] = {64, 128};

// Tiles of a head-dim bucket and a budget: multiples of what a product takes at a time, at most the paper's.
template <int kHeadDim_, int kKib>
struct CudaFa1Config {
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr Fa1Tile kPaper = fa1_tile(kKib, kHeadDim, 2);
  // Keys whose scores are in registers at a time.
  static constexpr int kStep = kPaper.keys < 64 ? kPaper.keys : 64;
  static constexpr int kTileM = kPaper.rows, kTileN = kPaper.keys / kStep * kStep;
  // Each warp takes 16 of the rows that are on chip.
  static constexpr int kWarpRows = 16, kWarps = kTileM / kWarpRows, kThreads = 32 * kWarps;
  static constexpr int kQueryBytes = kTileM * kHeadDim * 2, kKeyBytes = kTileN * kHeadDim * 2;
  // [K][V][Q][Q of the rows that follow]; O is in registers, and Q's second tile takes its share of the budget.
  static constexpr int kSharedBytes = 2 * kKeyBytes + 2 * kQueryBytes;
  // Registers a thread, of 65536 a multiprocessor, that the accumulators, the O before and the scores leave room for.
  static constexpr int kRegisters = kHeadDim <= 64 ? 168 : 256;
  static constexpr int kBlocksPerSm = std::min(65536 / (kThreads * kRegisters), 227 * 1024 / (kSharedBytes + 1024));
  static_assert(kTileM % kWarpRows == 0 && kStep % 16 == 0 && kSharedBytes <= kKib * 1024);
};

struct Fa1Params {
  cuda::ForwardParams f;
  float* o;            // [batch, heads_q, seqlen_q, head_dim_v]: O between its updates
  float2* statistics;  // [batch, heads_q, seqlen_q]: m in base 2, and l
};

struct Fa1Instance {
  int32_t tile_m, tile_n, threads, shared_bytes;
  cudaError_t (*prepare)();  // on the current device
  cudaError_t (*launch)(const Fa1Params& params, uint32_t blocks, cudaStream_t stream);
};
// By kFa1HeadDims and kFa1Budgets.
struct Fa1Instances {
  Fa1Instance of[std::size(kFa1HeadDims)][kFa1Rows];
};
extern const Fa1Instances kFa1F16, kFa1Bf16;

// The rows of kFa1Budgets.
extern const core::KernelEntry kCudaFa1[kFa1Rows];

}  // namespace tessera::baselines
