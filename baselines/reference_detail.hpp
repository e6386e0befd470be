// What the forward and the backward judge share: where a sequence lies, its rows gathered as plain contiguous arrays of
// T, and one row of scores. T is double for the exact judge, float for the naive yardstick of 16- and 32-bit inputs.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "problem.hpp"
#include "reference.hpp"
#include "tessera/tessera.h"

namespace tessera::baselines {

// One sequence of the batch, derived from the arrays of `tensors` alone.
struct Place {
  int64_t batch;
  int64_t rows_q, used_q;    // rows of o that belong to it; those past used_q are written +0, -inf
  int64_t rows_k, used_k;    // key rows that belong to it; keys, counted from leftpad
  int64_t first_q, first_k;  // packed: first row in the array; dense: 0
  int64_t batch_q, batch_k;  // packed: 0; dense: batch row (k: after batch_idx)
  int64_t leftpad;
  const int32_t* pages;  // paged: its row of the page table
  core::Band band;
};
Place place_sequence(const core::Problem& problem, const tessera_tensors& tensors, int64_t batch);

// Where key row `key` of a sequence lies: page (paged) or batch row, row in it (packed: in the whole array), and the
// same as scales count.
struct KeyAddress {
  int64_t outer, row, scale_outer, scale_row;
  int64_t offset(const core::Operand& operand) const { return outer * operand.batch_stride + row * operand.row_stride; }
};
KeyAddress address_key(const core::Problem& problem, const Place& place, int64_t key);
// One factor of a scale operand; null data is 1.
float scale_at(const core::ScaleOperand& scale, const float* data, int64_t outer, int64_t row, int64_t head);

// The inputs of one (sequence, query head): dequantised, contiguous q [used_q, head_dim_qk], k [used_k, head_dim_qk],
// v [used_k, head_dim_v].
template <class T>
struct HeadInputs {
  std::vector<T> q, k, v;
  // Gathers what differs from the last call.
  void load(const core::Problem& problem, const tessera_tensors& tensors, const Place& place, int64_t head);

 private:
  int64_t batch_ = -1, head_q_ = -1, head_kv_ = -1;
};

// Rows of one query head of an operand like q, contiguous [used_q, dim].
template <class T>
std::vector<T> gather_query_rows(const Place& place, const core::Operand& operand, const void* base, int64_t head,
                                 int64_t dim);

// One row of scores. `keys` bounds the keys that the band keeps; elsewhere x is not written. A key masked by -inf bias
// or the u8 mask has x = -inf, whatever k holds. capped is the score after softcap, before bias. kept: some x is not
// -inf.
template <class T>
struct ScoreRow {
  std::vector<T> x, capped;
  core::Range keys{0, 0};
  bool kept = false;
  void compute(const core::Problem& problem, const tessera_tensors& tensors, const Place& place,
               const HeadInputs<T>& inputs, int64_t head, int64_t row);
};

// Sum of products in 8 interleaved partial sums, added pairwise.
template <class T>
T dot(const T* a, const T* b, int64_t count) {
  T lane[8] = {};
  int64_t c = 0;
  for (; c + 8 <= count; c += 8) {
    for (int l = 0; l < 8; ++l) lane[l] += a[c + l] * b[c + l];
  }
  for (int l = 0; c < count; ++c, ++l) lane[l] += a[c] * b[c];
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

template <class T>
void add_scaled(T factor, const T* row, int64_t count, T* sum) {
  for (int64_t c = 0; c < count; ++c) sum[c] += factor * row[c];
}

// Runs body(worker, task) for every task on `threads` threads, worker in [0, threads); an exception of a body is
// rethrown here.
template <class Body>
void for_each_task(int threads, int64_t count, const Body& body) {
  if (threads > count) threads = static_cast<int>(count);
  if (threads <= 1) {
    for (int64_t task = 0; task < count; ++task) body(0, task);
    return;
  }
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&](int worker) {
    try {
      for (int64_t task = next++; task < count; task = next++) body(worker, task);
    } catch (...) {
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
      next = count;
    }
  };
  std::vector<std::jthread> others;
  for (int worker = 1; worker < threads; ++worker) others.emplace_back(work, worker);
  work(0);
  others.clear();
  if (failure) std::rethrow_exception(failure);
}

// Sizes of Results' arrays, and which rows a call leaves alone.
struct Extents {
  int64_t o, lse, dq, dk, dv, d_bias, d_sinks;
};
Extents result_extents(const core::Problem& problem);
// Extents of d_bias: 1 where it broadcasts.
void bias_extents(const core::Problem& problem, int64_t extents[4]);

// Index in lse-like arrays, and of row `row`'s head vector in o-like ones.
int64_t lse_index(const core::Problem& problem, const Place& place, int64_t head, int64_t row);
int64_t query_index(const core::Problem& problem, const Place& place, int64_t head, int64_t row);  // times dim
int64_t key_index(const core::Problem& problem, const Place& place, int64_t head, int64_t key_row);

// dtype that the naive yardstick rounds P and dS to: that of q.
inline int32_t rounding_dtype(const core::Problem& problem) { return problem.q.dtype; }

// Forward into results->o and ->lse. The naive precision runs it with T = float and rounds.
template <class T>
void reference_forward(const core::Problem& problem, const tessera_tensors& tensors, bool naive, int threads,
                       Results* results);
// Backward, given forward results in the same precision.
template <class T>
void reference_backward(const core::Problem& problem, const tessera_tensors& tensors, bool naive, int threads,
                        Results* results);

}  // namespace tessera::baselines
