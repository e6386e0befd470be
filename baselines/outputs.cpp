#include "outputs.hpp"

#include "elements.hpp"
#include "reference_detail.hpp"

namespace tessera::baselines {
namespace {

OutputView query_view(const core::Problem& problem, const char* name, const core::Operand& operand, void* data,
                      int64_t dim, std::vector<double> Results::*values) {
  const bool packed = problem.layout_q == TESSERA_PACKED;
  return {name,
          operand.dtype,
          data,
          {packed ? 1 : problem.batch, packed ? problem.total_q : problem.seqlen_q, problem.heads_q, dim},
          {operand.batch_stride, operand.row_stride, operand.head_stride, 1},
          values};
}

OutputView key_view(const core::Problem& problem, const char* name, const core::Operand& operand, void* data,
                    int64_t dim, std::vector<double> Results::*values) {
  const bool packed = problem.layout_kv == TESSERA_PACKED;
  return {name,
          operand.dtype,
          data,
          {packed ? 1 : problem.batch_kv, packed ? problem.total_k : problem.seqlen_k, problem.heads_kv, dim},
          {operand.batch_stride, operand.row_stride, operand.head_stride, 1},
          values};
}

OutputView lse_view(const core::Problem& problem, void* data) {
  const bool packed = problem.layout_q == TESSERA_PACKED;
  const int64_t batch = packed ? 1 : problem.batch, rows = packed ? problem.total_q : problem.seqlen_q;
  return {"lse",
          core::lse_dtype(problem.q.dtype),
          data,
          {1, batch, problem.heads_q, rows},
          {0, problem.heads_q * rows, rows, 1},
          &Results::lse};
}

OutputView bias_view(const core::Problem& problem, void* data) {
  OutputView view{"d_bias", problem.d_bias.dtype, data, {}, {}, &Results::d_bias};
  bias_extents(problem, view.extent);
  for (int dim = 0; dim < 4; ++dim) view.stride[dim] = problem.d_bias.stride[dim];
  return view;
}

void store_view(const OutputView& view, const std::vector<double>& values) {
  for (int64_t row = 0; row < view.rows(); ++row) {
    const double* from = values.data() + row * view.extent[3];
    const int64_t offset = view.row_offset(row);
    for (int64_t c = 0; c < view.extent[3]; ++c) {
      if (from[c] != kUntouched) store_element(view.dtype, view.data, offset + c * view.stride[3], from[c]);
    }
  }
}

}  // namespace

int64_t OutputView::span() const {
  if (size() == 0) return 0;
  int64_t last = 0;
  for (int dim = 0; dim < 4; ++dim) last += (extent[dim] - 1) * stride[dim];
  return last + 1;
}

int64_t OutputView::row_offset(int64_t row) const {
  const int64_t i2 = row % extent[2], i1 = row / extent[2] % extent[1], i0 = row / extent[2] / extent[1];
  return i0 * stride[0] + i1 * stride[1] + i2 * stride[2];
}

std::vector<OutputView> output_views(const core::Problem& problem, const tessera_tensors& tensors) {
  std::vector<OutputView> views;
  if (problem.pass == TESSERA_FORWARD) {
    views.push_back(query_view(problem, "o", problem.o, tensors.o, problem.head_dim_v, &Results::o));
    if (problem.has(TESSERA_FLAG_LSE)) views.push_back(lse_view(problem, tensors.lse));
    return views;
  }
  views.push_back(query_view(problem, "dq", problem.dq, tensors.dq, problem.head_dim_qk, &Results::dq));
  views.push_back(key_view(problem, "dk", problem.dk, tensors.dk, problem.head_dim_qk, &Results::dk));
  views.push_back(key_view(problem, "dv", problem.dv, tensors.dv, problem.head_dim_v, &Results::dv));
  if (problem.has(TESSERA_FLAG_D_BIAS)) views.push_back(bias_view(problem, tensors.d_bias));
  if (problem.has(TESSERA_FLAG_D_SINKS)) {
    views.push_back(
        {"d_sinks", TESSERA_F32, tensors.d_sinks, {1, 1, 1, problem.heads_q}, {0, 0, 0, 1}, &Results::d_sinks});
  }
  return views;
}

void store_results(const core::Problem& problem, const Results& results, const tessera_tensors& tensors) {
  for (const OutputView& view : output_views(problem, tensors)) store_view(view, results.*view.values);
}

void store_forward(const core::Problem& problem, const Results& results, const tessera_tensors& tensors) {
  store_view(query_view(problem, "o", problem.o, tensors.o, problem.head_dim_v, &Results::o), results.o);
  store_view(lse_view(problem, tensors.lse), results.lse);
}

}  // namespace tessera::baselines
