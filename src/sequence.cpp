// Resolves lengths, first rows and pages of one sequence from the layouts and the metadata arrays; a call that appends
// sees the lengths with its new rows.
#include "sequence.hpp"

#include "append.hpp"

namespace tessera::core {

Sequence locate_sequence(const Problem& problem, const tessera_tensors& tensors, int64_t batch) {
  Sequence s{};
  if (problem.layout_q == TESSERA_PACKED) {
    s.q_batch = 0;
    s.q_row = tensors.cu_seqlens_q[batch];
    s.rows_q = tensors.cu_seqlens_q[batch + 1] - s.q_row;
    s.lse_row = s.q_row;
    s.lse_stride = problem.total_q;
  } else {
    s.q_batch = batch;
    s.q_row = 0;
    s.rows_q = problem.seqlen_q;
    s.lse_row = batch * problem.heads_q * problem.seqlen_q;
    s.lse_stride = problem.seqlen_q;
  }
  s.seqlen_q = problem.has(TESSERA_FLAG_SEQUSED_Q) ? tensors.seqused_q[batch] : s.rows_q;

  s.leftpad = problem.has(TESSERA_FLAG_LEFTPAD) ? tensors.leftpad[batch] : 0;
  int64_t rows = problem.seqlen_k;  // rows that the sequence owns, leftpad included
  if (problem.layout_kv == TESSERA_PACKED) {
    s.kv_row = tensors.cu_seqlens_k[batch];
    rows = tensors.cu_seqlens_k[batch + 1] - s.kv_row;
    s.kv_row += s.leftpad;
  } else if (problem.layout_kv == TESSERA_PAGED) {
    s.pages = tensors.page_table + batch * problem.page_table_stride;
  } else {
    s.kv_batch = problem.has(TESSERA_FLAG_BATCH_IDX) ? tensors.batch_idx[batch] : batch;
    s.kv_row = s.leftpad;
  }
  const int64_t used =
      problem.has(TESSERA_FLAG_SEQUSED_K) ? tensors.seqused_k[batch] + appended_rows(tensors, batch) : rows;
  s.seqlen_k = used - s.leftpad;
  s.rows_k = rows - s.leftpad;
  return s;
}

}  // namespace tessera::core
