// The forward judge: every row on its own, scores, softmax and weighted sum by plain loops.
#include <algorithm>
#include <cmath>

#include "elements.hpp"
#include "reference_detail.hpp"

namespace tessera::baselines {
namespace {

// Rows of queries a task covers: enough to outweigh gathering a head again when a thread changes head.
constexpr int64_t kTaskRows = 64;

// One row of o (accumulated in `out`) and its lse. `out` starts at zero.
template <class T>
T attend(const core::Problem& problem, const ScoreRow<T>& scores, const HeadInputs<T>& inputs, T sink, bool naive,
         std::vector<T>* probs, T* out) {
  if (!scores.kept) return sink;
  T row_max = sink;
  for (int64_t j = scores.keys.begin; j < scores.keys.end; ++j) row_max = scores.x[j] > row_max ? scores.x[j] : row_max;
  T row_sum = sink == -T(INFINITY) ? T(0) : std::exp(sink - row_max);
  probs->resize(scores.x.size());
  for (int64_t j = scores.keys.begin; j < scores.keys.end; ++j) {
    (*probs)[j] = scores.x[j] == -T(INFINITY) ? T(0) : std::exp(scores.x[j] - row_max);
    row_sum += (*probs)[j];
  }
  for (int64_t j = scores.keys.begin; j < scores.keys.end; ++j) (*probs)[j] /= row_sum;
  if (naive) round_row(rounding_dtype(problem), probs->data() + scores.keys.begin, scores.keys.size());
  const int64_t dim = problem.head_dim_v;
  for (int64_t j = scores.keys.begin; j < scores.keys.end; ++j) {
    if (scores.x[j] != -T(INFINITY)) add_scaled((*probs)[j], inputs.v.data() + j * dim, dim, out);
  }
  return row_max + std::log(row_sum);
}

template <class T>
struct Worker {
  HeadInputs<T> inputs;
  ScoreRow<T> scores;
  std::vector<T> probs, out;
};

}  // namespace

template <class T>
void reference_forward(const core::Problem& problem, const tessera_tensors& tensors, bool naive, int threads,
                       Results* results) {
  const Extents extents = result_extents(problem);
  results->o.assign(extents.o, kUntouched);
  results->lse.assign(extents.lse, kUntouched);
  std::vector<Place> places;
  std::vector<int64_t> first_block = {0};
  for (int64_t b = 0; b < problem.batch; ++b) {
    places.push_back(place_sequence(problem, tensors, b));
    first_block.push_back(first_block.back() + (places.back().rows_q + kTaskRows - 1) / kTaskRows * problem.heads_q);
  }
  std::vector<Worker<T>> workers(threads < 1 ? 1 : threads);
  const int64_t dim = problem.head_dim_v;
  for_each_task(threads, first_block.back(), [&](int worker_index, int64_t task) {
    Worker<T>& worker = workers[worker_index];
    const int64_t batch = std::upper_bound(first_block.begin(), first_block.end(), task) - first_block.begin() - 1;
    const Place& place = places[batch];
    const int64_t blocks = (place.rows_q + kTaskRows - 1) / kTaskRows;
    const int64_t head = (task - first_block[batch]) / blocks, block = (task - first_block[batch]) % blocks;
    worker.inputs.load(problem, tensors, place, head);
    const T sink = problem.has(TESSERA_FLAG_SINKS) ? static_cast<T>(tensors.sinks[head]) : -T(INFINITY);
    for (int64_t row = block * kTaskRows; row < std::min((block + 1) * kTaskRows, place.rows_q); ++row) {
      double* o = results->o.data() + query_index(problem, place, head, row) * dim;
      double* lse = results->lse.data() + lse_index(problem, place, head, row);
      worker.out.assign(dim, T(0));
      *lse = -INFINITY;
      if (row < place.used_q) {
        worker.scores.compute(problem, tensors, place, worker.inputs, head, row);
        *lse = static_cast<double>(
            attend(problem, worker.scores, worker.inputs, sink, naive, &worker.probs, worker.out.data()));
        if (naive) round_row(problem.o.dtype, worker.out.data(), dim);
      }
      for (int64_t c = 0; c < dim; ++c) o[c] = static_cast<double>(worker.out[c]);
    }
  });
}

Results reference(const core::Problem& problem, const tessera_tensors& tensors, Precision precision, int threads) {
  Results results;
  // The naive run of f64 is the exact one: S and P in float64, and no rounding left to do.
  const bool naive = precision == Precision::naive && problem.q.dtype != TESSERA_F64;
  if (naive) {
    reference_forward<float>(problem, tensors, true, threads, &results);
    if (problem.pass == TESSERA_BACKWARD) reference_backward<float>(problem, tensors, true, threads, &results);
  } else {
    reference_forward<double>(problem, tensors, false, threads, &results);
    if (problem.pass == TESSERA_BACKWARD) reference_backward<double>(problem, tensors, false, threads, &results);
  }
  return results;
}

template void reference_forward<float>(const core::Problem&, const tessera_tensors&, bool, int, Results*);
template void reference_forward<double>(const core::Problem&, const tessera_tensors&, bool, int, Results*);

}  // namespace tessera::baselines
