// A consumer warpgroup of a backward block: 64 keys against all query tiles that see them. Scores are transposed, keys
// as rows: P^T and dS^T are then, in registers, the A operands of dv += P^T dO and dk += dS^T Q.
// dq^T = K^T dS^T sums over both warpgroups' keys, so dS goes through shared memory, and each warpgroup makes one half
// of dq. That product is one step late: no warpgroup waits for the other's dS of the step at hand.
// Order of a step i: [S(i) is there] dP(i) - P(i) - dv(i) - dS(i) - dq(i - 1) - dk(i), S(i + 1) - add dq(i - 1).
// Registers bind: of 240 the accumulators of dk and dv take 128 at d 128, scores, gradients, P and dS 96.
#pragma once

#include "../ptx/atomic.cuh"
#include "../ptx/barrier.cuh"
#include "../ptx/stmatrix.cuh"
#include "../ptx/wgmma.cuh"
#include "../tile/row_store.cuh"
#include "../tile/score_gradient.cuh"
#include "backward_control.cuh"

namespace tessera::cuda::sm90 {

template <class Element, class Config, ScoreKind kKind>
struct BackwardConsumer {
  static constexpr int kDim = Config::kDim, kTileM = Config::kTileM, kTileN = Config::kTileN, kSpan = Config::kSpan;
  static constexpr int kQuerySteps = kTileM / 16, kDqBlocks = Config::kDqQueries / 8;
  static constexpr uint32_t kConsumers = 128 * Config::kGroups;
  static constexpr int kBothGroups = 1, kOwnGroup = 2;  // named barriers; 0 is __syncthreads'
  using Scores = float[1][kTileM / 8][4];
  using Gradients = float[1][kDim / 8][4];
  using Operand = uint32_t[kQuerySteps][4];

  const BackwardLaunchParams& p;
  BackwardControl<Config>& control;
  char* tiles;
  uint32_t shared;  // its address
  int group;        // of the consumers, counted from 0
  Ring<Config::kStages> ring;

  __device__ __forceinline__ static void release(uint64_t* barrier) {
    if (threadIdx.x % 32 == 0) ::cuda::ptx::mbarrier_arrive(barrier);
  }
  __device__ __forceinline__ int thread() const { return static_cast<int>(threadIdx.x) - 128; }  // of the consumers
  // The warp's first key in the tile.
  __device__ __forceinline__ int first_key() const { return group * 64 + static_cast<int>(threadIdx.x / 32 % 4) * 16; }
  __device__ __forceinline__ uint32_t query_tile(int tensor) const {
    return shared + Config::kQueryOffset + (2 * ring.stage + tensor) * Config::kQueryBytes;
  }

  // Clears the rows of a tile from `valid` on: what lies in memory behind a used length must reach nothing. Rare, by
  // both warpgroups together.
  template <int kRows>
  __device__ __forceinline__ void clear_tail(uint32_t offset, int64_t valid) const {
    if (valid >= kRows) return;
    constexpr int kChunks = kDim / 8;
    for (int i = static_cast<int>(valid) * kChunks + thread(); i < kRows * kChunks; i += kConsumers) {
      const int row = i / kChunks, chunk = i % kChunks;
      *reinterpret_cast<uint4*>(tiles + offset + (chunk / 8 * kRows + row) * kSpan + chunk % 8 * 16) =
          make_uint4(0, 0, 0, 0);
    }
    ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);
    ptx::barrier_sync(kBothGroups, kConsumers);
  }
  __device__ __forceinline__ int64_t valid_queries(int tile) const {
    return control.view.sequence.band.seqlen_q - int64_t{tile} * kTileM;
  }

