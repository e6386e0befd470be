// validate(): every rule on the numbers of a call, once, in the caller's words: the argument, its value, what was
// expected. What passes here is resolved into a Problem: no absent default, no stride left zero by accident, no product
// that overflows. Rules on pointers are in run.cpp, rules on lengths and page tables in metadata.cpp.
#include <cinttypes>
#include <cmath>
#include <cstring>

#include "operand_rules.hpp"
#include "problem.hpp"
#include "status.hpp"

namespace tessera::core {
namespace {

constexpr int64_t kMaxCount = (int64_t{1} << 31) - 1;  // metadata arrays are int32
constexpr int32_t kMaxSplits = 1 << 16;
constexpr uint64_t kKnownFlags = (TESSERA_FLAG_V_MEAN << 1) - 1;
constexpr uint64_t kBackwardFlags = TESSERA_FLAG_D_LSE | TESSERA_FLAG_D_SINKS | TESSERA_FLAG_D_BIAS;

int refuse(tessera_status* status, const char* argument, int64_t value, const char* expected) {
  return fail(status, TESSERA_INVALID_ARGUMENT, "%s is %" PRId64 "; expected %s", argument, value, expected);
}

int check_count(tessera_status* status, const char* argument, int64_t value) {
  if (value >= 0 && value <= kMaxCount) return TESSERA_OK;
  return refuse(status, argument, value, "0 to 2147483647");
}

int check_choice(tessera_status* status, const char* argument, int64_t value, int64_t last, const char* expected) {
  return value >= 0 && value <= last ? TESSERA_OK : refuse(status, argument, value, expected);
}

int check_struct(const tessera_problem& g, tessera_status* status) {
  if (g.size != sizeof(tessera_problem)) {
    return fail(status, TESSERA_INVALID_ARGUMENT,
                "problem.size is %zu; expected %zu (this library's tessera_problem; call tessera_problem_init)", g.size,
                sizeof(tessera_problem));
  }
  if (std::memchr(g.kernel, 0, sizeof g.kernel) == nullptr) {
    return fail(status, TESSERA_INVALID_ARGUMENT, "kernel is not zero-terminated; expected at most %zu characters",
                sizeof g.kernel - 1);
  }
  if (std::memchr(g.device_name, 0, sizeof g.device_name) == nullptr) {
    return fail(status, TESSERA_INVALID_ARGUMENT, "device_name is not zero-terminated; expected at most %zu characters",
                sizeof g.device_name - 1);
  }
  return TESSERA_OK;
}

int check_choices(const tessera_problem& g, tessera_status* status) {
  int code = check_choice(status, "pass", g.pass, TESSERA_BACKWARD, "TESSERA_FORWARD (0) or TESSERA_BACKWARD (1)");
  if (code == TESSERA_OK && g.device < -1)
    code = refuse(status, "device", g.device, "-1 (the CPU) or a CUDA device number");
  if (code == TESSERA_OK && g.device == -1 && g.device_name[0] != '\0') {
    return fail(status, TESSERA_INVALID_ARGUMENT,
                "device_name is \"%s\" but device is -1 (the CPU); expected device 0 for a named GPU", g.device_name);
  }
  if (code == TESSERA_OK)
    code = check_choice(status, "layout_q", g.layout_q, TESSERA_PACKED, "TESSERA_DENSE (0) or TESSERA_PACKED (1)");
  if (code == TESSERA_OK) {
    code = check_choice(status, "layout_kv", g.layout_kv, TESSERA_PAGED,
                        "TESSERA_DENSE (0), TESSERA_PACKED (1) or TESSERA_PAGED (2)");
  }
  if (code == TESSERA_OK) {
    code = check_choice(status, "mask_alignment", g.mask_alignment, TESSERA_TOP_LEFT,
                        "TESSERA_BOTTOM_RIGHT (0) or TESSERA_TOP_LEFT (1)");
  }
  if (code == TESSERA_OK)
    code = check_choice(status, "isa", g.isa, TESSERA_ISA_NEON, "TESSERA_ISA_AUTO (0) to TESSERA_ISA_NEON (5)");
  if (code == TESSERA_OK) code = check_choice(status, "v_order", g.v_order, 1, "0 or 1");
  if (code == TESSERA_OK)
    code = check_choice(status, "num_splits", g.num_splits, kMaxSplits, "0 (the library chooses) to 65536");
  if (code == TESSERA_OK && g.sm_margin < 0) code = refuse(status, "sm_margin", g.sm_margin, "0 or more");
  if (code == TESSERA_OK && g.threads < 0)
    code = refuse(status, "threads", g.threads, "0 (all CPUs of the affinity mask) or more");
  return code;
}

int check_heads(const tessera_problem& g, tessera_status* status) {
  if (g.heads_q < 1 || g.heads_kv < 1) {
    return fail(status, TESSERA_INVALID_ARGUMENT, "heads_q is %d and heads_kv is %d; expected both 1 or more",
                g.heads_q, g.heads_kv);
  }
  if (g.heads_q % g.heads_kv != 0) {
    return fail(status, TESSERA_INVALID_ARGUMENT,
                "heads_q is %d and heads_kv is %d; expected heads_q to be a multiple of heads_kv", g.heads_q,
                g.heads_kv);
  }
  if (g.head_dim_qk < 1) return refuse(status, "head_dim_qk", g.head_dim_qk, "1 or more");
  if (g.head_dim_v < 1) return refuse(status, "head_dim_v", g.head_dim_v, "1 or more");
  return TESSERA_OK;
}

int check_pages(const tessera_problem& g, tessera_status* status) {
  if (g.layout_kv != TESSERA_PAGED) return TESSERA_OK;
  if (g.page_size < 1) return refuse(status, "page_size", g.page_size, "1 or more for paged k and v");
  int code = check_count(status, "num_pages", g.num_pages);
  if (code == TESSERA_OK) code = check_count(status, "max_pages", g.max_pages);
  if (code != TESSERA_OK) return code;
  if (g.max_pages * g.page_size < g.seqlen_k) {
    return fail(status, TESSERA_INVALID_ARGUMENT,
                "max_pages is %" PRId64 " with page_size %d, room for %" PRId64
                " keys; expected room for seqlen_k = %" PRId64,
                g.max_pages, g.page_size, g.max_pages * g.page_size, g.seqlen_k);
  }
  int64_t reach = 0;
  if (g.page_table_stride != 0 &&
      (g.page_table_stride < g.max_pages || __builtin_mul_overflow(g.page_table_stride, kMaxCount * 4, &reach))) {
    return fail(status, TESSERA_INVALID_ARGUMENT,
                "page_table_stride is %" PRId64 "; expected 0 (max_pages) or at least max_pages = %" PRId64
                ", below 2^30",
                g.page_table_stride, g.max_pages);
  }
  return TESSERA_OK;
}

int check_sizes(const tessera_problem& g, tessera_status* status) {
  const struct {
    const char* name;
    int64_t value;
  } counts[] = {{"batch", g.batch},       {"batch_kv", g.batch_kv}, {"seqlen_q", g.seqlen_q},
                {"seqlen_k", g.seqlen_k}, {"total_q", g.total_q},   {"total_k", g.total_k}};
  for (const auto& count : counts) {
    if (const int code = check_count(status, count.name, count.value)) return code;
  }
  if (const int code = check_heads(g, status)) return code;
  if (const int code = check_pages(g, status)) return code;
  const bool picks_rows = g.layout_kv == TESSERA_DENSE && (g.flags & TESSERA_FLAG_BATCH_IDX) != 0;
  if (g.batch_kv != 0 && g.layout_kv != TESSERA_DENSE && g.batch_kv != g.batch) {
    return refuse(status, "batch_kv", g.batch_kv, "0 or batch: only dense k and v have rows of their own");
  }
  if (g.batch_kv != 0 && g.batch_kv < g.batch && !picks_rows) {
    return fail(status, TESSERA_INVALID_ARGUMENT,
                "batch_kv is %" PRId64 " and batch is %" PRId64
                "; expected batch_kv >= batch, or batch_idx to pick the rows",
                g.batch_kv, g.batch);
  }
  if (g.pass == TESSERA_BACKWARD && g.batch_kv != 0 && g.batch_kv != g.batch) {
    return refuse(status, "batch_kv", g.batch_kv, "0 or batch in backward");
  }
  return TESSERA_OK;
}

constexpr double kLargestFactor = 1e30;

int check_scores(const tessera_problem& g, tessera_status* status) {
  if (g.left < -1) return refuse(status, "left", g.left, "-1 (unbounded), 0 or more");
  if (g.right < -1) return refuse(status, "right", g.right, "-1 (unbounded), 0 or more");
  if (std::isinf(g.scale)) {
    return fail(status, TESSERA_INVALID_ARGUMENT,
                "scale is %g; expected a finite number, or NaN for 1/sqrt(head_dim_qk)", g.scale);
  }
  if (!(g.softcap >= 0.0) || std::isinf(g.softcap)) {
    return fail(status, TESSERA_INVALID_ARGUMENT, "softcap is %g; expected 0 (off) or a positive finite number",
                g.softcap);
  }
  if (g.q.dtype == TESSERA_F64) return TESSERA_OK;
  // All other types compute in float32. 1e30 leaves its largest number room for log2(e) and a product with a score.
  if (std::fabs(g.scale) > kLargestFactor) {
    return fail(status, TESSERA_INVALID_ARGUMENT, "scale is %g; expected at most %g in magnitude unless q is f64",
                g.scale, kLargestFactor);
  }
  if (g.softcap > kLargestFactor || (g.softcap > 0 && g.softcap < 1 / kLargestFactor)) {
    return fail(status, TESSERA_INVALID_ARGUMENT, "softcap is %g; expected 0 or %g to %g unless q is f64", g.softcap,
                1 / kLargestFactor, kLargestFactor);
  }
  return TESSERA_OK;
}

int check_flag_numbers(const tessera_problem& g, tessera_status* status) {
  if ((g.flags & ~kKnownFlags) != 0) {
    return fail(status, TESSERA_INVALID_ARGUMENT,
                "flags is 0x%" PRIx64 ", with unknown bits 0x%" PRIx64 "; expected bits of 0x%" PRIx64, g.flags,
                g.flags & ~kKnownFlags, kKnownFlags);
  }
  if (g.alibi_stride < 0) return refuse(status, "alibi_stride", g.alibi_stride, "0 (shared) or more");
  if (g.v_mean_stride < 0) return refuse(status, "v_mean_stride", g.v_mean_stride, "0 (shared) or more");
  int64_t reach = 0;
  if (__builtin_mul_overflow(g.alibi_stride, kMaxCount * 4, &reach))
    return refuse(status, "alibi_stride", g.alibi_stride, "below 2^30");
  if (__builtin_mul_overflow(g.v_mean_stride, kMaxCount * 4, &reach))
    return refuse(status, "v_mean_stride", g.v_mean_stride, "below 2^30");
  return TESSERA_OK;
}

int contradiction(tessera_status* status, const char* text) {
  return fail(status, TESSERA_INVALID_ARGUMENT, "%s", text);
}

int check_flags(const tessera_problem& g, tessera_status* status) {
  if (const int code = check_flag_numbers(g, status)) return code;
  const auto has = [&](uint64_t flag) { return (g.flags & flag) != 0; };
  const bool backward = g.pass == TESSERA_BACKWARD;
  if (!backward && has(kBackwardFlags)) {
    return fail(status, TESSERA_INVALID_ARGUMENT,
                "flags has %s but pass is TESSERA_FORWARD; expected it only in backward",
                has(TESSERA_FLAG_D_LSE)     ? "D_LSE"
                : has(TESSERA_FLAG_D_SINKS) ? "D_SINKS"
                                            : "D_BIAS");
  }
  if (has(TESSERA_FLAG_D_SINKS) && !has(TESSERA_FLAG_SINKS))
    return contradiction(status, "flags has D_SINKS without SINKS; expected both");
  if (has(TESSERA_FLAG_D_BIAS) && !has(TESSERA_FLAG_BIAS))
    return contradiction(status, "flags has D_BIAS without BIAS; expected both");
  if (has(TESSERA_FLAG_BIAS) && (g.layout_q == TESSERA_PACKED || g.layout_kv == TESSERA_PACKED)) {
    return contradiction(status, "bias is given with a packed layout; expected dense q and dense or paged k, v");
  }
  if (has(TESSERA_FLAG_BATCH_IDX) && g.layout_kv != TESSERA_DENSE) {
    return contradiction(status,
                         "batch_idx is given but k and v are not dense; expected a dense cache whose rows it picks");
  }
  if (backward && g.layout_kv == TESSERA_PAGED) {
    return contradiction(status, "layout_kv is TESSERA_PAGED in backward; expected dense or packed k and v");
  }
  if (backward && has(TESSERA_FLAG_BATCH_IDX))
    return contradiction(status, "batch_idx is given in backward; expected it only in forward");
  if (backward && has(TESSERA_FLAG_LEFTPAD))
    return contradiction(status, "leftpad is given in backward; expected it only in forward");
  return TESSERA_OK;
}

void resolve_numbers(const tessera_problem& g, Problem* p) {
  p->pass = g.pass;
  p->device = g.device;
  p->batch = g.batch;
  p->batch_kv = g.batch_kv != 0 ? g.batch_kv : g.batch;
  p->seqlen_q = g.seqlen_q;
  p->seqlen_k = g.seqlen_k;
  p->total_q = g.total_q;
  p->total_k = g.total_k;
  p->num_pages = g.num_pages;
  p->max_pages = g.max_pages;
  p->page_table_stride = g.page_table_stride != 0 ? g.page_table_stride : g.max_pages;
  p->alibi_stride = g.alibi_stride;
  p->v_mean_stride = g.v_mean_stride;
  p->left = g.left;
  p->right = g.right;
  p->heads_q = g.heads_q;
  p->heads_kv = g.heads_kv;
  p->group = g.heads_q / g.heads_kv;
  p->head_dim_qk = g.head_dim_qk;
  p->head_dim_v = g.head_dim_v;
  p->layout_q = g.layout_q;
  p->layout_kv = g.layout_kv;
  p->page_size = g.page_size;
  p->top_left = g.mask_alignment == TESSERA_TOP_LEFT;
  p->scale = std::isnan(g.scale) ? 1.0 / std::sqrt(static_cast<double>(g.head_dim_qk)) : g.scale;
  p->softcap = g.softcap;
  p->flags = g.flags;
  p->v_order = g.v_order;
  p->num_splits = g.num_splits;
  p->sm_margin = g.sm_margin;
  p->threads = g.threads;
  p->isa = g.isa;
  std::memcpy(p->kernel, g.kernel, sizeof p->kernel);
  std::memcpy(p->device_name, g.device_name, sizeof p->device_name);
}

}  // namespace

int validate(const tessera_problem& given, Problem* problem, tessera_status* status) {
  int code = check_struct(given, status);
  if (code == TESSERA_OK) code = check_choices(given, status);
  if (code == TESSERA_OK) code = check_sizes(given, status);
  if (code == TESSERA_OK) code = check_scores(given, status);
  if (code == TESSERA_OK) code = check_flags(given, status);
  if (code != TESSERA_OK) return code;
  Problem resolved{};
  resolve_numbers(given, &resolved);
  code = resolve_operands(given, &resolved, status);
  if (code != TESSERA_OK) return code;
  *problem = resolved;
  return succeed(status);
}

}  // namespace tessera::core
