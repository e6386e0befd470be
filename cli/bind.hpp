// From real tensors and words to a problem that can be planned and run. Invariant: shapes and element types come from
// the tensors, everything else from the words, and a word that says otherwise than the tensors is bad input.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cli/tensor.hpp"
#include "problem_text.hpp"
#include "tessera/tessera.h"

namespace tessera::cli {

// A tensor in memory of its own, aligned for any kernel.
struct Tensor {
  std::string dtype;
  std::vector<int64_t> shape;
  AlignedBytes data;

  TensorView view(const std::string& name) const { return {name, dtype, shape, data.data(), data.bytes()}; }
};

// Where tensors come from and go to: the options of `run` and `check`.
struct FileOptions {
  std::string input, q, k, v, out, lse;
  bool given() const { return !input.empty() || !q.empty() || !k.empty() || !v.empty(); }
};

// Reads what `options` name; tensors called o, lse and o_f64 are left out.
std::map<std::string, Tensor> load_tensors(const FileOptions& options);

struct Job {
  std::map<std::string, Tensor> inputs;
  std::map<std::string, Tensor> outputs;  // zero-filled; o, lse and with bwd dq, dk, dv, d_sinks, d_bias
  tessera_problem problem;
  core::TextExtras extras;
  tessera_tensors tensors;  // points into inputs and outputs

  std::string text() const { return core::format_problem(problem, &extras); }
};

// Throws Failure with one line that names the word or the tensor.
Job bind_tensors(std::map<std::string, Tensor> inputs, const std::vector<std::string>& words, bool with_lse);

}  // namespace tessera::cli
