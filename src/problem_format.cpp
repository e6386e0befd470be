// The canonical line of a problem, from a tessera_problem and what only words can say.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "device_info.hpp"
#include "problem_text.hpp"

namespace tessera::core {
namespace {

std::string number(double value) {
  char text[40];
  const auto result = std::to_chars(text, text + sizeof text, value);
  return {text, result.ptr};
}

// What the canonical line needs, from either kind of problem.
struct Line {
  int32_t pass, device, dtype, kv_dtype, o_dtype;
  int64_t batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim_qk, head_dim_v;
  int64_t left, right, page_size, num_splits, sm_margin, threads;
  bool top_left, packed, paged, bhsd;
  double scale, softcap;  // NaN: the default
  uint64_t flags;
  int32_t isa;
  std::string bias, kernel;
};

std::vector<std::string> trailing_words(const Line& line, const TextExtras* extras) {
  std::vector<std::string> words;
  const auto add = [&](bool on, std::string word) {
    if (on) words.push_back(std::move(word));
  };
  const auto has = [&](uint64_t flag) { return (line.flags & flag) != 0; };
  const bool causal = line.left < 0 && line.right == 0;
  add(causal, "causal");
  add(!causal && (line.left >= 0 || line.right >= 0), fmt::format("window={},{}", line.left, line.right));
  add(line.top_left, "topleft");
  add(line.softcap != 0, fmt::format("softcap={}", number(line.softcap)));
  add(!std::isnan(line.scale), fmt::format("scale={}", number(line.scale)));
  add(has(TESSERA_FLAG_ALIBI), "alibi");
  add(has(TESSERA_FLAG_SINKS), "sinks");
  add(!line.bias.empty(), line.bias == "mask" ? "mask"
                          : line.bias == "bh" ? "bias"
                                              : fmt::format("bias={}", line.bias));
  add(has(TESSERA_FLAG_D_BIAS), "dbias");
  add(has(TESSERA_FLAG_D_LSE), "dlse");
  const int32_t output = line.dtype == TESSERA_E4M3 ? TESSERA_BF16 : line.dtype;
  add(line.o_dtype != 0 && line.o_dtype != output, fmt::format("o={}", dtype_name(line.o_dtype)));
  add(line.kv_dtype != 0 && line.kv_dtype != line.dtype, fmt::format("kv={}", dtype_name(line.kv_dtype)));
  add(line.packed, "packed");
  add(line.paged, fmt::format("paged={}", line.page_size));
  add(has(TESSERA_FLAG_LEFTPAD), "leftpad");
  add(line.bhsd, "layout=bhsd");
  add(line.num_splits != 0, fmt::format("splits={}", line.num_splits));
  add(has(TESSERA_FLAG_DETERMINISTIC), "deterministic");
  add(has(TESSERA_FLAG_BATCH_INVARIANT), "batch-invariant");
  add(line.sm_margin != 0, fmt::format("sm_margin={}", line.sm_margin));
  add(line.threads != 0, fmt::format("threads={}", line.threads));
  add(!line.kernel.empty(), fmt::format("kernel={}", line.kernel));
  if (const char* isa = isa_name(line.isa)) words.push_back(fmt::format("isa={}", isa));
  if (extras != nullptr) {
    add(extras->seed_given, fmt::format("seed={}", extras->seed));
    add(extras->pages_shuffled, "pages=shuffled");
    add(!extras->lens_word.empty(), fmt::format("lens={}", extras->lens_word));
  } else {
    // Used lengths are values, which a problem does not hold.
    add(has(TESSERA_FLAG_SEQUSED_Q) || (has(TESSERA_FLAG_SEQUSED_K) && !line.paged), "lens=equal");
  }
  std::sort(words.begin(), words.end());
  return words;
}

std::string write_line(const Line& line, const TextExtras* extras) {
  std::string text = line.pass == TESSERA_BACKWARD ? "bwd " : "fwd ";
  text += dtype_name(line.dtype);
  const auto add = [&](const char* key, int64_t value) { text += fmt::format(" {}{}", key, value); };
  add("b", line.batch);
  add("hq", line.heads_q);
  add("hkv", line.heads_kv);
  add("sq", line.seqlen_q);
  add("sk", line.seqlen_k);
  add("d", line.head_dim_qk);
  if (line.head_dim_v != line.head_dim_qk) add("dv", line.head_dim_v);
  for (const std::string& word : trailing_words(line, extras)) text.append(" ").append(word);
  text += line.device < 0 ? " cpu" : " cuda";
  if (line.device > 0) text += fmt::format("={}", line.device);
  return text;
}

std::string bias_axes(uint64_t flags, int32_t dtype, const int64_t* stride, const TextExtras* extras) {
  if ((flags & TESSERA_FLAG_BIAS) == 0) return "";
  if (extras != nullptr && !extras->bias_axes.empty()) return extras->bias_axes;
  if (dtype == TESSERA_U8) return "mask";
  if (stride[0] != 0) return stride[1] != 0 ? "bh" : "b";
  return stride[1] != 0 ? "h" : "1";
}

std::string bounded(const char* text, size_t capacity) { return {text, strnlen(text, capacity)}; }

}  // namespace

std::string format_problem(const tessera_problem& p, const TextExtras* extras) {
  Line line{};
  line.pass = p.pass;
  line.device = p.device;
  line.dtype = p.q.dtype;
  line.kv_dtype = p.k.dtype;
  line.o_dtype = p.o.dtype;
  line.batch = p.batch;
  line.heads_q = p.heads_q;
  line.heads_kv = p.heads_kv;
  line.seqlen_q = p.seqlen_q;
  line.seqlen_k = p.seqlen_k;
  line.head_dim_qk = p.head_dim_qk;
  line.head_dim_v = p.head_dim_v;
  line.left = p.left;
  line.right = p.right;
  line.page_size = p.page_size;
  line.num_splits = p.num_splits;
  line.sm_margin = p.sm_margin;
  line.threads = p.threads;
  line.top_left = p.mask_alignment == TESSERA_TOP_LEFT;
  line.packed = p.layout_q == TESSERA_PACKED;
  line.paged = p.layout_kv == TESSERA_PAGED;
  // Heads outermost of rows: the only other order that words can say.
  const int64_t* stride = p.q.stride + (line.packed ? 0 : 1);
  line.bhsd = extras != nullptr ? extras->bhsd : stride[0] == p.head_dim_qk && stride[1] > stride[0];
  line.scale = p.scale;
  line.softcap = p.softcap;
  line.flags = p.flags;
  line.isa = p.isa;
  line.bias = bias_axes(p.flags, p.bias.dtype, p.bias.stride, extras);
  line.kernel = bounded(p.kernel, sizeof p.kernel);
  return write_line(line, extras);
}

std::string format_resolved(const Problem& p) {
  Line line{};
  line.pass = p.pass;
  line.device = p.device;
  line.dtype = p.q.dtype;
  line.kv_dtype = p.k.dtype;
  line.o_dtype = p.o.dtype;
  line.batch = p.batch;
  line.heads_q = p.heads_q;
  line.heads_kv = p.heads_kv;
  line.seqlen_q = p.seqlen_q;
  line.seqlen_k = p.seqlen_k;
  line.head_dim_qk = p.head_dim_qk;
  line.head_dim_v = p.head_dim_v;
  line.left = p.left;
  line.right = p.right;
  line.page_size = p.page_size;
  line.num_splits = p.num_splits;
  line.sm_margin = p.sm_margin;
  line.threads = p.threads;
  line.top_left = p.top_left;
  line.packed = p.layout_q == TESSERA_PACKED;
  line.paged = p.layout_kv == TESSERA_PAGED;
  line.bhsd = p.q.row_stride == p.head_dim_qk && p.q.head_stride > p.q.row_stride;
  line.scale = p.scale == 1.0 / std::sqrt(static_cast<double>(p.head_dim_qk)) ? std::nan("") : p.scale;
  line.softcap = p.softcap;
  line.flags = p.flags;
  line.isa = p.isa;
  line.bias = bias_axes(p.flags, p.bias.dtype, p.bias.stride, nullptr);
  line.kernel = bounded(p.kernel, sizeof p.kernel);
  return write_line(line, nullptr);
}

}  // namespace tessera::core
