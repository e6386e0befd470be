// Which operands of a run or an append share memory.
#pragma once

#include "append.hpp"
#include "problem.hpp"

namespace tessera::core {

// Refuses a written operand that certainly overlaps another operand of the call: the same first byte, or an end of one
// inside another that has no gaps. Interleaved slices of one buffer pass.
// `append` is empty without one.
int check_aliases(const Problem& problem, const tessera_tensors& tensors, const Append& append, tessera_status* status);

}  // namespace tessera::core
