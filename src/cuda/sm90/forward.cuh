// Attention forward for Hopper: TMA, wgmma, one producer warp and two or three consumer warpgroups a block.
//   q [seqlen_q, head_dim_qk], k [seqlen_k, head_dim_qk], v [seqlen_k, head_dim_v] of one (sequence, head) -> o, lse
// Persistent blocks, one an SM, walk the schedule's query tiles of kTileM rows. The producer (producer.cuh) fills rings
// of Q, K and V tiles in shared memory; each consumer warpgroup (consumer.cuh) owns 64 rows and keeps their scores,
// probabilities and accumulators in registers.
// Work: 4 kTileM kTileN d FLOPs a step against 4 kTileN d bytes from L2. At 4096 FLOPs a cycle and SM a step of
// 128 x 128 x 128 takes 2048 cycles of the tensor cores, 1024 of the exponential unit, and 32 bytes a cycle from L2.
// Source: Shah et al., FlashAttention-3.
#pragma once

#include "../ptx/tensor_map.cuh"
#include "consumer.cuh"
#include "producer.cuh"
#include "schedule.cuh"

namespace tessera::cuda::sm90 {

template <class Element, class Config, ScoreKind kKind>
__global__ void __launch_bounds__(Config::kThreads, 1) forward_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) char shared[];
  static_assert(sizeof(Control<Config>) <= Config::kControlBytes);
  Control<Config>& control = *reinterpret_cast<Control<Config>*>(shared + Config::kControlOffset);
  const int warp = uniform(static_cast<int>(threadIdx.x / 32)), group = warp / 4;
  if (threadIdx.x == 0) control.init();
  if (warp == 2 && threadIdx.x % 32 < 3) {
    ptx::prefetch_tensor_map(threadIdx.x % 32 == 0 ? &p.q_map : threadIdx.x % 32 == 1 ? &p.k_map : &p.v_map);
  }
  if (group == 0) {
    if constexpr (Config::kGroups > 1) ptx::shrink_registers<Config::kProducerRegisters>();
    if (warp == 1) {
      schedule_tiles<Config, true>(p, control);
    } else {
      __syncthreads();
      if constexpr (Config::kProduces) {
        if (warp == 0) Producer<Config>{p, control, shared}.run();
      }
    }
  } else {
    __syncthreads();
    if constexpr (Config::kGroups > 1) ptx::grow_registers<Config::kConsumerRegisters>();
    Consumer<Element, Config, kKind>{p, control, ptx::shared_address(shared), group - 1, {p, control, shared}}.run();
  }
}

}  // namespace tessera::cuda::sm90
