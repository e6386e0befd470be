// What the consumer warpgroups of a backward block do, whichever way they share the work: products, P and dS of a
// warpgroup's 64 keys against a query tile, sums of dq.
// Scores are transposed, keys as rows: P^T and dS^T are then, in registers, the A operands of dv += P^T dO and dk +=
// dS^T Q. dq^T = K^T dS^T sums over all keys of the block, so dS goes through shared memory.
#pragma once

#include "../ptx/atomic.cuh"
#include "../ptx/barrier.cuh"
#include "../ptx/stmatrix.cuh"
#include "../ptx/wgmma.cuh"
#include "../tile/dq_sums.cuh"
#include "../tile/row_store.cuh"
#include "../tile/score_gradient.cuh"
#include "backward_control.cuh"

namespace tessera::cuda::sm90 {

// How far a consumer is in the pipelines, which go on across the key tiles of a block.
template <class Config>
struct BackwardPosition {
  Ring<Config::kStages> ring;
  Ring<2> keys;
};

// A consumer warpgroup at one key tile.
template <class Element, class Config, ScoreKind kKind>
struct BackwardWarpgroup {
  static constexpr int kDim = Config::kDim, kTileM = Config::kTileM, kTileN = Config::kTileN, kSpan = Config::kSpan;
  static constexpr int kQuerySteps = kTileM / 16, kDqBlocks = Config::kDqQueries / 8;
  static constexpr uint32_t kConsumers = 128 * Config::kGroups;
  static constexpr int kBothGroups = 1, kOwnGroup = 2, kTailsDone = 4;  // named barriers; 0 is __syncthreads'
  using Scores = float[1][kTileM / 8][4];
  using Gradients = float[1][kDim / 8][4];
  using QueryGradients = float[kDqBlocks][4];  // of 64 columns and kDqQueries queries, transposed
  using Operand = uint32_t[kQuerySteps][4];

  const BackwardLaunchParams& p;
  BackwardControl<Config>& control;
  char* tiles;
  uint32_t shared;      // its address
  uint64_t descriptor;  // of a matrix there, without its leading offset
  int group;            // of the consumers, counted from 0
  uint32_t place;       // of the tile's view
  BackwardBounds bounds;
  float* dq_sums;  // where this lane adds to dq of the sequence's first query of head 0, in the warp's first 16 columns
  Ring<Config::kStages> ring;
  Ring<2> keys;  // of K, which in a block's first tile is at stage 0; V has one buffer, whose phase is this stage

  // What does not change over a key tile is kept in registers; with a softcap, which leaves none to spare but at d 128,
  // it is read from shared memory in every step.
  static constexpr bool kHolds = kDim == 128 || kKind == ScoreKind::plain;

  // Its thread is of warpgroup `number` of the consumers; the view of the tile is at view_place.
  __device__ __forceinline__ BackwardWarpgroup(const BackwardLaunchParams& params,
                                               BackwardControl<Config>& shared_control, char* tile_memory, int number,
                                               uint32_t view_place, const BackwardPosition<Config>& position)
      : p(params),
        control(shared_control),
        tiles(tile_memory),
        shared(anew(ptx::shared_address(tile_memory))),
        descriptor(ptx::matrix_descriptor<kSpan>(shared, 0)),
        group(static_cast<int>(anew(number))),
        place(view_place),
        bounds(tile()),
        dq_sums(p.backward.dq_sum + dq_transposed_fragment(0, 0, tile().scratch_row, 0, kDim) + threadIdx.x % 128 * 4),
        ring(position.ring),
        keys(position.keys) {}
  __device__ __forceinline__ BackwardPosition<Config> position() const { return {ring, keys}; }
  __device__ __forceinline__ const KeyTileView& tile() const { return control.views[place]; }
  // In persistent blocks the compiler must not know that descriptors are those of the key tile before, nor the steps'
  // those of the first product, nor in wide blocks those of the step before: it keeps them all, and spills.
  __device__ __forceinline__ static uint32_t anew(uint32_t value) {
    return Config::kPersistent || Config::kWide ? __shfl_sync(0xffffffffu, value, 0) : value;
  }
  __device__ __forceinline__ void renew_descriptor() { descriptor = ptx::matrix_descriptor<kSpan>(anew(shared), 0); }
  __device__ __forceinline__ const auto& view() const {
    if constexpr (kHolds) {
      return bounds;
    } else {
      return tile();
    }
  }
  // What follows from the view alone is the same in every lane, and known to be where registers hold it.
  __device__ __forceinline__ static bool agreed(bool value) { return kHolds ? value : uniform(value); }

