// Words of a problem line to ProblemWords: one table of words, one handler a kind of value.
#include "problem_text.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <iterator>

#include "device_info.hpp"
#include "status.hpp"

namespace tessera::core {
namespace {

constexpr int64_t kMaxNumber = (int64_t{1} << 31) - 1;

struct Parser {
  ProblemWords* words;
  tessera_status* status;
  std::string_view word;   // the word at hand
  std::string_view value;  // what follows its key

  // "'sq-4': expected a number ..."
  int expected(const char* what) const {
    return fail(status, TESSERA_INVALID_ARGUMENT, "'%.*s': expected %s",
                static_cast<int>(std::min<size_t>(word.size(), 80)), word.data(), what);
  }
};

template <class T>
bool parse_number(std::string_view text, T* number) {
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, *number);
  return error == std::errc() && rest == end;
}

int read_count(const Parser& p, int64_t minimum, int64_t* target) {
  int64_t number = 0;
  if (parse_number(p.value, &number) && number >= minimum && number <= kMaxNumber) {
    *target = number;
    return TESSERA_OK;
  }
  return p.expected(minimum == 0 ? "a whole number from 0 to 2147483647" : "a whole number from 1 to 2147483647");
}

int read_real(const Parser& p, double* target) {
  double number = 0;
  if (!parse_number(p.value, &number) || !std::isfinite(number)) return p.expected("a finite number");
  *target = number;
  return TESSERA_OK;
}

int32_t dtype_from_name(std::string_view name) {
  for (int32_t dtype = TESSERA_F64; dtype <= TESSERA_U8; ++dtype) {
    if (name == dtype_name(dtype)) return dtype;
  }
  return 0;
}

int set_window(Parser& p) {
  const size_t comma = p.value.find(',');
  int64_t left = 0, right = 0;
  if (comma == std::string_view::npos || !parse_number(p.value.substr(0, comma), &left) ||
      !parse_number(p.value.substr(comma + 1), &right) || left < -1 || right < -1) {
    return p.expected("window=l,r with whole numbers of at least -1 (-1: unbounded)");
  }
  p.words->left = left;
  p.words->right = right;
  return TESSERA_OK;
}

int set_lens(Parser& p) {
  constexpr const char* kExpected =
      "lens=equal, lens=longtail or one length a sequence, lens=a:b:c, from 0 to 2147483647";
  TextExtras& extras = p.words->extras;
  extras.lens.clear();
  if (p.value != "equal" && p.value != "longtail") {
    std::string_view rest = p.value;
    for (;;) {
      const size_t colon = rest.find(':');
      int64_t length = 0;
      if (!parse_number(rest.substr(0, colon), &length) || length < 0 || length > kMaxNumber)
        return p.expected(kExpected);
      extras.lens.push_back(length);
      if (colon == std::string_view::npos) break;
      rest.remove_prefix(colon + 1);
    }
  }
  extras.lens_word = p.value;
  return TESSERA_OK;
}

int set_bias(Parser& p) {
  for (const char* axes : {"bh", "b", "h", "1"}) {
    if (p.value == axes) {
      p.words->extras.bias_axes.assign(p.value);
      return TESSERA_OK;
    }
  }
  return p.expected("bias, bias=bh, bias=b, bias=h or bias=1");
}

int set_kernel(Parser& p) {
  if (p.value.empty() || p.value.size() >= sizeof tessera_problem::kernel)
    return p.expected("a kernel name or glob of 1 to 63 characters");
  p.words->kernel = p.value;
  return TESSERA_OK;
}

int set_isa(Parser& p) {
  p.words->isa = isa_from_name(p.value);
  return p.words->isa != 0 ? TESSERA_OK : p.expected("isa=portable, avx2, avx512, amx or neon");
}

int set_output(Parser& p) {
  p.words->o_dtype = dtype_from_name(p.value);
  const bool known = p.words->o_dtype >= TESSERA_F64 && p.words->o_dtype <= TESSERA_BF16;
  return known ? TESSERA_OK : p.expected("o=f64, o=f32, o=f16 or o=bf16");
}

int set_cache(Parser& p) {
  p.words->kv_dtype = dtype_from_name(p.value);
  const bool known = p.words->kv_dtype == TESSERA_INT8 || p.words->kv_dtype == TESSERA_E4M3;
  return known ? TESSERA_OK : p.expected("kv=int8 or kv=e4m3");
}

int set_seed(Parser& p) {
  if (!parse_number(p.value, &p.words->extras.seed)) return p.expected("a whole number from 0 to 18446744073709551615");
  p.words->extras.seed_given = true;
  return TESSERA_OK;
}

int set_device(Parser& p) {
  int64_t device = 0;
  const int code = read_count(p, 0, &device);
  p.words->device = static_cast<int32_t>(device);
  return code;
}

template <bool ProblemWords::*member>
int set_true(Parser& p) {
  p.words->*member = true;
  return TESSERA_OK;
}
template <int32_t ProblemWords::*member, int32_t value>
int set_value(Parser& p) {
  p.words->*member = value;
  return TESSERA_OK;
}
template <int64_t ProblemWords::*member, int64_t minimum>
int set_count(Parser& p) {
  return read_count(p, minimum, &(p.words->*member));
}
template <double ProblemWords::*member>
int set_real(Parser& p) {
  return read_real(p, &(p.words->*member));
}

enum class Form {
  exact,   // "causal"
  number,  // "sq4096"
  assign   // "seed=7"
};

struct WordRule {
  const char* key;
  Form form;
  const char* slot;  // words of one slot exclude each other
  int (*apply)(Parser&);
};

using W = ProblemWords;
constexpr WordRule kRules[] = {
    {"fwd", Form::exact, "pass", set_value<&W::pass, TESSERA_FORWARD>},
    {"bwd", Form::exact, "pass", set_value<&W::pass, TESSERA_BACKWARD>},
    {"f64", Form::exact, "dtype", set_value<&W::dtype, TESSERA_F64>},
    {"f32", Form::exact, "dtype", set_value<&W::dtype, TESSERA_F32>},
    {"f16", Form::exact, "dtype", set_value<&W::dtype, TESSERA_F16>},
    {"bf16", Form::exact, "dtype", set_value<&W::dtype, TESSERA_BF16>},
    {"e4m3", Form::exact, "dtype", set_value<&W::dtype, TESSERA_E4M3>},
    {"cpu", Form::exact, "device", set_value<&W::device, -1>},
    {"cuda", Form::exact, "device", set_value<&W::device, 0>},
    {"cuda", Form::assign, "device", set_device},
    {"causal", Form::exact, "causal", set_true<&W::causal>},
    {"topleft", Form::exact, "topleft", set_true<&W::top_left>},
    {"alibi", Form::exact, "alibi", set_true<&W::alibi>},
    {"sinks", Form::exact, "sinks", set_true<&W::sinks>},
    {"bias", Form::exact, "bias", [](Parser& p) { return p.words->extras.bias_axes = "bh", int{TESSERA_OK}; }},
    {"bias", Form::assign, "bias", set_bias},
    {"mask", Form::exact, "bias", [](Parser& p) { return p.words->extras.bias_axes = "mask", int{TESSERA_OK}; }},
    {"dbias", Form::exact, "dbias", set_true<&W::d_bias>},
    {"dlse", Form::exact, "dlse", set_true<&W::d_lse>},
    {"packed", Form::exact, "packed", set_true<&W::packed>},
    {"leftpad", Form::exact, "leftpad", set_true<&W::leftpad>},
    {"deterministic", Form::exact, "deterministic", set_true<&W::deterministic>},
    {"batch-invariant", Form::exact, "batch-invariant", set_true<&W::batch_invariant>},
    {"window", Form::assign, "window", set_window},
    {"softcap", Form::assign, "softcap", set_real<&W::softcap>},
    {"scale", Form::assign, "scale", set_real<&W::scale>},
    {"o", Form::assign, "o", set_output},
    {"kv", Form::assign, "kv", set_cache},
    {"paged", Form::assign, "paged", set_count<&W::page_size, 1>},
    {"pages", Form::assign, "pages",
     [](Parser& p) {
       p.words->extras.pages_shuffled = true;
       return p.value == "shuffled" ? int{TESSERA_OK} : p.expected("pages=shuffled");
     }},
    {"seed", Form::assign, "seed", set_seed},
    {"lens", Form::assign, "lens", set_lens},
    {"layout", Form::assign, "layout",
     [](Parser& p) {
       p.words->extras.bhsd = p.value == "bhsd";
       return p.value == "bhsd" || p.value == "bshd" ? int{TESSERA_OK} : p.expected("layout=bshd or layout=bhsd");
     }},
    {"splits", Form::assign, "splits", set_count<&W::num_splits, 0>},
    {"sm_margin", Form::assign, "sm_margin", set_count<&W::sm_margin, 0>},
    {"threads", Form::assign, "threads", set_count<&W::threads, 0>},
    {"kernel", Form::assign, "kernel", set_kernel},
    {"isa", Form::assign, "isa", set_isa},
    {"hkv", Form::number, "hkv", set_count<&W::heads_kv, 0>},
    {"hq", Form::number, "hq", set_count<&W::heads_q, 0>},
    {"sq", Form::number, "sq", set_count<&W::seqlen_q, 0>},
    {"sk", Form::number, "sk", set_count<&W::seqlen_k, 0>},
    {"dv", Form::number, "dv", set_count<&W::head_dim_v, 0>},
    {"d", Form::number, "d", set_count<&W::head_dim_qk, 0>},
    {"b", Form::number, "b", set_count<&W::batch, 0>},
};

// The value behind the rule's key, or nothing when the word is not of this rule. A sign or digit makes "b-4" a "b".
bool match_rule(const WordRule& rule, std::string_view word, std::string_view* value) {
  const std::string_view key = rule.key;
  if (word.substr(0, key.size()) != key) return false;
  const std::string_view rest = word.substr(key.size());
  *value = rest;
  if (rule.form == Form::exact) return rest.empty();
  if (rule.form == Form::number)
    return rest.empty() || rest[0] == '-' || rest[0] == '+' || (rest[0] >= '0' && rest[0] <= '9');
  if (rest.empty() || rest[0] != '=') return false;
  value->remove_prefix(1);
  return true;
}

int apply_word(Parser& parser, std::string_view (&seen)[std::size(kRules)]) {
  for (const WordRule& rule : kRules) {
    if (!match_rule(rule, parser.word, &parser.value)) continue;
    for (size_t i = 0; i < std::size(kRules); ++i) {
      if (seen[i].empty() || std::strcmp(kRules[i].slot, rule.slot) != 0) continue;
      return fail(parser.status, TESSERA_INVALID_ARGUMENT, "'%.*s' after '%.*s': expected one word for %s",
                  static_cast<int>(std::min<size_t>(parser.word.size(), 80)), parser.word.data(),
                  static_cast<int>(std::min<size_t>(seen[i].size(), 80)), seen[i].data(), rule.slot);
    }
    seen[&rule - kRules] = parser.word;
    return rule.apply(parser);
  }
  // Words that users of other libraries try.
  if (parser.word == "e5m2") return parser.expected("e4m3, which keeps one bit more, or f64, f32, f16, bf16");
  if (parser.word.starts_with("dropout")) return parser.expected("no dropout: these kernels drop nothing");
  return parser.expected("a word of a problem, such as fwd bf16 b4 hq32 hkv8 sq4096 sk4096 d128 causal");
}

}  // namespace

int parse_words(std::string_view text, ProblemWords* words, tessera_status* status) {
  ProblemWords parsed;
  Parser parser{&parsed, status, {}, {}};
  std::string_view seen[std::size(kRules)];
  constexpr std::string_view kSpace = " \t\r\n";
  for (size_t begin = text.find_first_not_of(kSpace); begin != std::string_view::npos;) {
    const size_t end = std::min(text.find_first_of(kSpace, begin), text.size());
    parser.word = text.substr(begin, end - begin);
    if (const int code = apply_word(parser, seen)) return code;
    begin = text.find_first_not_of(kSpace, end);
  }
  *words = std::move(parsed);
  return succeed(status);
}

int parse_problem(std::string_view text, tessera_problem* problem, TextExtras* extras, tessera_status* status) {
  ProblemWords words;
  if (const int code = parse_words(text, &words, status)) return code;
  return resolve_words(words, problem, extras, status);
}

}  // namespace tessera::core
