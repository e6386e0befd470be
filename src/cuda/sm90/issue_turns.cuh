// Turns in which the consumer warpgroups of a block issue their products, so that one's softmax meets the others'
// products (Config::kTurns). A named barrier each stands for its turn: who waits for it and who passes it arrive there.
// Source: Shah et al., FlashAttention-3, section 3.1.
#pragma once

#include "../ptx/barrier.cuh"
#include "../ptx/wgmma.cuh"
#include "control.cuh"

namespace tessera::cuda::sm90 {

inline constexpr int kFirstTurn = 1;  // a barrier; 0 is __syncthreads'

// `group`: of the consumers, counted from 0.
template <class Config>
__device__ __forceinline__ void wait_turn(int group) {
  if (Config::kTurns) ptx::barrier_sync(kFirstTurn + group, 256);
}
template <class Config>
__device__ __forceinline__ void pass_turn(int group) {
  if (Config::kTurns) ptx::barrier_arrive(kFirstTurn + (group + 1 == Config::kGroups ? 0 : group + 1), 256);
}
// A turn without a product.
template <class Config>
__device__ __forceinline__ void skip_turn(int group) {
  wait_turn<Config>(group);
  pass_turn<Config>(group);
}
// Ahead of all turns: the first group's is open.
template <class Config>
__device__ __forceinline__ void open_turns(int group) {
  if (Config::kTurns && group == Config::kGroups - 1) ptx::barrier_arrive(kFirstTurn, 256);
}

// Issues a consumer's first product of a view, scores = q k^T, by `multiply` as soon as its tiles are there.
template <class Config, class Consumer, class Multiply>
__device__ __forceinline__ void issue_first(const Consumer& consumer, const Multiply& multiply) {
  wait(consumer.control.q_full[consumer.q.stage], consumer.q.phase);
  wait(consumer.control.k_full[consumer.k.stage], consumer.k.phase);
  wait_turn<Config>(consumer.group);
  ptx::wgmma_fence();
  multiply();
  ptx::wgmma_commit();
  pass_turn<Config>(consumer.group);
}

}  // namespace tessera::cuda::sm90
