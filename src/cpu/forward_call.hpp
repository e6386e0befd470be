// What the instruction-set independent half of the CPU forward kernel (forward_plan.cpp) hands to the vector half
// (forward.hpp): one call, its tiles and one block of work. Plain data, so nothing here is compiled twice.
#pragma once

#include <cstddef>
#include <cstdint>

#include "problem.hpp"
#include "sequence.hpp"
#include "tessera/tessera.h"

namespace tessera::cpu {

// Sizes that follow from dtype, head dims and device alone (chunk) or that change no result (positions, heads).
struct ForwardTiles {
  int64_t positions;  // query positions a block, a multiple of the microkernel's rows
  int64_t heads;      // heads of one group a block; rows of a block are positions x heads, position outermost
  int64_t chunk;      // keys packed at a time
  int64_t head_dim_v_padded;
  // Byte offsets into a task's piece of the workspace, and its size.
  int64_t q_at, o_at, total_at, k_at, v_at, scores_at, bias_at, rows_at, row_address_at, scale_at, task_bytes;
};

struct ForwardCall {
  const core::Problem* problem;
  const tessera_tensors* tensors;
  ForwardTiles tiles;
};

// Query positions [row_begin, row_end) of heads [head_begin, head_end), all of one group of one sequence. Positions
// from sequence.seqlen_q on are rows past the used length.
struct ForwardBlock {
  core::Sequence sequence;
  int64_t batch, row_begin, row_end;
  int32_t head_begin, head_end;
};

// One instruction set's build of the kernel.
struct ForwardKernel {
  // Rows and lanes of the microkernel, for float and double.
  int32_t rows_f32, lanes_f32, rows_f64, lanes_f64;
  int32_t row_state_bytes;  // of one row of a block, at most
  int32_t scores_row;       // elements of one row of a strip's scores
  void (*block_f32)(const ForwardCall&, const ForwardBlock&, std::byte* workspace);
  void (*block_f64)(const ForwardCall&, const ForwardBlock&, std::byte* workspace);
};

extern const ForwardKernel kForwardPortable;
#if defined(__x86_64__)
extern const ForwardKernel kForwardAvx2;
extern const ForwardKernel kForwardAvx512;
#elif defined(__aarch64__)
extern const ForwardKernel kForwardNeon;
#endif

}  // namespace tessera::cpu
