// The consumers of a backward block of 128 keys, for head dims up to 128. Each warpgroup holds 64 keys against all
// query tiles that see them, dk and dv of these in registers; of dq it makes one half. That product is one step late:
// no warpgroup waits for the other's dS of the step at hand.
// Order of a step i: [S(i) is there] dP(i) - P(i) - [dP(i)] dS(i) - dv(i), dq(i - 1), dk(i), S(i + 1) - add dq(i - 1);
// in persistent blocks at d 128: ... dS(i) - dq(i - 1), dv(i) - add dq(i - 1) - dk(i), S(i + 1).
// Registers bind: of 240 the accumulators of dk and dv take 128 at d 128, scores, gradients and dS 80; with 128 queries
// a step at d 64 they take 64 and 160. P becomes the operand of dv only behind dS, whose operand then lies beside it.
#pragma once

#include "backward_warpgroup.cuh"

namespace tessera::cuda::sm90 {

// All steps of a key tile. dk and dv are sums from 0.
template <class Element, class Config, ScoreKind kKind>
__device__ __forceinline__ void run_steps(BackwardWarpgroup<Element, Config, kKind>& w,
                                          typename BackwardWarpgroup<Element, Config, kKind>::Gradients& dk,
                                          typename BackwardWarpgroup<Element, Config, kKind>::Gradients& dv) {
  using Warpgroup = BackwardWarpgroup<Element, Config, kKind>;
  auto& control = w.control;
  auto& ring = w.ring;
  typename Warpgroup::Scores scores, d_probs;
  typename Warpgroup::Operand probs, d_scores;
  typename Warpgroup::QueryGradients dq;
  const int span = Config::kSpans == 1 ? 0 : w.group, query = Config::kSpans == 1 ? w.group * Config::kDqQueries : 0;

  constexpr bool kDqFirst = Config::kDqFirst;
  const auto multiply_values = [&]() __attribute__((always_inline)) {
    w.pack_probs(scores, probs);
    ptx::wgmma_fence();
    w.multiply_registers(dv, probs, 1);
    ptx::wgmma_commit();
  };

  w.wait_keys();
  BackwardStep step(w.tile()), before(w.tile());
  wait(control.q_full[ring.stage], ring.phase);
  w.clear_query_tail(0, step);
  ptx::wgmma_fence();
  w.multiply_rows(scores, w.key_offset(), 0);
  ptx::wgmma_commit();
  w.wait_values();
  w.renew_descriptor();

  int number = 0;
#pragma unroll 1
  for (bool more = true; more; ++number) {
    // Before the products at hand are done, so that the next ones follow at once.
    wait(control.d_o_full[ring.stage], ring.phase);
    w.clear_query_tail(1, step);
    if constexpr (Config::kSumsDelta) w.begin_d_probs(d_probs);
    ptx::wgmma_wait<0>();
    ptx::pin(scores[0]);
    ptx::pin(dk[0]);
    if constexpr (Config::kSumsDelta) ptx::pin(d_probs[0]);
    ptx::wgmma_fence();
    w.template multiply_rows<Config::kSumsDelta>(d_probs, Config::kValueOffset, 1);
    ptx::wgmma_commit();
    // dk of the step before has read its Q.
    if (number > 0) release_lanes(&control.q_empty[ring.stage ^ 1]);

    w.make_probs(scores, probs, step);
    const typename Warpgroup::MinusDeltas minus_delta = w.minus_deltas();
    ptx::wgmma_wait<0>();
    ptx::pin(d_probs[0]);
    wait(control.grads_empty[ring.stage], ring.phase ^ 1);
    w.make_grads(scores, d_probs, minus_delta, d_scores);
    if (number > 1) w.end_turn(ring.stage);

    if constexpr (!kDqFirst) multiply_values();
    // On the first step this multiplies what nobody wrote or an old tile's, and the result is dropped.
    w.wait_grads_before();
    ptx::wgmma_fence();
    w.multiply_transposed(dq, ring.stage ^ 1, span, query);
    ptx::wgmma_commit();
    if constexpr (kDqFirst) multiply_values();
    ptx::wgmma_wait<1>();
    if constexpr (kDqFirst) {
      ptx::pin(dq);
      if (number > 0) {
        release(&control.grads_empty[ring.stage ^ 1]);
        w.wait_turn(ring.stage ^ 1, w.phase_before());
        w.add_query_gradient(dq, before, span, query);
      }
    } else {
      ptx::pin(dv[0]);
      release_lanes(&control.d_o_empty[ring.stage]);
    }
    ptx::wgmma_fence();
    w.multiply_registers(dk, d_scores, 0);
    if constexpr (kDqFirst) {
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      ptx::pin(dv[0]);
      release_lanes(&control.d_o_empty[ring.stage]);
    }
    const BackwardStep added = before;
    before = step;
    more = w.agreed(step.advance(w.view(), w.p.backward.f.group));
    ring.advance();
    // Behind the last step this multiplies an old tile, or what arrives there, and the result is dropped: wgmma that
    // only some paths issue are serialised by the compiler.
    if (more) {
      wait(control.q_full[ring.stage], ring.phase);
      w.clear_query_tail(0, step);
    } else if constexpr (Config::kPersistent) {
      release(&control.values_empty);
    }
    ptx::wgmma_fence();
    w.multiply_rows(scores, w.key_offset(), 0);
    ptx::wgmma_commit();
    if constexpr (!kDqFirst) {
      ptx::wgmma_wait<1>();
      ptx::pin(dq);
      if (number > 0) {
        release(&control.grads_empty[ring.stage]);
        w.wait_turn(ring.stage, ring.phase ^ 1);
        w.add_query_gradient(dq, added, span, query);
      }
    }
  }
  ptx::wgmma_wait<0>();
  ptx::pin(dk[0]);
  if constexpr (Config::kPersistent) release_lanes(&control.q_empty[ring.stage ^ 1]);
  w.wait_grads_before();
  ptx::wgmma_fence();
  w.multiply_transposed(dq, ring.stage ^ 1, span, query);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::pin(dq);
  if constexpr (Config::kPersistent) {
    release(&control.grads_empty[ring.stage ^ 1]);
    w.keys.advance();
  }
  if (number > 1) w.end_turn(ring.stage);
  w.wait_turn(ring.stage ^ 1, w.phase_before());
  w.add_query_gradient(dq, before, span, query);
  w.end_turn(ring.stage ^ 1);
}

template <class Element, class Config, ScoreKind kKind>
__device__ __forceinline__ void consume(BackwardWarpgroup<Element, Config, kKind>& w) {
  using Warpgroup = BackwardWarpgroup<Element, Config, kKind>;
  typename Warpgroup::Gradients dk, dv;
  w.clear(dk);
  w.clear(dv);
  if (uniform(w.tile().first_tile != w.tile().stop_tile)) run_steps(w, dk, dv);
  if constexpr (Config::kPersistent) {
    w.store_both(dk, dv);
  } else {
    ptx::barrier_sync(Warpgroup::kBothGroups, Warpgroup::kConsumers);
    w.store_dk(dk);
    w.store_dv(dv);
    ptx::barrier_sync(Warpgroup::kBothGroups, Warpgroup::kConsumers);
    w.copy_gradients();
  }
}

}  // namespace tessera::cuda::sm90
