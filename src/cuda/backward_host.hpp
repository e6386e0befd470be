// What the host sides of the CUDA backward kernels share: what all of them refuse, the workspace, the parameters, the
// launches before and after the main kernel, and the estimate. A kernel's own planning is in its architecture's folder.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backward_params.hpp"
#include "forward_host.hpp"
#include "launch.hpp"

namespace tessera::cuda {

// Dtypes, head dims and features that no CUDA backward takes; counts and layouts that it does not take.
core::Refusal refuse_backward(const core::Problem& p);

// Where each piece of the workspace begins, and its size, for dq sums of `dq_dim` columns.
// persistent: the main kernel's blocks draw tickets, also where dq is added in any order.
// zeroes: it may zero and convert sums.
struct BackwardWorkspace {
  int64_t lse, minus_delta, dq_sum, sink_sums, turns, ticket, progress, bytes;
};
BackwardWorkspace lay_out_workspace(const core::Problem& p, int32_t dq_dim, bool persistent, bool zeroes);

// Key/value heads of one batch after another: how many have their key tiles taken together, and of how many, the last
// ones, in which groups, these go the other way round, see locate_key_tile().
struct HeadOrder {
  int32_t together, descending = 0, descending_together = 1;
};

// The launches of a pass but its main kernel and d_bias: begin() those before it, finish() those behind; and what the
// main kernel is launched with.
struct BackwardRows {
  BackwardParams params;  // turns and ticket are null where nothing would zero them
  uint32_t row_blocks;    // of preprocess and postprocess
  uint32_t key_blocks;    // of the main kernel
  DqSums sums;
  bool bf16;

  // For a main kernel with tiles of tile_n keys. workers: persistent blocks at most; 0: a block a tile. zeroes: the
  // main kernel zeroes and converts sums where it can.
  BackwardRows(const core::Problem& p, const tessera_tensors& tensors, std::byte* workspace, const DqSums& dq_sums,
               int32_t tile_n, const HeadOrder& order, int32_t workers, bool zeroes);
  cudaError_t begin(cudaStream_t stream) const;
  cudaError_t finish(cudaStream_t stream) const;
};

// Key/value heads of one batch after another, as many together as leave Q, dO and dq's sums in L2, or under a band as
// make a wave of blocks of tile_n keys.
int32_t heads_together_backward(const core::Problem& p, const core::DeviceInfo& device, int32_t tile_n);

// The order for a main kernel whose blocks can go either way. In a fixed order under a causal mask ascending heads
// never wait, but their heaviest key tiles start last, and where a block walks through several query heads that takes
// long. Descending ones start with the heaviest, and wait at the start of a group of heads. So with grouped heads all
// descend, by two waves of blocks, whose light tiles go with the heavy ones; else the last heads, where ascending ones
// would leave multiprocessors without work.
HeadOrder order_heads_backward(const core::Problem& p, const core::DeviceInfo& device, int32_t tile_n);

// What explain says of the order of the main kernel's blocks and of dq. descends: all heads do.
const char* backward_schedule(const core::Problem& p, bool persistent, bool descends = false);
// What a main kernel reaches, fitted to measurements: shares of the device's 16-bit peak between a block's start and
// its end, with dq added in any order and in a fixed one, and the seconds of start and end together of a key tile.
struct BackwardRates {
  double share, ordered_share, block_seconds;
};
// Seconds of a run with tiles of tile_n keys, one a multiprocessor at a time: steps, starts and ends, and the kernels
// before and after by their bytes. d_bias costs its products.
double estimate_backward(const core::Problem& p, const core::DeviceInfo& device, int32_t tile_n,
                         const BackwardRates& rates);

}  // namespace tessera::cuda
