// The tolerance rule: max|x - exact| <= k * max|naive - exact| + a * max(1, max|exact|), k = 2 (gradients 3); lse:
// |error| <= 1e-3 + 2^-20 |lse| for each element (e4m3 6e-2; f64 as any output). docs/semantics.md states it in prose.
#include <algorithm>
#include <cmath>
#include <optional>

#include "elements.hpp"
#include "operands.hpp"
#include "outputs.hpp"

namespace tessera::baselines {
namespace {

// a of the rule for a dtype; q's counts, or a coarser output's (d_sinks is float32 also for f64).
double absolute_tolerance(int32_t dtype) {
  switch (dtype) {
    case TESSERA_F64:
      return 1e-12;
    case TESSERA_F32:
      return 2e-6;
    case TESSERA_E4M3:
      return 6e-2;
    default:
      return 1e-5;
  }
}

// Errors gathered element by element.
struct Errors {
  double max = 0, sum_squares = 0;
  int64_t count = 0;
  bool broken = false;  // NaN or infinity in one only, an untouched element written, or a lost exact zero

  void add(double value, double exact) {
    if (std::isnan(exact) || std::isinf(exact)) {
      broken = broken || !(std::isnan(exact) ? std::isnan(value) : value == exact);
      return;
    }
    const double error = std::fabs(value - exact);
    if (!std::isfinite(error)) {
      broken = true;
      return;
    }
    max = std::max(max, error);
    sum_squares += error * error;
    ++count;
  }
};

// max |naive - exact| and max |exact| over the finite elements that the call writes.
struct Yardstick {
  double naive_error = 0, magnitude = 0;
};

Yardstick measure(const std::vector<double>& exact, const std::vector<double>& naive) {
  Yardstick yardstick;
  for (size_t i = 0; i < exact.size(); ++i) {
    if (exact[i] == kUntouched || !std::isfinite(exact[i])) continue;
    yardstick.magnitude = std::max(yardstick.magnitude, std::fabs(exact[i]));
    if (!naive.empty() && std::isfinite(naive[i])) {
      yardstick.naive_error = std::max(yardstick.naive_error, std::fabs(naive[i] - exact[i]));
    }
  }
  return yardstick;
}

// A row of o without keys is +0 in every element; the judge has such a row when all its values are +0.
bool is_positive_zero(double value) { return value == 0 && !std::signbit(value); }

Comparison finish(const char* name, const Errors& errors, double max_error, double tolerance, bool within) {
  Comparison comparison;
  comparison.tensor = name;
  comparison.max_abs_error = errors.broken ? INFINITY : max_error;
  comparison.rms_error = errors.broken       ? INFINITY
                         : errors.count == 0 ? 0
                                             : std::sqrt(errors.sum_squares / static_cast<double>(errors.count));
  comparison.tolerance = tolerance;
  comparison.passed = within && !errors.broken;
  return comparison;
}

Comparison compare_view(const core::Problem& problem, const OutputView& view, const std::vector<double>& exact,
                        const std::vector<double>& naive) {
  const bool is_lse = view.values == &Results::lse && problem.q.dtype != TESSERA_F64, is_o = view.values == &Results::o;
  const bool is_gradient = problem.pass == TESSERA_BACKWARD;
  Errors errors;
  double worst_lse = 0, worst_ratio = -1, lse_tolerance = 1e-3;
  for (int64_t row = 0; row < view.rows(); ++row) {
    const double* from = exact.data() + row * view.extent[3];
    const int64_t offset = view.row_offset(row);
    const bool exact_zero = is_o && std::all_of(from, from + view.extent[3], is_positive_zero);
    for (int64_t c = 0; c < view.extent[3]; ++c) {
      const double value = load_element(view.dtype, view.data, offset + c * view.stride[3]);
      if (from[c] == kUntouched) {
        errors.broken = errors.broken || !std::isnan(value);
        continue;
      }
      errors.add(value, from[c]);
      if (exact_zero) errors.broken = errors.broken || !is_positive_zero(value);
      if (!is_lse || !std::isfinite(from[c])) continue;
      const double tolerance = problem.q.dtype == TESSERA_E4M3 ? 6e-2 : 1e-3 + 0x1p-20 * std::fabs(from[c]);
      const double error = std::fabs(value - from[c]);
      if (error / tolerance > worst_ratio) {
        worst_ratio = error / tolerance;
        worst_lse = error;
        lse_tolerance = tolerance;
      }
    }
  }
  if (is_lse) return finish(view.name, errors, worst_lse, lse_tolerance, worst_ratio <= 1);
  const Yardstick yardstick = measure(exact, naive);
  const double tolerance = (is_gradient ? 3 : 2) * yardstick.naive_error +
                           std::max(absolute_tolerance(problem.q.dtype), absolute_tolerance(view.dtype)) *
                               std::max(1.0, yardstick.magnitude);
  return finish(view.name, errors, errors.max, tolerance, errors.max <= tolerance);
}

}  // namespace

std::vector<Comparison> compare(const core::Problem& problem, const tessera_tensors& tensors, const Results* exact,
                                const Results* naive, int threads) {
  std::optional<Results> own_exact, own_naive;
  if (exact == nullptr) exact = &own_exact.emplace(reference(problem, tensors, Precision::exact, threads));
  // For f64 the naive run is the exact one.
  if (naive == nullptr) {
    naive = problem.q.dtype == TESSERA_F64 ? exact
                                           : &own_naive.emplace(reference(problem, tensors, Precision::naive, threads));
  }
  std::vector<Comparison> comparisons;
  for (const OutputView& view : output_views(problem, tensors)) {
    comparisons.push_back(compare_view(problem, view, exact->*view.values, naive->*view.values));
  }
  return comparisons;
}

const Comparison& worst(const std::vector<Comparison>& comparisons) {
  return *std::max_element(comparisons.begin(), comparisons.end(), [](const Comparison& a, const Comparison& b) {
    if (a.passed != b.passed) return a.passed;
    return a.max_abs_error / a.tolerance < b.max_abs_error / b.tolerance;
  });
}

}  // namespace tessera::baselines
