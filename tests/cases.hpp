// The shared list of problems: every part of the semantics, every dtype, every layout, odd shapes. Tests run each on
// every row of the kernel lists.
#pragma once

#include <string>
#include <vector>

#include "operands.hpp"

namespace tessera::tests {

struct Case {
  std::string text;                            // a problem line
  void (*adjust)(tessera_problem*) = nullptr;  // what no word says: strides, batch_idx, scales
  const char* adjustment = "";                 // its name in messages
  std::string name() const { return adjust == nullptr ? text : text + " [" + adjustment + "]"; }
};

std::vector<Case> forward_cases();
std::vector<Case> backward_cases();

baselines::OperandSet operands_of(const Case& one);

}  // namespace tessera::tests
