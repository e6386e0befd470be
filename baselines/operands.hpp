// Operands made from a line of problem text: owned buffers with canaries on both sides, random inputs, poisoned outputs
// and tails, and the comparison of what a kernel wrote with the judge under the tolerance rule. CLI, tests and benches
// make their inputs here and nowhere else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "device_memory.hpp"
#include "elements.hpp"
#include "outputs.hpp"
#include "problem.hpp"
#include "problem_text.hpp"
#include "reference.hpp"
#include "tessera/tessera.h"

namespace tessera::baselines {

// A host buffer with 4 KiB of known pattern directly before and after it.
class Buffer {
 public:
  static constexpr size_t kCanaryBytes = 4096;
  Buffer() = default;
  Buffer(size_t bytes, size_t align = 64, size_t offset = 0);  // address = multiple of align, plus offset
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  bool canaries_intact() const;

 private:
  std::unique_ptr<std::byte[]> storage_;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

struct OperandSet {
  tessera_problem problem{};  // sizes, totals, dtypes and strides as the data have them
  tessera_tensors tensors{};
  std::vector<Buffer> buffers;
  std::vector<size_t> outputs;  // indices into buffers of what the pass writes

  void poison_outputs() const;  // NaN (all bits set) in every output, also between strided rows
  bool canaries_intact() const;
  // No byte of an output buffer that belongs to no element was written. `problem` is `this->problem`, validated.
  bool gaps_intact(const core::Problem& problem) const;
  // Every buffer with its canaries.
  void add_to(Mirror* mirror) const;
};

// Makes every operand that the problem's flags ask for: inputs normal(0, 1) rounded to their dtype (sinks, slopes and
// bias in sensible ranges, -inf among them), lengths from extras.lens, pages in order or shuffled, unused page-table
// slots and cache tails poisoned (garbage ids, NaN). Totals, page counts and cache rows left 0 are chosen. Same seed,
// same data: a logical element (sequence, position, head, c) has the same value in every layout. For a backward problem
// o and lse are poisoned inputs: store_forward (outputs.hpp) or a forward run fills them.
OperandSet make_operands(const tessera_problem& problem, const core::TextExtras& extras);
// The same from text; on bad text fills `status` and returns an empty set.
OperandSet make_operands(std::string_view text, tessera_status* status);

struct Comparison {
  std::string tensor;  // "o", "lse", "dq", ...
  double max_abs_error, rms_error, tolerance;
  bool passed;  // false also for NaN where the reference has none, or a touched element that must not be
};
// Compares every output of `tensors` with the judge. Runs the reference in both precisions unless given.
std::vector<Comparison> compare(const core::Problem& problem, const tessera_tensors& tensors,
                                const Results* exact = nullptr, const Results* naive = nullptr, int threads = 1);
// The comparison with the largest error / tolerance; a failed one first.
const Comparison& worst(const std::vector<Comparison>& comparisons);

}  // namespace tessera::baselines