  // Issues scores = the warpgroup's rows of `keys` times the query tile `queries`, transposed.
  __device__ __forceinline__ void multiply_rows(Scores& scores, uint32_t keys, uint32_t queries) const {
    const uint64_t a = ptx::matrix_descriptor<kSpan>(keys + group * 64 * kSpan, 16);
    const uint64_t b = ptx::matrix_descriptor<kSpan>(queries, 16);
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      const int span = step / 4, inner = step % 4 * 32;
      const uint64_t a_step = a + (span * kTileN * kSpan + inner) / 16,
                     b_step = b + (span * kTileM * kSpan + inner) / 16;
      if (step == 0) {
        ptx::wgmma_shared_first<Element::kType, kTileM>(scores[0], a_step, b_step);
      } else {
        ptx::wgmma_shared<Element::kType, kTileM>(scores[0], a_step, b_step, 1);
      }
    }
  }

  // Issues acc += operand times the rows of the query tile `queries`.
  __device__ __forceinline__ void multiply_registers(Gradients& acc, const Operand& operand, uint32_t queries) const {
    const uint64_t b = ptx::matrix_descriptor<kSpan>(queries, kTileM * kSpan);
#pragma unroll
    for (int step = 0; step < kQuerySteps; ++step) {
      ptx::wgmma_registers<Element::kType, kDim>(acc[0], operand[step], b + step * 16 * kSpan / 16, 1);
    }
  }

  // Issues dq^T = K^T dS^T of the warpgroup's half, dS in buffer `buffer`.
  __device__ __forceinline__ void multiply_transposed(float (&dq)[kDqBlocks][4], int buffer) const {
    const int span = Config::kSpans == 1 ? 0 : group, query = Config::kSpans == 1 ? group * Config::kDqQueries : 0;
    const uint64_t a = ptx::matrix_descriptor<kSpan>(shared + span * kTileN * kSpan, 16);
    const uint64_t b =
        ptx::matrix_descriptor<kSpan>(shared + Config::kGradOffset + buffer * Config::kGradBytes + query * kSpan, 16);
#pragma unroll
    for (int step = 0; step < kTileN / 16; ++step) {
      const uint64_t a_step = a + step * 16 * kSpan / 16;
      const uint64_t b_step = b + (step / 4 * kTileM * kSpan + step % 4 * 32) / 16;
      if (step == 0) {
        ptx::wgmma_transposed_first<Element::kType, Config::kDqQueries>(dq, a_step, b_step);
      } else {
        ptx::wgmma_transposed<Element::kType, Config::kDqQueries>(dq, a_step, b_step, 1);
      }
    }
  }

  // Products to P: `operand` is what multiplies dO, `probs` what dP - delta is multiplied with, under a softcap P times
  // its derivative.
  template <bool kMasked>
  __device__ __forceinline__ void make_probs(Scores& probs, Operand& operand, int64_t query) const {
    const auto* lse =
        reinterpret_cast<const float*>(tiles + Config::kStatisticsOffset + ring.stage * Config::kStatisticsBytes);
    const float scale = p.backward.f.scale, softcap = p.backward.f.softcap;
    int begin[2], end[2];
    if constexpr (kMasked) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t key = int64_t{control.view.key_tile} * kTileN + first_key() + fragment_row(0, half);
        const core::Range rows = control.view.sequence.band.seeing_rows(key, key + 1);
        begin[half] = static_cast<int>(clamp_to(rows.begin - query, 0, kTileM));
        end[half] = static_cast<int>(clamp_to(rows.end - query, 0, kTileM));
      }
    }
