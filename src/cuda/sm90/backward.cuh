// Gradients of attention for Hopper by TMA and wgmma. A block: one producer thread, two threads that keep turns where
// dq is added in a fixed order (backward_turns.cuh) or else, past d 128, two warps that convert dq of earlier heads
// (backward_conversion.cuh), a warp that zeroes dq's sums of later ones (backward_zeros.cuh), and two consumer
// warpgroups.
// A block owns kTileN keys of one (sequence, key/value head) at a time and walks over the query tiles of all query
// heads of the group that see them; persistent blocks then take a further key tile by a ticket. The producer
// (backward_producer.cuh) fills rings of Q and dO tiles; the consumer warpgroups sum dk and dv in registers and add
// their part of every dq tile to float32 sums in the workspace: atomically in any order, or with `turns` in the order
// of the tickets. Up to d 128 they share 128 keys (backward_consumer.cuh), past that the tensors of 64 keys
// (backward_wide_consumer.cuh).
// Work: 10 * kTileM * kTileN * d FLOPs a step: at d 128 and 4096 FLOPs a cycle 2560 cycles of the tensor cores, against
// 4 * kTileM * d bytes of Q and dO from L2 and as many of dq added there; at d 256 with half the keys the same cycles
// against twice the bytes.
// Source: Shah et al., FlashAttention-3; Dao, FlashAttention-2, Algorithm 2.
#pragma once

#include "../ptx/tensor_map.cuh"
#include "../tile/key_tile.cuh"
#include "backward_consumer.cuh"
#include "backward_conversion.cuh"
#include "backward_producer.cuh"
#include "backward_turns.cuh"
#include "backward_wide_consumer.cuh"
#include "backward_zeros.cuh"

namespace tessera::cuda::sm90 {

template <class Element, class Config, ScoreKind kKind>
__global__ void __launch_bounds__(Config::kThreads, 1) backward_kernel(const __grid_constant__ BackwardLaunchParams p) {
  extern __shared__ __align__(1024) char shared[];
  static_assert(sizeof(BackwardControl<Config>) <= Config::kControlBytes);
  auto& control = *reinterpret_cast<BackwardControl<Config>*>(shared + Config::kControlOffset);
  if (threadIdx.x == 0) {
    control.init(p.backward.turns != nullptr ? 2 : 0, p.backward.progress != nullptr ? 32 : 0);
  }
  if (threadIdx.x == 64) {  // beside thread 0 and its barriers
    if constexpr (Config::kPersistent) {
      control.cursor = {};
      take_key_tile(p.backward, true, Config::kTileN, Config::kTileM, control.cursor, control.views[0]);
    } else {
      find_key_tile(p.backward, Config::kTileN, Config::kTileM, control.views[0]);
    }
  }
  if (threadIdx.x < 4) {
    ptx::prefetch_tensor_map(threadIdx.x == 0   ? &p.q_map
                             : threadIdx.x == 1 ? &p.k_map
                             : threadIdx.x == 2 ? &p.v_map
                                                : &p.d_o_map);
  }
  __syncthreads();
  if constexpr (!Config::kPersistent) {
    if (int64_t{control.views[0].key_tile} * Config::kTileN >= control.views[0].owned_keys) return;
  }
  const int group = uniform(static_cast<int>(threadIdx.x / 128));
  if (group == 0) {
    ptx::shrink_registers<Config::kProducerRegisters>();
    if constexpr (!Config::kPersistent) {
      if (control.views[0].first_tile == control.views[0].stop_tile) return;
    }
    const BackwardTurns<Config> turns{p.backward, control};
    if (threadIdx.x == 0) BackwardProducer<Config>{p, control, shared}.run();
    if (threadIdx.x >= 96 && p.backward.progress != nullptr) BackwardZeros<Config>{p.backward, control}.run();
    if constexpr (Config::kWide) {
      if (threadIdx.x >= 32 && threadIdx.x < 96 && p.backward.converts)
        BackwardConversion<Element, Config>{p.backward, control}.run();
    }
    if (p.backward.turns == nullptr) return;
    if (threadIdx.x == 32) turns.open();
    if (threadIdx.x == 64) turns.close();
  } else {
    ptx::grow_registers<Config::kConsumerRegisters>();
    BackwardPosition<Config> position;
    for_each_key_tile(control, [&](uint32_t place) {
      BackwardWarpgroup<Element, Config, kKind> warpgroup(p, control, shared, group - 1, place, position);
      if constexpr (Config::kWide) {
        consume_wide(warpgroup);
      } else {
        consume(warpgroup);
      }
      position = warpgroup.position();
    });
  }
}

}  // namespace tessera::cuda::sm90
