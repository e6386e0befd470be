// The consumers of a backward block of 64 keys, for head dims past 128, where dk and dv of 64 keys fill half of the
// register file. The warpgroups share the tensors, not the keys: the first makes S, P and dv, the second dP, dS and dk.
// P goes from the first to the second through shared memory, as float32 fragments; dS to both, for dq. Of dq each makes
// its part of the 64-column spans, one after another in the same registers and one step late.
// Order of a step i, first: [S(i) is there] P(i) - dv(i) - dq(i - 1), S(i + 1) - add dq(i - 1), its next span.
//                   second: [dP(i) is there] dS(i), once P(i) is there - dk(i) - dq(i - 1), dP(i + 1) - the same.
// While one is at its elements the products of the other fill the tensor cores.
#pragma once

#include "backward_warpgroup.cuh"

namespace tessera::cuda::sm90 {

// kValues: the first warpgroup's part, tensors V's gradient and Q as scores; else the second's.
template <class Element, class Config, ScoreKind kKind, bool kValues>
struct WideConsumer {
  using Warpgroup = BackwardWarpgroup<Element, Config, kKind>;
  // Tensors of a query tile: what makes the scores, and what the gradient sums.
  static constexpr int kScoreTensor = kValues ? 0 : 1, kSummedTensor = 1 - kScoreTensor;
  static constexpr int kFirstSpans = (Config::kSpans + 1) / 2;
  static constexpr int kFirstSpan = kValues ? 0 : kFirstSpans, kEndSpan = kValues ? kFirstSpans : Config::kSpans;
  static_assert(kEndSpan - kFirstSpan >= 1 && kEndSpan - kFirstSpan <= 2);
  static constexpr bool kTwoSpans = kEndSpan - kFirstSpan == 2;

  Warpgroup& w;

  __device__ __forceinline__ auto& full(int tensor) const {
    return tensor == 0 ? w.control.q_full : w.control.d_o_full;
  }
  __device__ __forceinline__ auto& empty(int tensor) const {
    return tensor == 0 ? w.control.q_empty : w.control.d_o_empty;
  }

  // Issues the scores of the step: S, or dP.
  __device__ __forceinline__ void multiply_scores(typename Warpgroup::Scores& scores) const {
    ptx::wgmma_fence();
    w.multiply_rows(scores, kValues ? w.key_offset() : Config::kValueOffset, kScoreTensor);
    ptx::wgmma_commit();
  }
  // Waits for the tile that makes the scores, and clears what lies behind a used length. The other warpgroup reads the
  // tile too: that Q is clear it knows from P, that dO is from a barrier, see wait_summed().
  __device__ __forceinline__ void wait_scored(const BackwardStep& step) const {
    wait(full(kScoreTensor)[w.ring.stage], w.ring.phase);
    if (w.is_whole(step)) return;
    w.clear_rows(w.query_offset(kScoreTensor), Config::kTileM, w.valid_queries(step), threadIdx.x % 128, 128);
    ptx::barrier_sync(Warpgroup::kOwnGroup + w.group, 128);
    if (!kValues) ptx::barrier_arrive(Warpgroup::kTailsDone, Warpgroup::kConsumers);
  }
  // The first warpgroup calls this before it hands P over, so that the second is at most one tail ahead.
  __device__ __forceinline__ void wait_summed(const BackwardStep& step) const {
    wait(full(kSummedTensor)[w.ring.stage], w.ring.phase);
    if (kValues && !w.is_whole(step)) ptx::barrier_sync(Warpgroup::kTailsDone, Warpgroup::kConsumers);
  }

  // One span of dq of the step in buffer `buffer` of dS.
  __device__ __forceinline__ void multiply_span(typename Warpgroup::QueryGradients& dq, uint32_t buffer,
                                                int span) const {
    ptx::wgmma_fence();
    w.multiply_transposed(dq, buffer, span, 0);
    ptx::wgmma_commit();
  }

  // P from one warpgroup to the other, whose fragments lie alike: a thread's four floats together.
  __device__ __forceinline__ float4* shared_probs(int n) const {
    return reinterpret_cast<float4*>(w.tiles + Config::kProbOffset) + n * 128 + threadIdx.x % 128;
  }
  __device__ __forceinline__ void store_probs(const typename Warpgroup::Scores& probs) const {
#pragma unroll
    for (int n = 0; n < Config::kTileM / 8; ++n) {
      *shared_probs(n) = make_float4(probs[0][n][0], probs[0][n][1], probs[0][n][2], probs[0][n][3]);
    }
  }
  __device__ __forceinline__ void load_probs(typename Warpgroup::Scores& probs) const {
#pragma unroll
    for (int n = 0; n < Config::kTileM / 8; ++n) {
      const float4 four = *shared_probs(n);
      probs[0][n][0] = four.x;
      probs[0][n][1] = four.y;
      probs[0][n][2] = four.z;
      probs[0][n][3] = four.w;
    }
  }

