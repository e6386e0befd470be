// The end of one row: sinks, the one division, lse.
// Invariant: rows that saw no key, and those past a used length, are +0 and -inf, whatever the accumulators hold.
#pragma once

#include <cmath>
#include <cstdint>

#include "scheduler.cuh"
#include "softmax.cuh"

namespace tessera::cuda {

// A row of the sequence and the query head and split it belongs to; split is 0 unless states are partial.
struct OutputRow {
  int64_t row, split;
  int head;
};

// The statistics of a row, complete. The accumulators times `factor` are o, 0 meaning +0.
struct RowEnd {
  float base, sum, factor;
};

// `sum`: the whole row's.
__device__ __forceinline__ RowEnd end_row(const ForwardParams& p, const SequenceView& sequence, const OutputRow& at,
                                          float maximum, float sum, float scale) {
  // The largest element of a row counts at least 1, so only a row without keys sums to 0.
  const bool empty = at.row >= sequence.band.seqlen_q || sum == 0.0f;
  float base = empty ? -INFINITY : RowStatistics<1>::base(maximum, scale);
  float factor = 1.0f;
  const float sink = p.sinks != nullptr ? p.sinks[at.head] * static_cast<float>(core::kLog2E) : -INFINITY;
  if (sink != -INFINITY) {
    const float merged = fmaxf(base, sink);
    factor = ptx::ex2(base - merged);
    sum = sum * factor + ptx::ex2(sink - merged);
    base = merged;
  }
  // A sum is at least 1 / 2^8 (a lazy base) and at most 2^39: far from where the fast reciprocal flushes.
  return {base, sum, empty ? 0.0f : factor * ptx::rcp(sum)};
}

// By one lane of the row.
__device__ __forceinline__ void write_lse(const ForwardParams& p, const SequenceView& sequence, const OutputRow& at,
                                          const RowEnd& end) {
  if (p.lse == nullptr || at.row >= sequence.rows_q) return;
  const int64_t first = p.cu_seqlens_q != nullptr ? at.head * p.total_q + sequence.q_row
                                                  : (sequence.q_batch * p.heads_q + at.head) * p.seqlen_q;
  p.lse[at.split * p.lse_split_stride + first + at.row] =
      at.row >= sequence.band.seqlen_q ? -INFINITY : core::lse_from_base2(end.base, end.sum);
}

// Both, called by the lanes of a row together; the one that `leads` writes lse.
__device__ __forceinline__ float finish_row(const ForwardParams& p, const SequenceView& sequence, const OutputRow& at,
                                            float maximum, float sum, float scale, bool leads = threadIdx.x % 4 == 0) {
  const RowEnd end = end_row(p, sequence, at, maximum, sum, scale);
  if (leads) write_lse(p, sequence, at, end);
  return end.factor;
}

// An accumulator completed by its row's factor.
__device__ __forceinline__ float finished(float value, float factor) { return factor == 0.0f ? 0.0f : value * factor; }

}  // namespace tessera::cuda
