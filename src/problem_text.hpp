// The one-line text of a problem: the same in CLI, logs, tests, benchmarks and result files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

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
  bool bhsd = false;            // layout=bhsd: q, k, v, o stored [batch, heads, seqlen, dim]
  std::string bias_axes;        // "bh", "b", "h", "1" or "mask"; empty: none
};

// Parses `text`; the words' order is free. INVALID_ARGUMENT names the word, its value and what was expected.
// `extras` may be null.
int parse_problem(std::string_view text, tessera_problem* problem, TextExtras* extras, tessera_status* status);

// The canonical line: pass, dtype, b, hq, hkv, sq, sk, d (dv if different) in that order, the rest alphabetically,
// device last. `extras` may be null.
std::string format_problem(const tessera_problem& problem, const TextExtras* extras);

}  // namespace tessera::core
