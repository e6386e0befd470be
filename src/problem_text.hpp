// The one-line text of a problem: the same in CLI, logs, tests, benchmarks and result files.
//
//   fwd bf16 b4 hq32 hkv8 sq4096 sk4096 d128 causal
//
// Words, in any order: fwd|bwd f64|f32|f16|bf16|e4m3 b hq hkv sq sk d dv (number behind) causal topleft window=l,r
// softcap= scale= alibi sinks bias[=bh|b|h|1] mask dbias dlse o=DTYPE kv=int8|e4m3 packed paged=16 pages=shuffled
// leftpad seed= lens=equal|longtail|a:b:c layout=bshd|bhsd splits= deterministic batch-invariant sm_margin= threads=
// kernel=GLOB isa= cpu|cuda[=N]. Required: sq, d. Defaults: fwd b1 hq1 hkv=hq sk=sq dv=d, f32 on the CPU, bf16 on cuda.
//
// Words say nothing of lse: who wants it sets TESSERA_FLAG_LSE. Where tessera_problem needs more: bwd with sinks writes
// d_sinks; paged has seqused_k and one page more than the lengths fill; lens gives sequence i the length min(len_i, sq)
// of q and min(len_i, sk) of k (longtail: ceil(sq / (i + 1)), ceil(sk / (i + 1)), shuffled by the seed), as cu_seqlens
// where packed and as seqused elsewhere; bias has q's dtype (f32 for e4m3); mask is u8 [batch, 1, seqlen_q, seqlen_k].
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "problem.hpp"
#include "tessera/tessera.h"

namespace tessera::core {

// What a line of text says beyond tessera_problem: how test operands are made.
struct TextExtras {
  uint64_t seed = 0;
  bool seed_given = false;
  std::vector<int64_t> lens;    // length of each sequence, resolved from lens= (empty: all sq, all sk)
  std::vector<int64_t> lens_k;  // key lengths; for lens=longtail and a:b:c the same rule on sk
  std::string lens_word;        // as written: "equal", "longtail", "5:3:9"; empty: not given
  bool pages_shuffled = false;
  bool bhsd = false;      // layout=bhsd: q, k, v, o stored [batch, heads, seqlen, dim]
  std::string bias_axes;  // "bh", "b", "h", "1" or "mask"; empty: none

  bool operator==(const TextExtras&) const = default;
};

// The words of a line before defaults. Callers that know shapes from elsewhere (tensor files) parse words, set the
// fields they know, and resolve.
struct ProblemWords {
  static constexpr int64_t kAbsent = -1;
  int32_t pass = TESSERA_FORWARD, dtype = 0, o_dtype = 0, kv_dtype = 0;  // dtype 0: the default
  int64_t batch = 1, heads_q = 1, heads_kv = kAbsent, seqlen_q = kAbsent, seqlen_k = kAbsent;
  int64_t head_dim_qk = kAbsent, head_dim_v = kAbsent;
  bool causal = false, top_left = false, alibi = false, sinks = false, d_bias = false, d_lse = false;
  bool packed = false, leftpad = false, deterministic = false, batch_invariant = false;
  int64_t left = -1, right = -1;
  double softcap = 0, scale = std::numeric_limits<double>::quiet_NaN();
  int64_t page_size = 0;  // 0: not paged
  int64_t num_splits = 0, sm_margin = 0, threads = 0;
  int32_t isa = 0, device = -1;
  std::string kernel;
  TextExtras extras;  // lens and lens_k are resolved later
};

// Parses the words alone. INVALID_ARGUMENT names the word, its value and what was expected.
int parse_words(std::string_view text, ProblemWords* words, tessera_status* status);
// Fills in defaults, lengths, totals, pages and strides. `extras` may be null.
int resolve_words(const ProblemWords& words, tessera_problem* problem, TextExtras* extras, tessera_status* status);

// parse_words, then resolve_words: the words' order is free. On failure *problem and *extras are untouched.
int parse_problem(std::string_view text, tessera_problem* problem, TextExtras* extras, tessera_status* status);

// The canonical line: pass, dtype, b, hq, hkv, sq, sk, d (dv if different) in that order, the rest alphabetically,
// device last. `extras` may be null: then what only words can say (seed, lens, page order) is left out.
std::string format_problem(const tessera_problem& problem, const TextExtras* extras);
// The same for a checked problem, as plans print themselves.
std::string format_resolved(const Problem& problem);

}  // namespace tessera::core
