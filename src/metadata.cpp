// The rules on lengths, page tables, leftpad and batch_idx of a CPU run, checked before anything is written; nothing
// outside the arrays that the problem describes is read. Page ids count only in slots that the used lengths reach.
#include <algorithm>
#include <cinttypes>

#include "append.hpp"
#include "kernel_entry.hpp"
#include "status.hpp"

namespace tessera::core {
namespace {

int refuse(tessera_status* status, const char* array, int64_t index, int64_t value, const char* expected,
           int64_t bound) {
  return fail(status, TESSERA_INVALID_ARGUMENT, "%s[%" PRId64 "] is %" PRId64 "; expected %s %" PRId64, array, index,
              value, expected, bound);
}

int check_cu_seqlens(const char* name, const int32_t* cu, int64_t batch, int64_t total, int64_t longest,
                     tessera_status* status) {
  if (cu[0] != 0) return fail(status, TESSERA_INVALID_ARGUMENT, "%s[0] is %d; expected 0", name, cu[0]);
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t length = int64_t{cu[b + 1]} - cu[b];
    if (length < 0) return refuse(status, name, b + 1, cu[b + 1], "at least the entry before it,", cu[b]);
    if (cu[b + 1] > total) return refuse(status, name, b + 1, cu[b + 1], "at most the total,", total);
    if (length > longest) {
      return fail(status, TESSERA_INVALID_ARGUMENT,
                  "%s[%" PRId64 "] is %d, a sequence of %" PRId64
                  "; expected lengths of at most the stated maximum, %" PRId64,
                  name, b + 1, cu[b + 1], length, longest);
    }
  }
  return TESSERA_OK;
}

int64_t owned_rows(const int32_t* cu, int64_t b, int64_t maximum) {
  return cu != nullptr ? int64_t{cu[b + 1]} - cu[b] : maximum;
}

int check_pages(const Problem& p, const int32_t* table, int64_t b, int64_t begin, int64_t end, tessera_status* status) {
  if (begin >= end) return TESSERA_OK;
  const int32_t* pages = table + b * p.page_table_stride;
  for (int64_t slot = begin / p.page_size; slot <= (end - 1) / p.page_size; ++slot) {
    if (pages[slot] >= 0 && pages[slot] < p.num_pages) continue;
    return fail(status, TESSERA_INVALID_ARGUMENT,
                "page_table[%" PRId64 ", %" PRId64 "] is %d; expected 0 to num_pages - 1 = %" PRId64, b, slot,
                pages[slot], p.num_pages - 1);
  }
  return TESSERA_OK;
}

// Room for the new rows behind the first `used`, and a rotary row for every position.
int check_new_rows(const Problem& p, const tessera_tensors& t, int64_t b, int64_t used, tessera_status* status) {
  const tessera_append_args& args = *t.append;
  const int64_t count = appended_rows(t, b);
  if (count > p.seqlen_k - used) {
    return fail(status, TESSERA_INVALID_ARGUMENT,
                "seqused_k[%" PRId64 "] is %" PRId64 " and %" PRId64
                " new rows are to follow; expected room for them in seqlen_k = %" PRId64,
                b, used, count, p.seqlen_k);
  }
  if (args.rotary_dim == 0) return TESSERA_OK;
  int64_t positions = count > 0 ? used + count : 0;
  const int64_t queries = args.q_rotated == nullptr       ? 0
                          : p.has(TESSERA_FLAG_SEQUSED_Q) ? t.seqused_q[b]
                          : p.layout_q == TESSERA_PACKED  ? owned_rows(t.cu_seqlens_q, b, 0)
                                                          : p.seqlen_q;
  if (queries > 0) positions = std::max(positions, used + (p.banded() ? queries : 1));
  if (positions <= args.rotary_seqlen) return TESSERA_OK;
  return fail(status, TESSERA_INVALID_ARGUMENT,
              "rotary_seqlen is %" PRId64 "; expected at least %" PRId64 ", the positions of sequence %" PRId64,
              args.rotary_seqlen, positions, b);
}

// The keys [leftpad, used) of one sequence, with the new ones.
int check_keys(const Problem& p, const tessera_tensors& t, int64_t b, tessera_status* status) {
  const int64_t rows = owned_rows(p.layout_kv == TESSERA_PACKED ? t.cu_seqlens_k : nullptr, b, p.seqlen_k);
  int64_t used = rows;
  if (p.has(TESSERA_FLAG_SEQUSED_K)) {
    used = t.seqused_k[b];
    if (used < 0 || used > rows) return refuse(status, "seqused_k", b, used, "0 to the rows of the sequence,", rows);
  }
  int64_t begin = 0;
  if (p.has(TESSERA_FLAG_LEFTPAD)) {
    begin = t.leftpad[b];
    if (begin < 0 || begin > used) return refuse(status, "leftpad", b, begin, "0 to the used length,", used);
  }
  if (t.append != nullptr) {
    if (const int code = check_new_rows(p, t, b, used, status)) return code;
    used += appended_rows(t, b);
  }
  if (p.layout_kv == TESSERA_PAGED) return check_pages(p, t.page_table, b, begin, used, status);
  if (p.has(TESSERA_FLAG_BATCH_IDX) && (t.batch_idx[b] < 0 || t.batch_idx[b] >= p.batch_kv)) {
    return refuse(status, "batch_idx", b, t.batch_idx[b], "0 to batch_kv - 1 =", p.batch_kv - 1);
  }
  return TESSERA_OK;
}

}  // namespace

int check_metadata_cpu(const Problem& p, const tessera_tensors& t, tessera_status* status) {
  if (p.layout_q == TESSERA_PACKED) {
    if (const int code = check_cu_seqlens("cu_seqlens_q", t.cu_seqlens_q, p.batch, p.total_q, p.seqlen_q, status))
      return code;
  }
  if (p.layout_kv == TESSERA_PACKED) {
    if (const int code = check_cu_seqlens("cu_seqlens_k", t.cu_seqlens_k, p.batch, p.total_k, p.seqlen_k, status))
      return code;
  }
  if (t.append != nullptr && t.append->cu_seqlens_new != nullptr) {
    if (const int code = check_cu_seqlens("cu_seqlens_new", t.append->cu_seqlens_new, p.batch, t.append->total_new,
                                          t.append->seqlen_new, status))
      return code;
  }
  for (int64_t b = 0; b < p.batch; ++b) {
    if (p.has(TESSERA_FLAG_SEQUSED_Q)) {
      const int64_t rows = owned_rows(p.layout_q == TESSERA_PACKED ? t.cu_seqlens_q : nullptr, b, p.seqlen_q);
      if (t.seqused_q[b] < 0 || t.seqused_q[b] > rows) {
        return refuse(status, "seqused_q", b, t.seqused_q[b], "0 to the rows of the sequence,", rows);
      }
    }
    if (const int code = check_keys(p, t, b, status)) return code;
  }
  return TESSERA_OK;
}

}  // namespace tessera::core