#pragma unroll
    for (int n = 0; n < kTileM / 8; ++n) {
      const float2 pair = *reinterpret_cast<const float2*>(lse + fragment_column(n, 0));
      float kept[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float bend = 1.0f, x = probs[0][n][e] * scale;
        if constexpr (kKind == ScoreKind::general) {
          x = core::apply_softcap(x, softcap);
          bend = core::softcap_derivative(x, softcap);
          kept[e] = probability(x - (e % 2 == 0 ? pair.x : pair.y));
        } else {
          kept[e] = probability(fmaf(probs[0][n][e], scale, e % 2 == 0 ? -pair.x : -pair.y));
        }
        if constexpr (kMasked) {
          const int column = fragment_column(n, e);
          if (column < begin[e / 2] || column >= end[e / 2]) kept[e] = 0.0f;
        }
        probs[0][n][e] = kKind == ScoreKind::general ? kept[e] * bend : kept[e];
      }
      operand[n / 2][n % 2 * 2] = Element::pack(kept[0], kept[1]);
      operand[n / 2][n % 2 * 2 + 1] = Element::pack(kept[2], kept[3]);
    }
  }

  // dS of the step: to registers for dk, and to shared memory for dq.
  __device__ __forceinline__ void make_grads(const Scores& probs, const Scores& d_probs, Operand& operand) const {
    const auto* delta = reinterpret_cast<const float*>(tiles + Config::kStatisticsOffset +
                                                       ring.stage * Config::kStatisticsBytes + kTileM * 4);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    // Rows are queries, of 64 keys of one warpgroup; lane l names row l % 8 of matrix l / 8.
    const uint32_t row = (lane / 16 * 8 + lane % 8) * kSpan + ((2 * warp + lane / 8 % 2) ^ lane % 8) * 16;
    const uint32_t to = shared + Config::kGradOffset + ring.stage * Config::kGradBytes + group * kTileM * kSpan + row;
#pragma unroll
    for (int step = 0; step < kQuerySteps; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int n = 2 * step + half;
        const float2 pair = *reinterpret_cast<const float2*>(delta + fragment_column(n, 0));
        const float(&probs_n)[4] = probs[0][n], (&d_probs_n)[4] = d_probs[0][n];
        operand[step][2 * half] =
            Element::pack(probs_n[0] * (d_probs_n[0] - pair.x), probs_n[1] * (d_probs_n[1] - pair.y));
        operand[step][2 * half + 1] =
            Element::pack(probs_n[2] * (d_probs_n[2] - pair.x), probs_n[3] * (d_probs_n[3] - pair.y));
      }
      ptx::stmatrix_x4_trans(to + step * 16 * kSpan, operand[step]);
    }
    ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);
    __syncwarp();
    release(&control.grads_full[ring.stage]);
  }

  // Adds the warpgroup's half of one query tile's dq to the sums of the workspace.
  __device__ __forceinline__ void add_query_gradient(const float (&dq)[kDqBlocks][4], const BackwardStep& step) const {
    const BackwardParams& b = p.backward;
    const KeyTileView& view = control.view;
    const int64_t row = view.scratch_row + int64_t{step.tile} * kTileM;
    int32_t* turn = b.turns + (step.head * b.scratch_rows + row) / kTurnRows;
    if (b.turns != nullptr) {
      // Key tiles with higher numbers have lower tickets; those of them that see these queries come before, two
      // warpgroups each.
      const int64_t query = int64_t{step.tile} * kTileM;
      const int64_t tiles_seen = view.sequence.band.visible_tiles(query, query + kTileM, kTileN).end;
      if (threadIdx.x % 128 == 0) {
        while (ptx::load_acquire(turn) < 2 * (tiles_seen - 1 - view.key_tile)) {
        }
      }
      ptx::barrier_sync(kOwnGroup + group, 128);
    }
    const int span = Config::kSpans == 1 ? 0 : group, query = Config::kSpans == 1 ? group * Config::kDqQueries : 0;
    const int block = span * 4 + static_cast<int>(threadIdx.x / 32 % 4);  // of 16 columns
    float* sums = b.dq_sum + dq_transposed_fragment(b.scratch_rows, step.head, row + query, block * 16, kDim) +
                  threadIdx.x % 32 * 4;
    if (block * 16 < b.f.head_dim_qk) {
#pragma unroll
      for (int n = 0; n < kDqBlocks; ++n) ptx::reduce_add_v4(sums + n * kDim * 8, dq[n]);
    }
    if (b.turns != nullptr) {
      __threadfence();
      ptx::barrier_sync(kOwnGroup + group, 128);
      if (threadIdx.x % 128 == 0) ptx::reduce_add_release(turn, 1);
    }
  }

  // Waits for dS of the step before the one that `ring` is at; at once before the first.
  __device__ __forceinline__ void wait_grads_before() const {
    wait(control.grads_full[ring.stage ^ 1], ring.stage == 0 ? ring.phase ^ 1 : ring.phase);
  }

  // All steps of the block. dk and dv are sums from 0.
  __device__ __forceinline__ void run_steps(Gradients& dk, Gradients& dv) {
    const KeyTileView& view = control.view;
    const core::Band& band = view.sequence.band;
    const int64_t key = int64_t{view.key_tile} * kTileN;
    Scores scores, d_probs;
    Operand probs, d_scores;
    float dq[kDqBlocks][4];

    wait(control.keys_full, 0);
    wait(control.values_full, 0);
    clear_tail<kTileN>(0, band.seqlen_k - key);
    clear_tail<kTileN>(Config::kValueOffset, band.seqlen_k - key);
    BackwardStep step(view), before(view);
    wait(control.q_full[0], 0);
    clear_tail<kTileM>(Config::kQueryOffset, valid_queries(step.tile));
    ptx::wgmma_fence();
    multiply_rows(scores, shared, query_tile(0));
    ptx::wgmma_commit();

#pragma unroll 1
    for (bool first = true, more = true; more; first = false) {
      ptx::wgmma_wait<0>();
      ptx::pin(scores[0]);
      ptx::pin(dk[0]);
      // dk of the step before has read its Q.
      if (!first) release(&control.q_empty[ring.stage ^ 1]);
      wait(control.d_o_full[ring.stage], ring.phase);
      clear_tail<kTileM>(query_tile(1) - shared, valid_queries(step.tile));
      ptx::wgmma_fence();
      multiply_rows(d_probs, shared + Config::kValueOffset, query_tile(1));
      ptx::wgmma_commit();

      const int64_t query = int64_t{step.tile} * kTileM;
      if (uniform(band.keeps_all(query, query + kTileM, key, key + kTileN))) {
        make_probs<false>(scores, probs, query);
      } else {
        make_probs<true>(scores, probs, query);
      }
      ptx::wgmma_fence();
      multiply_registers(dv, probs, query_tile(1));
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      ptx::pin(d_probs[0]);
      wait(control.grads_empty[ring.stage], ring.phase ^ 1);
      make_grads(scores, d_probs, d_scores);

      // On the first step this multiplies what nobody wrote, and the result is dropped.
      wait_grads_before();
      ptx::wgmma_fence();
      multiply_transposed(dq, static_cast<int>(ring.stage) ^ 1);
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      ptx::pin(dv[0]);
      release(&control.d_o_empty[ring.stage]);
      ptx::wgmma_fence();
      multiply_registers(dk, d_scores, query_tile(0));
      const BackwardStep added = before;
      before = step;
      more = uniform(step.advance(view));
      ring.advance();
      // Behind the last step this multiplies an old tile, and the result is dropped: wgmma that only some paths issue
      // are serialised by the compiler.
      if (more) {
        wait(control.q_full[ring.stage], ring.phase);
        clear_tail<kTileM>(query_tile(0) - shared, valid_queries(step.tile));
      }
      ptx::wgmma_fence();
      multiply_rows(scores, shared, query_tile(0));
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      ptx::pin(dq);
      if (!first) {
        release(&control.grads_empty[ring.stage]);
        add_query_gradient(dq, added);
      }
    }
    ptx::wgmma_wait<0>();
    ptx::pin(dk[0]);
    wait_grads_before();
    ptx::wgmma_fence();
    multiply_transposed(dq, static_cast<int>(ring.stage) ^ 1);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin(dq);
    add_query_gradient(dq, before);
  }

  __device__ __forceinline__ void run() {
    const KeyTileView& view = control.view;
    Gradients dk, dv;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) dk[0][n][e] = dv[0][n][e] = 0.0f;
    }
    ptx::pin(dk[0]);
    ptx::pin(dv[0]);
    if (uniform(view.query_begin < view.query_end)) run_steps(dk, dv);

    const BackwardParams& b = p.backward;
    const int64_t key = int64_t{view.key_tile} * kTileN, count = view.owned_keys - key;
    const SequenceView& at = view.sequence;
    const RowTarget dk_rows = row_target(b.dk, b.dk_stride, at.kv_batch, at.kv_row + key, view.kv_head, count,
                                         b.f.head_dim_qk, b.dk_is_float);
    const RowTarget dv_rows =
        row_target(b.dv, b.dv_stride, at.kv_batch, at.kv_row + key, view.kv_head, count, b.f.head_dim_v, b.dv_is_float);
    // Both warpgroups are done with K and V.
    ptx::barrier_sync(kBothGroups, kConsumers);
    store_rows<Element, kDim, 1>(dk_rows, tiles, dk, first_key(), 0, b.f.scale);
    store_rows<Element, kDim, 1>(dv_rows, tiles + Config::kValueOffset, dv, first_key(), 0, 1.0f);
    ptx::barrier_sync(kBothGroups, kConsumers);
    copy_rows<kTileN, kDim, kConsumers>(dk_rows, tiles, thread());
    copy_rows<kTileN, kDim, kConsumers>(dv_rows, tiles + Config::kValueOffset, thread());
  }
};

}  // namespace tessera::cuda::sm90
