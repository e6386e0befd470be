// tessera_quantize: what tessera_quantize_args describes.
#pragma once

#include <algorithm>
#include <cmath>

#include "problem.hpp"
#include "quantize_math.hpp"
#include "tessera/tessera.h"

namespace tessera::core {

inline constexpr int64_t kQuantizeTile = 128;  // rows of one head that are taken at a time

// Checked arguments with their resolved operands. y in order 1: row_stride is what lies between channels.
struct Quantize {
  const tessera_quantize_args* args = nullptr;
  Operand x, y;
  int64_t scale_stride[3] = {0, 0, 0};
  int64_t cells[3] = {0, 0, 0};  // of the scales: batches, blocks of rows and heads that have one of their own
  int32_t rotation = 0;          // elements that it mixes; 0: none

  bool packed() const { return args->layout == TESSERA_PACKED; }
  bool ordered() const { return args->order == 1; }
  float limit() const { return y.dtype == TESSERA_INT8 ? 127.0f : 448.0f; }
  int64_t tiles() const { return (args->seqlen + kQuantizeTile - 1) / kQuantizeTile; }
  int64_t cell(int64_t batch, int64_t row, int64_t head) const {
    const int64_t block = args->scale_rows > 0 ? row / args->scale_rows : 0;
    return batch * scale_stride[0] + block * scale_stride[1] + head * scale_stride[2];
  }
  // No two tiles of 128 rows share a cell, nor two rows that have one each, so that one pass finds and uses it.
  bool tiles_own_cells() const {
    const int64_t blocks = args->scale_rows > 0 ? (args->seqlen + args->scale_rows - 1) / args->scale_rows : tiles();
    const bool own_rows = blocks <= 1 || (args->scale_rows > 0 && scale_stride[1] != 0);
    return own_rows && (args->batch <= 1 || scale_stride[0] != 0) && (args->heads <= 1 || scale_stride[2] != 0);
  }
};

int quantize(const tessera_quantize_args& args, const tessera_exec* exec, tessera_status* status);

// The work itself, all checked but on a device cu_seqlens, which are read there; a sequence out of range is left out.
void run_quantize(const Quantize& quantize, const tessera_executor& executor);
int run_quantize_cuda(const Quantize& quantize, void* stream, tessera_status* status);
// What the device's kernels do not take.
int check_quantize_cuda(const Quantize& quantize, tessera_status* status);

}  // namespace tessera::core
