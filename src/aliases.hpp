// Which operands of a run share memory. Private to run.cpp.
#pragma once

#include "problem.hpp"

namespace tessera::core {

// Refuses a written operand that certainly overlaps another operand of the call: the same first byte, or an end of one
// inside another that has no gaps. Interleaved slices of one buffer pass.
int check_aliases(const Problem& problem, const tessera_tensors& tensors, tessera_status* status);

}  // namespace tessera::core
