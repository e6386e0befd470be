// Words to a problem and back: defaults, lengths, totals, pages, strides, and the canonical line.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "problem_text.hpp"
#include "status.hpp"

namespace tessera::core {
namespace {

// Sequences that lens= may describe: a line of text should not cost more than 16 MiB.
constexpr int64_t kMostLengths = int64_t{1} << 20;

// Products of sizes that validate() has not seen yet: too large a stride is refused there.
int64_t saturating_product(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int check_words(const ProblemWords& words, tessera_status* status) {
  const auto refuse = [&](const char* text) { return fail(status, TESSERA_INVALID_ARGUMENT, "%s", text); };
  const TextExtras& extras = words.extras;
  if (words.seqlen_q < 0) return refuse("sq is missing; expected the query length, such as sq4096");
  if (words.head_dim_qk < 0) return refuse("d is missing; expected the head dim, such as d128");
  if (words.d_lse && words.pass == TESSERA_FORWARD) return refuse("'dlse' without 'bwd'; expected both");
  if (words.d_bias && words.pass == TESSERA_FORWARD) return refuse("'dbias' without 'bwd'; expected both");
  if (words.d_bias && extras.bias_axes.empty()) return refuse("'dbias' without 'bias'; expected both");
  if (words.d_bias && extras.bias_axes == "mask")
    return refuse("'dbias' with 'mask'; expected 'bias', a mask has no gradient");
  if (extras.pages_shuffled && words.page_size == 0) return refuse("'pages=shuffled' without 'paged='; expected both");
  if (!extras.lens_word.empty() && words.batch > kMostLengths) {
    return fail(status, TESSERA_INVALID_ARGUMENT, "'lens=%s' with b=%lld; expected b of at most %lld",
                extras.lens_word.c_str(), static_cast<long long>(words.batch), static_cast<long long>(kMostLengths));
  }
  if (extras.lens.empty()) return TESSERA_OK;
  if (static_cast<int64_t>(extras.lens.size()) != words.batch) {
    return fail(status, TESSERA_INVALID_ARGUMENT, "'lens=' gives %zu lengths and b is %lld; expected one a sequence",
                extras.lens.size(), static_cast<long long>(words.batch));
  }
  const int64_t longest = std::max(words.seqlen_q, words.seqlen_k);
  for (const int64_t length : extras.lens) {
    if (length <= longest) continue;
    return fail(status, TESSERA_INVALID_ARGUMENT,
                "'lens=' has a length of %lld; expected at most the larger of sq and sk, %lld",
                static_cast<long long>(length), static_cast<long long>(longest));
  }
  return TESSERA_OK;
}

// splitmix64 (Steele, Lea, Flood 2014): the same order on every machine.
uint64_t next_random(uint64_t* state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

void resolve_lengths(const ProblemWords& words, int64_t seqlen_k, TextExtras* extras) {
  if (extras->lens_word.empty()) return;
  const std::vector<int64_t> given = std::move(extras->lens);
  extras->lens.assign(static_cast<size_t>(words.batch), words.seqlen_q);
  extras->lens_k.assign(static_cast<size_t>(words.batch), seqlen_k);
  for (int64_t i = 0; i < words.batch; ++i) {
    const auto at = static_cast<size_t>(i);
    if (!given.empty()) {
      extras->lens[at] = std::min(given[at], words.seqlen_q);
      extras->lens_k[at] = std::min(given[at], seqlen_k);
    } else if (extras->lens_word == "longtail") {
      extras->lens[at] = ceil_div(words.seqlen_q, i + 1);
      extras->lens_k[at] = ceil_div(seqlen_k, i + 1);
    }
  }
  if (extras->lens_word != "longtail") return;
  uint64_t state = extras->seed;
  for (size_t i = extras->lens.size(); i > 1; --i) {
    const size_t j = next_random(&state) % i;
    std::swap(extras->lens[i - 1], extras->lens[j]);
    std::swap(extras->lens_k[i - 1], extras->lens_k[j]);
  }
}

uint64_t resolve_flags(const ProblemWords& words) {
  const bool backward = words.pass == TESSERA_BACKWARD, lens = !words.extras.lens_word.empty(),
             paged = words.page_size > 0;
  uint64_t flags = 0;
  const auto set = [&](bool on, uint64_t flag) { flags |= on ? flag : 0; };
  set(words.d_lse, TESSERA_FLAG_D_LSE);
  set(words.alibi, TESSERA_FLAG_ALIBI);
  set(words.sinks, TESSERA_FLAG_SINKS);
  set(words.sinks && backward, TESSERA_FLAG_D_SINKS);
  set(!words.extras.bias_axes.empty(), TESSERA_FLAG_BIAS);
  set(words.d_bias, TESSERA_FLAG_D_BIAS);
  set(lens && !words.packed, TESSERA_FLAG_SEQUSED_Q);
  set(paged || (lens && !words.packed), TESSERA_FLAG_SEQUSED_K);
  set(words.leftpad, TESSERA_FLAG_LEFTPAD);
  set(words.deterministic, TESSERA_FLAG_DETERMINISTIC);
  set(words.batch_invariant, TESSERA_FLAG_BATCH_INVARIANT);
  return flags;
}

void resolve_totals(const ProblemWords& words, const TextExtras& extras, tessera_problem* p) {
  const auto sum = [&](const std::vector<int64_t>& lens, int64_t length, auto value) {
    int64_t total = 0;
    if (lens.empty()) return saturating_product(words.batch, value(length));
    for (const int64_t l : lens) total += value(l);
    return total;
  };
  const auto same = [](int64_t l) { return l; };
  if (words.packed) {
    p->layout_q = TESSERA_PACKED;
    p->total_q = sum(extras.lens, p->seqlen_q, same);
  }
  if (words.page_size > 0) {
    const int64_t page = words.page_size;
    p->layout_kv = TESSERA_PAGED;
    p->page_size = static_cast<int32_t>(page);
    p->max_pages = ceil_div(p->seqlen_k, page);
    p->num_pages = sum(extras.lens_k, p->seqlen_k, [page](int64_t l) { return ceil_div(l, page); }) + 1;
  } else if (words.packed) {
    p->layout_kv = TESSERA_PACKED;
    p->total_k = sum(extras.lens_k, p->seqlen_k, same);
  }
}

// Strides of an operand stored [batch or page, heads, rows, dim] (packed: [heads, total, dim]).
void heads_first(tessera_desc* desc, bool packed, int64_t rows, int64_t heads, int64_t dim) {
  int64_t* stride = desc->stride;
  std::fill(stride, stride + 4, 0);
  if (!packed) *stride++ = saturating_product(saturating_product(rows, dim), heads);
  stride[0] = dim;
  stride[1] = saturating_product(rows, dim);
  stride[2] = 1;
}

void set_heads_first(tessera_problem* p) {
  const bool packed_q = p->layout_q == TESSERA_PACKED, packed_k = p->layout_kv == TESSERA_PACKED;
  const int64_t rows_q = packed_q ? p->total_q : p->seqlen_q;
  const int64_t rows_k = packed_k ? p->total_k : p->layout_kv == TESSERA_PAGED ? p->page_size : p->seqlen_k;
  for (tessera_desc* desc : {&p->q, &p->dq}) heads_first(desc, packed_q, rows_q, p->heads_q, p->head_dim_qk);
  for (tessera_desc* desc : {&p->o, &p->d_o}) heads_first(desc, packed_q, rows_q, p->heads_q, p->head_dim_v);
  for (tessera_desc* desc : {&p->k, &p->dk}) heads_first(desc, packed_k, rows_k, p->heads_kv, p->head_dim_qk);
  for (tessera_desc* desc : {&p->v, &p->dv}) heads_first(desc, packed_k, rows_k, p->heads_kv, p->head_dim_v);
}

void set_bias(const ProblemWords& words, tessera_problem* p) {
  const std::string& axes = words.extras.bias_axes;
  if (axes.empty()) return;
  const bool mask = axes == "mask", heads = axes == "bh" || axes == "h", batches = axes == "bh" || axes == "b" || mask;
  const int64_t plane = saturating_product(p->seqlen_q, p->seqlen_k);
  p->bias.dtype = mask ? TESSERA_U8 : p->q.dtype == TESSERA_E4M3 ? TESSERA_F32 : p->q.dtype;
  p->bias.stride[0] = batches ? saturating_product(plane, heads ? p->heads_q : 1) : 0;
  p->bias.stride[1] = heads ? plane : 0;
  p->bias.stride[2] = p->seqlen_k;
  p->bias.stride[3] = 1;
  if (words.d_bias) p->d_bias = p->bias;
}

void set_dtypes(const ProblemWords& words, tessera_problem* p) {
  const int32_t dtype = words.dtype != 0 ? words.dtype : words.device < 0 ? TESSERA_F32 : TESSERA_BF16;
  const int32_t output = dtype == TESSERA_E4M3 ? TESSERA_BF16 : dtype;
  p->q.dtype = dtype;
  p->k.dtype = p->v.dtype = words.kv_dtype != 0 ? words.kv_dtype : dtype;
  p->o.dtype = words.o_dtype != 0 ? words.o_dtype : output;
  p->d_o.dtype = p->o.dtype;
  p->dq.dtype = p->dk.dtype = p->dv.dtype = output;
}

}  // namespace

int resolve_words(const ProblemWords& words, tessera_problem* problem, TextExtras* extras, tessera_status* status) {
  ProblemWords w = words;
  if (w.seqlen_k < 0) w.seqlen_k = w.seqlen_q;
  if (const int code = check_words(w, status)) return code;
  tessera_problem p = default_problem();
  p.pass = w.pass;
  p.device = w.device;
  p.batch = w.batch;
  p.seqlen_q = w.seqlen_q;
  p.seqlen_k = w.seqlen_k;
  p.heads_q = static_cast<int32_t>(w.heads_q);
  p.heads_kv = static_cast<int32_t>(w.heads_kv >= 0 ? w.heads_kv : w.heads_q);
  p.head_dim_qk = static_cast<int32_t>(w.head_dim_qk);
  p.head_dim_v = static_cast<int32_t>(w.head_dim_v >= 0 ? w.head_dim_v : w.head_dim_qk);
  p.left = w.left;
  p.right = w.causal ? 0 : w.right;
  p.mask_alignment = w.top_left ? TESSERA_TOP_LEFT : TESSERA_BOTTOM_RIGHT;
  p.scale = w.scale;
  p.softcap = w.softcap;
  p.num_splits = static_cast<int32_t>(w.num_splits);
  p.sm_margin = static_cast<int32_t>(w.sm_margin);
  p.threads = static_cast<int32_t>(w.threads);
  p.isa = w.isa;
  std::memcpy(p.kernel, w.kernel.data(), std::min(w.kernel.size(), sizeof p.kernel - 1));
  p.flags = resolve_flags(w);
  set_dtypes(w, &p);
  TextExtras resolved = w.extras;
  resolve_lengths(w, w.seqlen_k, &resolved);
  resolve_totals(w, resolved, &p);
  if (resolved.bhsd) set_heads_first(&p);
  set_bias(w, &p);
  *problem = p;
  if (extras != nullptr) *extras = std::move(resolved);
  return succeed(status);
}

}  // namespace tessera::core
