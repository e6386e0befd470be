// Where one sequence of a batch lies: lengths, rows, pages. Shared by the CPU kernels and the textbook baseline; the
// float64 reference derives the same on its own, as the judge should. Assumes checked metadata.
#pragma once

#include <cstdint>

#include "problem.hpp"
#include "quantize_math.hpp"

namespace tessera::core {

struct Sequence {
  int64_t seqlen_q, seqlen_k;  // used lengths; keys counted from leftpad
  int64_t rows_q;            // rows of o and lse that belong to the sequence; those past seqlen_q are written +0, -inf
  int64_t q_batch, q_row;    // batch index and first row for q, o, dq, d_o operands
  int64_t kv_batch, kv_row;  // the same for dense and packed k, v (kv_row includes leftpad)
  int64_t rows_k;            // rows of k, v from kv_row on that belong to the sequence (dense, packed)
  int64_t lse_row, lse_stride;  // lse element of (head, row): head * lse_stride + lse_row + row
  const int32_t* pages;         // paged: this sequence's row of the page table; else null
  int64_t leftpad;              // slots before key 0 in its cache row or page list
};

Sequence locate_sequence(const Problem& problem, const tessera_tensors& tensors, int64_t batch);

// Offset in elements of key row j (before adding the head) of a k- or v-like operand.
TESSERA_HD int64_t key_row_offset(const Problem& problem, const Sequence& sequence, const Operand& operand, int64_t j) {
  if (sequence.pages == nullptr)
    return sequence.kv_batch * operand.batch_stride + (sequence.kv_row + j) * operand.row_stride;
  const int64_t slot = sequence.leftpad + j;
  return sequence.pages[slot / problem.page_size] * operand.batch_stride +
         (slot % problem.page_size) * operand.row_stride;
}
// The same of v under v_order 1 (tessera_quantize_args): of the key's first channel, the others row_stride apart.
TESSERA_HD int64_t ordered_value_offset(const Problem& problem, const Sequence& sequence, int64_t batch,
                                        const Operand& operand, int64_t j) {
  const int64_t slot = sequence.leftpad + j;
  if (sequence.pages != nullptr)
    return sequence.pages[slot / problem.page_size] * operand.batch_stride + key_slot(slot % problem.page_size);
  if (problem.layout_kv == TESSERA_PACKED)
    return packed_first_slot(sequence.kv_row - sequence.leftpad, batch) + key_slot(slot);
  return sequence.kv_batch * operand.batch_stride + key_slot(slot);
}
// Offset in a scale array of key row j's block, before adding the head: blocks are counted from the first row of the
// page, the dense cache row or the packed sequence.
TESSERA_HD int64_t key_scale_offset(const Problem& problem, const Sequence& sequence, int64_t batch,
                                    const ScaleOperand& scale, int64_t j) {
  const int64_t slot = sequence.leftpad + j;
  int64_t outer = sequence.kv_batch, row = slot;
  if (sequence.pages != nullptr) {
    outer = sequence.pages[slot / problem.page_size];
    row = slot % problem.page_size;
  } else if (problem.layout_kv == TESSERA_PACKED) {
    outer = batch;
  }
  return outer * scale.stride[0] + (scale.rows > 0 ? row / scale.rows : 0) * scale.stride[1];
}
TESSERA_HD int64_t query_row_offset(const Sequence& sequence, const Operand& operand, int64_t i) {
  return sequence.q_batch * operand.batch_stride + (sequence.q_row + i) * operand.row_stride;
}

}  // namespace tessera::core
