// The producer of a backward block: one thread that copies K and V once and then Q, dO and their statistics of one step
// after another, as far ahead of the consumers as the stages allow.
// Tiles lie as [columns / 64][rows][64], 16-byte chunks swizzled as TMA does. Rows past a used length are copied as
// they are where the array goes on; the consumers clear them.
#pragma once

#include <cuda/ptx>

#include "backward_control.cuh"

namespace tessera::cuda::sm90 {

template <class Config>
struct BackwardProducer {
  const BackwardLaunchParams& p;
  BackwardControl<Config>& control;
  char* shared;

  // kRows rows of one head from `row` on.
  template <int kRows>
  __device__ __forceinline__ void copy(const CUtensorMap& map, char* to, int64_t row, int64_t head, int64_t batch,
                                       uint64_t* full) const {
#pragma unroll
    for (int c = 0; c < Config::kSpans; ++c) {
      const int32_t at[4] = {c * Config::kSpanColumns, static_cast<int32_t>(row), static_cast<int32_t>(head),
                             static_cast<int32_t>(batch)};
      ::cuda::ptx::cp_async_bulk_tensor(::cuda::ptx::space_cluster, ::cuda::ptx::space_global,
                                        to + c * kRows * Config::kSpan, &map, at, full);
    }
  }

  __device__ __forceinline__ static void expect(uint64_t* full, uint32_t bytes) {
    ::cuda::ptx::mbarrier_arrive_expect_tx(::cuda::ptx::sem_release, ::cuda::ptx::scope_cta, ::cuda::ptx::space_shared,
                                           full, bytes);
  }

  // A tile of Q or dO with kTileM floats of lse or delta.
  __device__ __forceinline__ void copy_queries(const CUtensorMap& map, int tensor, const float* statistics, int stage,
                                               const BackwardStep& step, uint64_t* full) const {
    const SequenceView& at = control.view.sequence;
    const int64_t row = int64_t{step.tile} * Config::kTileM;
    expect(full, Config::kQueryBytes + Config::kTileM * 4);
    copy<Config::kTileM>(map, shared + Config::kQueryOffset + (2 * stage + tensor) * Config::kQueryBytes,
                         at.q_row + row, step.head, at.q_batch, full);
    ::cuda::ptx::cp_async_bulk(
        ::cuda::ptx::space_cluster, ::cuda::ptx::space_global,
        shared + Config::kStatisticsOffset + stage * Config::kStatisticsBytes + tensor * Config::kTileM * 4,
        statistics + step.head * p.backward.scratch_rows + control.view.scratch_row + row, Config::kTileM * 4, full);
  }

  __device__ __forceinline__ void run() const {
    const KeyTileView& view = control.view;
    const int64_t key = view.sequence.kv_row + int64_t{view.key_tile} * Config::kTileN;
    expect(&control.keys_full, Config::kKeyBytes);
    copy<Config::kTileN>(p.k_map, shared, key, view.kv_head, view.sequence.kv_batch, &control.keys_full);
    BackwardStep step(view);
    Ring<Config::kStages> ring;
    copy_scored(step, ring);  // the first products need no V
    expect(&control.values_full, Config::kKeyBytes);
    copy<Config::kTileN>(p.v_map, shared + Config::kValueOffset, key, view.kv_head, view.sequence.kv_batch,
                         &control.values_full);
    while (true) {
      wait(control.d_o_empty[ring.stage], ring.phase ^ 1);
      copy_queries(p.d_o_map, 1, p.backward.delta, ring.stage, step, &control.d_o_full[ring.stage]);
      ring.advance();
      if (!step.advance(view)) return;
      copy_scored(step, ring);
    }
  }

  // Q, once its stage is empty.
  __device__ __forceinline__ void copy_scored(const BackwardStep& step, const Ring<Config::kStages>& ring) const {
    wait(control.q_empty[ring.stage], ring.phase ^ 1);
    copy_queries(p.q_map, 0, p.backward.lse, ring.stage, step, &control.q_full[ring.stage]);
  }
};

}  // namespace tessera::cuda::sm90