  // Of the tile's blocks of 64 keys the one whose scores this warpgroup makes.
  __device__ __forceinline__ int key_block() const { return Config::kKeyBlocks == 1 ? 0 : group; }

  __device__ __forceinline__ int thread() const { return static_cast<int>(threadIdx.x) - 128; }  // of the consumers
  // The warp's first key in the tile.
  __device__ __forceinline__ int first_key() const {
    return key_block() * 64 + static_cast<int>(threadIdx.x / 32 % 4) * 16;
  }
  // Of the stage's tile of Q (0) or dO (1).
  __device__ __forceinline__ uint32_t query_offset(int tensor) const {
    return Config::kQueryOffset + (2 * ring.stage + tensor) * Config::kQueryBytes;
  }

  // Clears a tile's rows from `valid` on, as thread number `thread` of `threads`: what lies in memory behind a used
  // length must reach nothing. A barrier of these threads stands behind. Rare.
  __device__ __forceinline__ void clear_rows(uint32_t offset, int rows, int64_t valid, int thread,
                                             uint32_t threads) const {
    constexpr int kChunks = kDim / 8;
#pragma unroll 1
    for (int i = static_cast<int>(valid) * kChunks + thread; i < rows * kChunks; i += threads) {
      const int row = i / kChunks, chunk = i % kChunks;
      *reinterpret_cast<uint4*>(tiles + offset + (chunk / 8 * rows + row) * kSpan + chunk % 8 * 16) =
          make_uint4(0, 0, 0, 0);
    }
    ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);
  }
  // Where K lies.
  __device__ __forceinline__ uint32_t key_offset() const { return keys.stage * Config::kSecondKeyOffset; }
  __device__ __forceinline__ void wait_keys() const {
    wait_keys(control.keys_full[keys.stage], keys.phase, key_offset());
  }
  __device__ __forceinline__ void wait_values() const {
    wait_keys(control.values_full, keys.stage, Config::kValueOffset);
  }
  // Waits for K or V, by both warpgroups together.
  __device__ __forceinline__ void wait_keys(uint64_t& full, uint32_t phase, uint32_t offset) const {
    wait(full, phase);
    const int64_t valid = tile().sequence.band.seqlen_k - int64_t{tile().key_tile} * kTileN;
    if (valid >= kTileN) return;
    clear_rows(offset, kTileN, valid, thread(), kConsumers);
    ptx::barrier_sync(kBothGroups, kConsumers);
  }
  __device__ __forceinline__ bool is_whole(const BackwardStep& step) const {
    return agreed(step.tile < view().whole_end);
  }
  __device__ __forceinline__ int64_t valid_queries(const BackwardStep& step) const {
    return tile().sequence.band.seqlen_q - int64_t{step.tile} * kTileM;
  }
  // A tile of Q (0) or dO (1), by both warpgroups together.
  __device__ __forceinline__ void clear_query_tail(int tensor, const BackwardStep& step) const {
    if (is_whole(step)) return;
    clear_rows(query_offset(tensor), kTileM, valid_queries(step), thread(), kConsumers);
    ptx::barrier_sync(kBothGroups, kConsumers);
  }

  // The descriptor `bytes` further on. Where registers allow, one addition to its low word.
  __device__ __forceinline__ static uint64_t further(uint64_t matrix, uint32_t bytes) {
    if (Config::kWide) return matrix + (bytes >> 4);
    return (matrix >> 32 << 32) | (static_cast<uint32_t>(matrix) + (bytes >> 4));
  }

  // The descriptor of what lies `offset` bytes into shared memory, a multiple of 16. One addition to what is kept: it
  // stands between a wait and the first product behind it.
  __device__ __forceinline__ uint64_t matrix(uint32_t offset, uint32_t leading) const {
    return further(descriptor, offset) + (leading >> 4 << 16);
  }

