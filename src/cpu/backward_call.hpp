// What the instruction-set independent half of the CPU backward kernel (backward_plan.cpp) hands to the vector half
// (backward.hpp, bias_gradient.hpp): one call, its tiles and one task. Plain data, so nothing here is compiled twice.
#pragma once

#include <cstddef>
#include <cstdint>

#include "problem.hpp"
#include "sequence.hpp"
#include "tessera/tessera.h"

namespace tessera::cpu {

// Sizes that follow from dtype, head dims and device (rows, chunk), from the heads and one sequence's own length
// (stretches), or that change no result (whole).
struct BackwardTiles {
  int64_t rows;   // query rows a block, a multiple of the microkernel's; rows are positions x heads, position outermost
  int64_t chunk;  // keys packed at a time
  int64_t dim_qk_padded, dim_v_padded;
  int64_t stretches;  // of the longest sequence's keys: dq is the sum of theirs, in order
  bool whole;         // a task takes all stretches of a (sequence, key head); else one, and dq is summed afterwards
  // Byte offsets into a task's piece of the workspace, and its size.
  int64_t q_panels_at, d_o_panels_at, k_columns_at, v_columns_at, k_panels_at, dk_at, dv_at, probs_at, grads_at,
      bias_at, d_bias_at, row_address_at, lse_at, delta_at, dq_at, stretch_dq_at, task_bytes;
  // Of a tile kernel beside them: what its products read in a second form, and the sums of a step.
  int64_t q_pairs_at, d_o_pairs_at, grad_pairs_at, sums_at;
  // Shared by all tasks, behind their pieces: d_sinks of each (sequence, query head) in float64, and unless `whole`
  // the dq of each stretch, [stretches][heads_kv][rows of all sequences][group][dim_qk_padded].
  int64_t d_sinks_bytes, partial_bytes;
};

struct BackwardCall {
  const core::Problem* problem;
  const tessera_tensors* tensors;
  BackwardTiles tiles;
  double* d_sinks;      // [batch, heads_q]
  std::byte* partials;  // null when whole
};

// Keys [begin, end) of stretches [stretch_begin, stretch_end) of one (sequence, key head).
struct BackwardTask {
  core::Sequence sequence;
  int64_t batch, stretch_begin, stretch_end;
  int32_t kv_head;
};

// Positions [begin, end) of one (sequence, key head) whose dq is summed and written.
struct FinishTask {
  core::Sequence sequence;
  int64_t batch, begin, end;
  int32_t kv_head;
};

// One rectangle of d_bias: every (sequence, head) that shares it is summed in order.
struct BiasTask {
  int64_t batch_begin, batch_end, row_begin, row_end, key_begin, key_end;
  int32_t head_begin, head_end;
};

// Keys of one stretch of a sequence of seqlen_k keys, a multiple of the chunk. A sequence's own length, the heads and
// the chunk decide, so that a result does not depend on batch mates. Up to 32 stretches of 512 keys or more over all
// key heads: enough tasks for a large machine where heads are few, and dq of one stretch where they are many.
inline constexpr int64_t kMostStretches = 32;
inline int64_t stretch_keys(const core::Problem& problem, int64_t chunk, int64_t seqlen_k) {
  constexpr int64_t kLeastKeys = 512;
  const int64_t wanted = (kMostStretches + problem.heads_kv - 1) / problem.heads_kv;
  const int64_t most = (seqlen_k + kLeastKeys - 1) / kLeastKeys;
  const int64_t count = wanted < most ? wanted : most;
  const int64_t keys = count > 1 ? (seqlen_k + count - 1) / count : seqlen_k;
  const int64_t rounded = (keys + chunk - 1) / chunk * chunk;
  return rounded > 0 ? rounded : chunk;
}
inline int64_t count_stretches(const core::Problem& problem, int64_t chunk, int64_t seqlen_k) {
  const int64_t keys = stretch_keys(problem, chunk, seqlen_k);
  const int64_t count = (seqlen_k + keys - 1) / keys;
  return count > 0 ? count : 1;
}

// One instruction set's build of the kernel.
struct BackwardKernel {
  int32_t rows_f32, lanes_f32, rows_f64, lanes_f64;  // of the microkernel
  int32_t scores_row;                                // elements of one row of scores
  struct Functions {
    void (*task)(const BackwardCall&, const BackwardTask&, std::byte* workspace);
    void (*finish)(const BackwardCall&, const FinishTask&);
    void (*bias)(const BackwardCall&, const BiasTask&, std::byte* workspace);
  } f32, f64;
  bool tiles = false;  // matrix tiles: units of rows_f32 rows and keys, operands in bf16 parts
};

// bf16 parts of an operand of a tile kernel.
inline int64_t tile_parts(const core::Problem& problem) {
  return problem.q.dtype == TESSERA_BF16 ? 1 : problem.q.dtype == TESSERA_F16 ? 2 : 3;
}
// Rows of one stretch's dq of one key head there: each sequence's fill whole units of 32.
inline int64_t tile_partial_rows(const core::Problem& problem) {
  const int64_t total = problem.layout_q == TESSERA_PACKED ? problem.total_q : problem.batch * problem.seqlen_q;
  return ((total * problem.group + 31) / 32 + problem.batch) * 32;
}

extern const BackwardKernel kBackwardPortable, kBackwardAmxEmulated;
#if defined(__x86_64__)
extern const BackwardKernel kBackwardAvx2;
extern const BackwardKernel kBackwardAvx512;
extern const BackwardKernel kBackwardAmx;
#elif defined(__aarch64__)
extern const BackwardKernel kBackwardNeon;
#endif

}  // namespace tessera::cpu
