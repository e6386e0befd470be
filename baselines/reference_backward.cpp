// The backward judge: gradients row by row from the definition, o and lse taken from the forward judge of the same
// precision. Sums over rows and over the query heads of a group run in rising order.
#include <algorithm>
#include <cmath>

#include "elements.hpp"
#include "reference_detail.hpp"

namespace tessera::baselines {
namespace {

template <class T>
struct Gradients {
  std::vector<T> dk, dv;           // [used_k, dim] of one key head
  std::vector<T> probs, d_scores;  // one row; d_scores first holds dX, then dC
  std::vector<T> dq;               // one row
};

// What all tasks share.
template <class T>
struct Pass {
  const core::Problem& problem;
  const tessera_tensors& tensors;
  bool naive;
  Results* results;
  std::vector<T> d_bias;
  std::vector<T> d_sinks;  // [batch, heads_q]
  int64_t d_bias_stride[4];
};

// Adds one row's dX to d_bias, over whatever it broadcasts.
template <class T>
void add_bias_gradient(Pass<T>* pass, const Place& place, int64_t head, int64_t row, const core::Range& keys,
                       const std::vector<T>& d_x) {
  const int64_t* stride = pass->d_bias_stride;
  T* out = pass->d_bias.data() + place.batch * stride[0] + head * stride[1] + row * stride[2];
  for (int64_t j = keys.begin; j < keys.end; ++j) out[j * stride[3]] += d_x[j];
}

// One query row: dq, and what it adds to dk, dv, d_bias and d_sinks.
template <class T>
void differentiate_row(Pass<T>* pass, const Place& place, const HeadInputs<T>& inputs, const ScoreRow<T>& scores,
                       const T* d_o, int64_t head, int64_t row, Gradients<T>* gradients) {
  const core::Problem& problem = pass->problem;
  const int64_t dim = problem.head_dim_qk, dim_v = problem.head_dim_v;
  const int64_t lse_at = lse_index(problem, place, head, row);
  const T lse = static_cast<T>(pass->results->lse[lse_at]);
  T delta = 0;
  const double* o = pass->results->o.data() + query_index(problem, place, head, row) * dim_v;
  for (int64_t c = 0; c < dim_v; ++c) delta += d_o[c] * static_cast<T>(o[c]);
  const T d_lse = problem.has(TESSERA_FLAG_D_LSE)
                      ? static_cast<T>(load_element(core::lse_dtype(problem.q.dtype), pass->tensors.d_lse, lse_at))
                      : T(0);
  if (problem.has(TESSERA_FLAG_SINKS)) {
    const T sink = static_cast<T>(pass->tensors.sinks[head]);
    if (sink != -T(INFINITY)) {
      pass->d_sinks[place.batch * problem.heads_q + head] += std::exp(sink - lse) * (d_lse - delta);
    }
  }
  gradients->dq.assign(dim, T(0));
  if (!scores.kept) return;
  gradients->probs.assign(place.used_k, T(0));
  gradients->d_scores.assign(place.used_k, T(0));
  for (int64_t j = scores.keys.begin; j < scores.keys.end; ++j) {
    if (scores.x[j] == -T(INFINITY)) continue;
    const T exponent = scores.x[j] - lse;
    const T prob = std::exp(exponent > 0 ? T(0) : exponent);
    gradients->probs[j] = prob;
    gradients->d_scores[j] = prob * (dot(d_o, inputs.v.data() + j * dim_v, dim_v) - delta + d_lse);
  }
  if (problem.has(TESSERA_FLAG_D_BIAS)) {
    add_bias_gradient(pass, place, head, row, scores.keys, gradients->d_scores);
  }
  if (problem.softcap > 0) {
    for (int64_t j = scores.keys.begin; j < scores.keys.end; ++j) {
      gradients->d_scores[j] *= core::softcap_derivative(scores.capped[j], static_cast<T>(problem.softcap));
    }
  }
  if (pass->naive) {
    round_row(rounding_dtype(problem), gradients->probs.data() + scores.keys.begin, scores.keys.size());
    round_row(rounding_dtype(problem), gradients->d_scores.data() + scores.keys.begin, scores.keys.size());
  }
  for (int64_t j = scores.keys.begin; j < scores.keys.end; ++j) {
    if (scores.x[j] == -T(INFINITY)) continue;
    add_scaled(gradients->probs[j], d_o, dim_v, gradients->dv.data() + j * dim_v);
    add_scaled(gradients->d_scores[j], inputs.q.data() + row * dim, dim, gradients->dk.data() + j * dim);
    add_scaled(gradients->d_scores[j], inputs.k.data() + j * dim, dim, gradients->dq.data());
  }
}

// Rows of `values` [count, dim], times `scale` and rounded, into results at the rows that index(row) names; zeros from
// `count` on to `total`.
template <class T, class Index>
void store_rows(const std::vector<T>& values, int64_t count, int64_t total, int64_t dim, T scale, bool naive,
                int32_t dtype, Index index, std::vector<double>* out) {
  std::vector<T> row(dim);
  for (int64_t i = 0; i < total; ++i) {
    for (int64_t c = 0; c < dim; ++c) row[c] = i < count ? scale * values[i * dim + c] : T(0);
    if (naive) round_row(dtype, row.data(), dim);
    for (int64_t c = 0; c < dim; ++c) (*out)[index(i) * dim + c] = static_cast<double>(row[c]);
  }
}

// All query heads of one (sequence, key head).
template <class T>
void differentiate_head(Pass<T>* pass, const Place& place, int64_t head_kv) {
  const core::Problem& problem = pass->problem;
  Results* results = pass->results;
  const int64_t dim = problem.head_dim_qk, dim_v = problem.head_dim_v;
  const T scale = static_cast<T>(problem.scale);
  HeadInputs<T> inputs;
  ScoreRow<T> scores;
  Gradients<T> gradients;
  gradients.dk.assign(place.used_k * dim, T(0));
  gradients.dv.assign(place.used_k * dim_v, T(0));
  std::vector<T> dq(place.used_q * dim);
  for (int64_t head = head_kv * problem.group; head < (head_kv + 1) * problem.group; ++head) {
    inputs.load(problem, pass->tensors, place, head);
    const std::vector<T> d_o = gather_query_rows<T>(place, problem.d_o, pass->tensors.d_o, head, dim_v);
    for (int64_t row = 0; row < place.used_q; ++row) {
      scores.compute(problem, pass->tensors, place, inputs, head, row);
      differentiate_row(pass, place, inputs, scores, d_o.data() + row * dim_v, head, row, &gradients);
      std::copy(gradients.dq.begin(), gradients.dq.end(), dq.begin() + row * dim);
    }
    store_rows(
        dq, place.used_q, place.rows_q, dim, scale, pass->naive, problem.dq.dtype,
        [&](int64_t row) { return query_index(problem, place, head, row); }, &results->dq);
  }
  const auto key_at = [&](int64_t row) { return key_index(problem, place, head_kv, row); };
  store_rows(gradients.dk, place.used_k, place.rows_k, dim, scale, pass->naive, problem.dk.dtype, key_at, &results->dk);
  store_rows(gradients.dv, place.used_k, place.rows_k, dim_v, T(1), pass->naive, problem.dv.dtype, key_at,
             &results->dv);
}

}  // namespace

template <class T>
void reference_backward(const core::Problem& problem, const tessera_tensors& tensors, bool naive, int threads,
                        Results* results) {
  const Extents extents = result_extents(problem);
  results->dq.assign(extents.dq, kUntouched);
  results->dk.assign(extents.dk, kUntouched);
  results->dv.assign(extents.dv, kUntouched);
  Pass<T> pass{problem, tensors, naive, results, {}, std::vector<T>(problem.batch * problem.heads_q, T(0)), {}};
  if (problem.has(TESSERA_FLAG_D_BIAS)) {
    pass.d_bias.assign(extents.d_bias, T(0));
    int64_t bias[4], stride = 1;
    bias_extents(problem, bias);
    for (int d = 3; d >= 0; --d) {
      pass.d_bias_stride[d] = bias[d] == 1 ? 0 : stride;
      stride *= bias[d];
    }
    threads = 1;  // tasks meet in the sums over broadcast dims
  }
  for_each_task(threads, problem.batch * problem.heads_kv, [&](int, int64_t task) {
    differentiate_head(&pass, place_sequence(problem, tensors, task / problem.heads_kv), task % problem.heads_kv);
  });
  if (problem.has(TESSERA_FLAG_D_BIAS)) {
    if (naive) round_row(problem.d_bias.dtype, pass.d_bias.data(), extents.d_bias);
    results->d_bias.assign(pass.d_bias.begin(), pass.d_bias.end());
  }
  if (problem.has(TESSERA_FLAG_D_SINKS)) {
    results->d_sinks.assign(problem.heads_q, 0);
    for (int64_t head = 0; head < problem.heads_q; ++head) {
      T sum = 0;
      for (int64_t b = 0; b < problem.batch; ++b) sum += pass.d_sinks[b * problem.heads_q + head];
      results->d_sinks[head] = static_cast<double>(sum);
    }
  }
}

template void reference_backward<float>(const core::Problem&, const tessera_tensors&, bool, int, Results*);
template void reference_backward<double>(const core::Problem&, const tessera_tensors&, bool, int, Results*);

}  // namespace tessera::baselines
