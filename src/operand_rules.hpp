// The half of validate() that is about operands: dtypes, alignment, strides. Private to validate.cpp.
#pragma once

#include "problem.hpp"

namespace tessera::core {

// Checks every desc of `given` that its pass and flags use, against the numbers already in *problem, and fills
// *problem's operands.
int resolve_operands(const tessera_problem& given, Problem* problem, tessera_status* status);

}  // namespace tessera::core