  // The step's operand of the gradient: P, handed over too, or dS.
  __device__ __forceinline__ void make_operand(typename Warpgroup::Scores& scores, typename Warpgroup::Operand& operand,
                                               const BackwardStep& step) const {
    // There is one buffer of P, and a step flips its phase as it does the stage.
    const uint32_t parity = w.ring.stage;
    if constexpr (kValues) {
      w.make_probs(scores, operand, step);
      wait(w.control.probs_empty, parity ^ 1);
      store_probs(scores);
      wait_summed(step);
      release_lanes(&w.control.probs_full);
    } else {
      wait_summed(step);
      typename Warpgroup::Scores probs;
      const typename Warpgroup::MinusDeltas minus_delta = w.minus_deltas();
      wait(w.control.probs_full, parity);
      load_probs(probs);
      release_lanes(&w.control.probs_empty);
      wait(w.control.grads_empty[w.ring.stage], w.ring.phase ^ 1);
      w.make_grads(probs, scores, minus_delta, operand);
    }
    // Products with the tile and the reads of its lse or -delta are done.
    release_lanes(&empty(kScoreTensor)[w.ring.stage]);
  }

  // All steps of the block. `sums` are sums from 0.
  __device__ __forceinline__ void run(typename Warpgroup::Gradients& sums) {
    auto& control = w.control;
    auto& ring = w.ring;
    typename Warpgroup::Scores scores;
    typename Warpgroup::Operand operand;
    typename Warpgroup::QueryGradients dq;
    w.wait_keys();
    w.wait_values();
    BackwardStep step(w.tile()), before(w.tile()), added(w.tile());
    wait_scored(step);
    multiply_scores(scores);

    int number = 0;
#pragma unroll 1
    for (bool more = true; more; ++number) {
      w.renew_descriptor();
      ptx::wgmma_wait<0>();
      ptx::pin(scores[0]);
      if (kTwoSpans) ptx::pin(dq);
      if (number > 1) {
        release(&control.grads_empty[ring.stage]);
        if (kTwoSpans) w.add_query_gradient(dq, added, kFirstSpan + 1, 0);
      }
      make_operand(scores, operand, step);
      if (number > 1) w.end_turn(ring.stage);
      ptx::wgmma_fence();
      w.multiply_registers(sums, operand, kSummedTensor);
      ptx::wgmma_commit();

      // On the first step this multiplies what nobody wrote, and the result is dropped.
      w.wait_grads_before();
      multiply_span(dq, ring.stage ^ 1, kFirstSpan);
      const uint32_t stage = ring.stage;
      added = before;
      before = step;
      more = w.agreed(step.advance(w.view(), w.p.backward.f.group));
      ring.advance();
      // Behind the last step this multiplies an old tile, and the result is dropped: wgmma that only some paths issue
      // are serialised by the compiler.
      if (more) wait_scored(step);
      multiply_scores(scores);
      ptx::wgmma_wait<1>();
      ptx::pin(sums[0]);
      ptx::pin(dq);
      release(&empty(kSummedTensor)[stage]);
      if (number > 0) {
        w.wait_turn(ring.stage, ring.phase ^ 1);
        w.add_query_gradient(dq, added, kFirstSpan, 0);
      }
      if (kTwoSpans) multiply_span(dq, stage ^ 1, kFirstSpan + 1);
    }
    ptx::wgmma_wait<0>();
    ptx::pin(dq);
    if (kTwoSpans && number > 1) w.add_query_gradient(dq, added, kFirstSpan + 1, 0);
    if (number > 1) w.end_turn(ring.stage);
    w.wait_grads_before();
    w.wait_turn(ring.stage ^ 1, w.phase_before());
#pragma unroll
    for (int span = kFirstSpan; span < kEndSpan; ++span) {
      multiply_span(dq, ring.stage ^ 1, span);
      ptx::wgmma_wait<0>();
      ptx::pin(dq);
      w.add_query_gradient(dq, before, span, 0);
    }
    w.end_turn(ring.stage ^ 1);
  }
};

template <class Element, class Config, ScoreKind kKind>
__device__ __forceinline__ void consume_wide(BackwardWarpgroup<Element, Config, kKind>& w) {
  using Warpgroup = BackwardWarpgroup<Element, Config, kKind>;
  typename Warpgroup::Gradients sums;
  w.clear(sums);
  const bool any = uniform(w.tile().first_tile != w.tile().stop_tile);
  if (w.group == 0) {
    if (any) WideConsumer<Element, Config, kKind, true>{w}.run(sums);
    w.end_sums();
    ptx::barrier_sync(Warpgroup::kBothGroups, Warpgroup::kConsumers);
    w.store_dv(sums);
  } else {
    if (any) WideConsumer<Element, Config, kKind, false>{w}.run(sums);
    w.end_sums();
    ptx::barrier_sync(Warpgroup::kBothGroups, Warpgroup::kConsumers);
    w.store_dk(sums);
  }
  ptx::barrier_sync(Warpgroup::kBothGroups, Warpgroup::kConsumers);
  w.copy_gradients();
}

}  // namespace tessera::cuda::sm90