  // Issues scores = the warpgroup's rows of the K or V at `offset` times the query tile of `tensor`, transposed; kAdds:
  // scores += that.
  template <bool kAdds = false>
  __device__ __forceinline__ void multiply_rows(Scores& scores, uint32_t offset, int tensor) const {
    const uint64_t a = matrix(offset + key_block() * 64 * kSpan, 16), b = matrix(query_offset(tensor), 16);
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      const int span = step / 4, inner = step % 4 * 32;
      const uint64_t a_step = further(a, span * kTileN * kSpan + inner),
                     b_step = further(b, span * kTileM * kSpan + inner);
      if (step == 0 && !kAdds) {
        ptx::wgmma_shared_first<Element::kType, kTileM>(scores[0], a_step, b_step);
      } else {
        ptx::wgmma_shared<Element::kType, kTileM>(scores[0], a_step, b_step, 1);
      }
    }
  }

  // Issues acc += operand times the rows of the query tile of `tensor`.
  __device__ __forceinline__ void multiply_registers(Gradients& acc, const Operand& operand, int tensor) const {
    const uint64_t b = matrix(query_offset(tensor), kTileM * kSpan);
#pragma unroll
    for (int step = 0; step < kQuerySteps; ++step) {
      ptx::wgmma_registers<Element::kType, kDim>(acc[0], operand[step], further(b, step * 16 * kSpan), 1);
    }
  }

  // Issues dq^T = K^T dS^T of the 64 columns from span `span` and of the kDqQueries queries from `query` on, dS in
  // buffer `buffer`.
  __device__ __forceinline__ void multiply_transposed(QueryGradients& dq, uint32_t buffer, int span, int query) const {
    const uint64_t a = matrix(key_offset() + span * kTileN * kSpan, 16);
    const uint64_t b = matrix(Config::kGradOffset + buffer * Config::kGradBytes + query * kSpan, 16);
#pragma unroll
    for (int step = 0; step < kTileN / 16; ++step) {
      const uint64_t a_step = further(a, step * 16 * kSpan);
      const uint64_t b_step = further(b, step / 4 * kTileM * kSpan + step % 4 * 32);
      if (step == 0) {
        ptx::wgmma_transposed_first<Element::kType, Config::kDqQueries>(dq, a_step, b_step);
      } else {
        ptx::wgmma_transposed<Element::kType, Config::kDqQueries>(dq, a_step, b_step, 1);
      }
    }
  }

  // Products to P: `operand` is what multiplies dO (under kPacksLate left to pack_probs()), `probs` what dP - delta is
  // multiplied with, under a softcap P times its derivative.
  template <bool kMasked>
  __device__ __forceinline__ void make_probs(Scores& probs, Operand& operand, int64_t query) const {
    const auto* lse =
        reinterpret_cast<const float*>(tiles + Config::kStatisticsOffset + ring.stage * Config::kStatisticsBytes);
    const float scale = kKind == ScoreKind::general ? p.backward.f.scale : p.backward.f.scale_log2;
    const float softcap = p.backward.f.softcap;
    int begin[2], end[2];
    if constexpr (kMasked) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t key = int64_t{tile().key_tile} * kTileN + first_key() + fragment_row(0, half);
        const core::Range rows = tile().sequence.band.seeing_rows(key, key + 1);
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
        float bend = 1.0f;
        if constexpr (kKind == ScoreKind::general) {
          const float x = core::apply_softcap(probs[0][n][e] * scale, softcap);
          bend = core::softcap_derivative(x, softcap);
          kept[e] = probability(x, e % 2 == 0 ? pair.x : pair.y);
        } else {
          kept[e] = probability(fmaf(probs[0][n][e], scale, e % 2 == 0 ? -pair.x : -pair.y));
        }
        if constexpr (kMasked) {
          const int column = fragment_column(n, e);
          if (column < begin[e / 2] || column >= end[e / 2]) kept[e] = 0.0f;
        }
        probs[0][n][e] = kKind == ScoreKind::general ? kept[e] * bend : kept[e];
      }
      if constexpr (!kPacksLate) {
        operand[n / 2][n % 2 * 2] = Element::pack(kept[0], kept[1]);
        operand[n / 2][n % 2 * 2 + 1] = Element::pack(kept[2], kept[3]);
      }
    }
  }
  // P as what multiplies dO, where make_probs() has left that: behind dS, so that P and dP are the only tiles held
  // meanwhile.
  static constexpr bool kPacksLate = !Config::kWide && kKind == ScoreKind::plain;
  __device__ __forceinline__ static void pack_probs(const Scores& probs, Operand& operand) {
    if constexpr (kPacksLate) {
#pragma unroll
      for (int n = 0; n < kTileM / 8; ++n) {
        operand[n / 2][n % 2 * 2] = Element::pack(probs[0][n][0], probs[0][n][1]);
        operand[n / 2][n % 2 * 2 + 1] = Element::pack(probs[0][n][2], probs[0][n][3]);
      }
    }
  }
  __device__ __forceinline__ void make_probs(Scores& probs, Operand& operand, const BackwardStep& step) const {
    if (agreed(step.tile >= view().plain_begin && step.tile < view().plain_end)) {
      make_probs<false>(probs, operand, 0);
    } else {
      make_probs<true>(probs, operand, int64_t{step.tile} * kTileM);
    }
  }

  // -delta of the queries of a lane's columns: all loaded before they are wanted or, where registers are short, each
  // then. See BackwardBounds for what such a load takes.
  struct MinusDeltas {
    static constexpr bool kAhead = kHolds && kKind == ScoreKind::plain && !Config::kSumsDelta;
    const float* queries;
    float2 held[kAhead ? kTileM / 8 : 1]{};

    __device__ __forceinline__ explicit MinusDeltas(const float* values) : queries(values) {
      if constexpr (kAhead) {
#pragma unroll
        for (int n = 0; n < kTileM / 8; ++n) held[n] = load(n);
      }
    }
    __device__ __forceinline__ float2 load(int n) const {
      return *reinterpret_cast<const float2*>(queries + fragment_column(n, 0));
    }
    __device__ __forceinline__ float2 of(int n) const { return kAhead ? held[n] : load(n); }
  };
  // Of the stage's queries.
  __device__ __forceinline__ MinusDeltas minus_deltas() const {
    return MinusDeltas(reinterpret_cast<const float*>(tiles + Config::kStatisticsOffset +
                                                      ring.stage * Config::kStatisticsBytes + kTileM * 4));
  }

  // Where dP is summed from -delta on: that, in the accumulators, before the product is issued.
  __device__ __forceinline__ void begin_d_probs(Scores& d_probs) const {
    const MinusDeltas minus_delta = minus_deltas();
#pragma unroll
    for (int n = 0; n < kTileM / 8; ++n) {
      const float2 pair = minus_delta.load(n);
      d_probs[0][n][0] = d_probs[0][n][2] = pair.x;
      d_probs[0][n][1] = d_probs[0][n][3] = pair.y;
    }
  }

  // dS of the step: to registers for dk, and to shared memory for dq.
  __device__ __forceinline__ void make_grads(const Scores& probs, const Scores& d_probs, const MinusDeltas& minus_delta,
                                             Operand& operand) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    // Rows are queries, of 64 keys of one warpgroup; lane l names row l % 8 of matrix l / 8.
    const uint32_t row = (lane / 16 * 8 + lane % 8) * kSpan + ((2 * warp + lane / 8 % 2) ^ lane % 8) * 16;
    const uint32_t to =
        shared + Config::kGradOffset + ring.stage * Config::kGradBytes + key_block() * kTileM * kSpan + row;
