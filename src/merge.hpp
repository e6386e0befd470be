// Merge of partial attention states and its gradient, as tessera_merge_args describes them.
#pragma once

#include "tessera/tessera.h"

namespace tessera::core {

int merge(const tessera_merge_args& args, const tessera_exec* exec, tessera_status* status);
int merge_backward(const tessera_merge_args& args, const tessera_exec* exec, tessera_status* status);

// Either pass on checked arguments of a present CUDA device (src/cuda; a stub without CUDA).
int merge_cuda(const tessera_merge_args& args, const tessera_exec* exec, bool backward, tessera_status* status);

}  // namespace tessera::core
