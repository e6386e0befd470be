// New K and V rows written into a cache, and q turned with them: what tessera_append_args describes.
#pragma once

#include "problem.hpp"
#include "tessera/tessera.h"

namespace tessera::core {

// Checked arguments with their resolved operands.
struct Append {
  const tessera_append_args* args = nullptr;
  Operand k_new, v_new, q_out;
  bool rotates_q = false;
};

// Rows that tensors.append, which may be NULL, brings to sequence `batch`. Assumes checked cu_seqlens_new.
int64_t appended_rows(const tessera_tensors& tensors, int64_t batch);

// Every rule on the numbers and pointers of tensors.append, which is set; those on lengths are in metadata.cpp.
int check_append(const Problem& problem, const tessera_tensors& tensors, Append* append, tessera_status* status);

// Writes the new rows and q_rotated on the CPU. All was checked; seqused_k holds the lengths before.
void run_append(const Problem& problem, const tessera_tensors& tensors, const Append& append,
                const tessera_executor& executor);

// The same on a CUDA device (src/cuda; stubs without CUDA): one launch on `stream`. Lengths, tables and cumulative
// lengths, which nobody has checked, are read there; a row that does not fit the cache is left out.
int run_append_cuda(const Problem& problem, const tessera_tensors& tensors, const Append& append, void* stream,
                    tessera_status* status);
// What that does not take.
int check_append_cuda(const Problem& problem, const tessera_append_args& args, tessera_status* status);
// Loads its kernel.
int prepare_append_cuda(int32_t device, tessera_status* status);

// tessera_append.
int append(const tessera_problem& given, const tessera_tensors& tensors, const tessera_append_args& args,
           const tessera_exec* exec, tessera_status* status);

}  // namespace tessera::core