#pragma unroll
    for (int step = 0; step < kQuerySteps; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int n = 2 * step + half;
        const float2 pair = Config::kSumsDelta ? float2{} : minus_delta.of(n);
        const auto times = [](float prob, float d_prob, float addend) {
          return prob * (Config::kSumsDelta ? d_prob : d_prob + addend);
        };
        const float(&probs_n)[4] = probs[0][n], (&d_probs_n)[4] = d_probs[0][n];
        operand[step][2 * half] =
            Element::pack(times(probs_n[0], d_probs_n[0], pair.x), times(probs_n[1], d_probs_n[1], pair.y));
        operand[step][2 * half + 1] =
            Element::pack(times(probs_n[2], d_probs_n[2], pair.x), times(probs_n[3], d_probs_n[3], pair.y));
      }
      ptx::stmatrix_x4_trans(to + step * 16 * kSpan, operand[step]);
    }
    ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);
    __syncwarp();
    release(&control.grads_full[ring.stage]);
  }

  // Adds what multiply_transposed() made for the query tile of `step` to the sums of the workspace.
  __device__ __forceinline__ void add_query_gradient(const QueryGradients& dq, const BackwardStep& step, int span,
                                                     int query) const {
    const BackwardParams& b = p.backward;
    const int block = span * 4 + static_cast<int>(threadIdx.x / 32 % 4);  // of 16 columns
    if (block * 16 >= b.f.head_dim_qk) return;
    const int64_t row = int64_t{step.tile} * kTileM + query;
    float* sums;
    if constexpr (kHolds) {
      sums = dq_sums + dq_transposed_fragment(b.scratch_rows, step.head, row, span * 64, kDim);
    } else {
      sums = b.dq_sum + threadIdx.x % 32 * 4 +
             dq_transposed_fragment(b.scratch_rows, step.head, tile().scratch_row + row, block * 16, kDim);
    }
#pragma unroll
    for (int n = 0; n < kDqBlocks; ++n) ptx::reduce_add_v4(sums + n * kDim * 8, dq[n]);
  }

  // In a fixed order of additions, see backward_turns.cuh: waits until it is this block's turn to add dq of a step
  // whose number has the parity of `stage`.
  __device__ __forceinline__ void wait_turn(uint32_t stage, uint32_t phase) const {
    if (p.backward.turns != nullptr) wait(control.turn_open[stage], phase);
  }
  // Ends that turn: the thread that closes it knows of the additions by this barrier, and its release covers them. No
  // fence here; one took a fifth to a quarter of the whole time. Called as late as others can wait, so that the
  // additions have long been made.
  __device__ __forceinline__ void end_turn(uint32_t stage) const {
    if (p.backward.turns == nullptr) return;
    __syncwarp();
    release(&control.turn_done[stage]);
  }

  // Behind the last additions of a wide block.
  __device__ __forceinline__ void end_sums() const {
    if (!p.backward.converts) return;
    __syncwarp();
    release(&control.sums_done);
  }

  // The phase of the barriers of the step before the one that `ring` is at.
  __device__ __forceinline__ uint32_t phase_before() const { return ring.stage == 0 ? ring.phase ^ 1 : ring.phase; }
  // Waits for that step's dS; at once before the first.
  __device__ __forceinline__ void wait_grads_before() const {
    wait(control.grads_full[ring.stage ^ 1], phase_before());
  }

  __device__ __forceinline__ RowTarget dk_rows() const {
    const BackwardParams& b = p.backward;
    return key_rows(b.dk, b.dk_stride, b.f.head_dim_qk, b.dk_is_float);
  }
  __device__ __forceinline__ RowTarget dv_rows() const {
    const BackwardParams& b = p.backward;
    return key_rows(b.dv, b.dv_stride, b.f.head_dim_v, b.dv_is_float);
  }
  __device__ __forceinline__ RowTarget key_rows(void* gradient, const Strides& stride, int head_dim,
                                                bool is_float) const {
    const KeyTileView& view = tile();
    const SequenceView& at = view.sequence;
    const int64_t key = int64_t{view.key_tile} * kTileN;
    return row_target(gradient, stride, at.kv_batch, at.kv_row + key, view.kv_head, view.owned_keys - key, head_dim,
                      is_float);
  }
  // In blocks of one key tile: the warpgroup's dk or dv, then, behind a barrier of both warpgroups, all of the tile's.
  // Before it both are done with K and V, whose place in shared memory they take.
  __device__ __forceinline__ void store_dk(const Gradients& dk) const {
    store_rows<Element, kDim, 1>(dk_rows(), tiles, dk, first_key(), 0, p.backward.f.scale);
  }
  __device__ __forceinline__ void store_dv(const Gradients& dv) const {
    store_rows<Element, kDim, 1>(dv_rows(), tiles + Config::kValueOffset, dv, first_key(), 0, 1.0f);
  }
  __device__ __forceinline__ void copy_gradients() const {
    copy_rows<kTileN, kDim, kConsumers>(dk_rows(), tiles, thread());
    copy_rows<kTileN, kDim, kConsumers>(dv_rows(), tiles + Config::kValueOffset, thread());
  }
  // In persistent blocks: a warp's rows of both, one after the other, through a place that is theirs alone, while the
  // next tile arrives.
  __device__ __forceinline__ void store_both(const Gradients& dk, const Gradients& dv) const {
    const int row = first_key(), lane = threadIdx.x % 32;
    char* const to = tiles + Config::kOutputOffset;
    const auto store = [&](const RowTarget& target, const Gradients& gradient, float factor)
        __attribute__((always_inline)) {
      store_rows<Element, kDim, 1>(target, to, gradient, row, 0, factor);
      __syncwarp();
      copy_rows<16, kDim, 32>(target.from(row), to + row * kDim * 2, lane);
      __syncwarp();
    };
    store(dv_rows(), dv, 1.0f);
    store(dk_rows(), dk, p.backward.f.scale);
  }
  __device__ __forceinline__ static void clear(Gradients& acc) {
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) acc[0][n][0] = acc[0][n][1] = acc[0][n][2] = acc[0][n][3] = 0.0f;
    ptx::pin(acc[0]);
  }
};

}  // namespace tessera::cuda::sm90
