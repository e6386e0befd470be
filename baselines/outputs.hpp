// Every output of a problem as a strided array of four dims: one description for poisoning, storing and comparing.
#pragma once

#include <cstdint>
#include <vector>

#include "problem.hpp"
#include "reference.hpp"
#include "tessera/tessera.h"

namespace tessera::baselines {

struct OutputView {
  const char* name;  // "o", "lse", "dq", ...
  int32_t dtype;
  void* data;
  int64_t extent[4], stride[4];  // elements
  std::vector<double> Results::*values;

  int64_t size() const { return extent[0] * extent[1] * extent[2] * extent[3]; }
  // Elements from the first to behind the last addressed one.
  int64_t span() const;
  // Offset of the row of extent[3] elements number `row`, in the order of Results.
  int64_t row_offset(int64_t row) const;
  int64_t rows() const { return extent[0] * extent[1] * extent[2]; }
};

// What the problem's pass and flags write: o and lse, or dq, dk, dv, d_bias and d_sinks.
std::vector<OutputView> output_views(const core::Problem& problem, const tessera_tensors& tensors);

// Writes judged values to the caller's arrays, rounded; elements that are kUntouched stay as they are.
void store_results(const core::Problem& problem, const Results& results, const tessera_tensors& tensors);
// The inputs o and lse of a backward problem, from the forward part of its results.
void store_forward(const core::Problem& problem, const Results& results, const tessera_tensors& tensors);

}  // namespace tessera::baselines
