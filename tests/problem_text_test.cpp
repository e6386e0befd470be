// The one-line text of a problem: grammar, defaults, canonical form, and one clear line for every bad word.
#include "problem_text.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace tessera::core {
namespace {

struct Parsed {
  tessera_problem problem{};
  TextExtras extras;
};

Parsed parse(const std::string& text) {
  Parsed parsed;
  tessera_status status;
  EXPECT_EQ(parse_problem(text, &parsed.problem, &parsed.extras, &status), TESSERA_OK)
      << text << ": " << status.message;
  return parsed;
}

std::string canonical(const std::string& text) {
  const Parsed parsed = parse(text);
  return format_problem(parsed.problem, &parsed.extras);
}

std::string error_of(const std::string& text) {
  tessera_problem problem;
  std::memset(static_cast<void*>(&problem), 0x5a, sizeof problem);
  const tessera_problem before = problem;
  tessera_status status{};
  EXPECT_EQ(parse_problem(text, &problem, nullptr, &status), TESSERA_INVALID_ARGUMENT) << text;
  EXPECT_EQ(std::memcmp(static_cast<const void*>(&before), static_cast<const void*>(&problem), sizeof problem), 0)
      << "written on failure";
  EXPECT_EQ(std::strchr(status.message, '\n'), nullptr);
  return status.message;
}

TEST(ProblemText, Defaults) {
  const Parsed p = parse("sq8 d64");
  EXPECT_EQ(p.problem.pass, TESSERA_FORWARD);
  EXPECT_EQ(p.problem.device, -1);
  EXPECT_EQ(p.problem.batch, 1);
  EXPECT_EQ(p.problem.heads_q, 1);
  EXPECT_EQ(p.problem.heads_kv, 1);
  EXPECT_EQ(p.problem.seqlen_k, 8);
  EXPECT_EQ(p.problem.head_dim_v, 64);
  EXPECT_EQ(p.problem.q.dtype, TESSERA_F32);
  EXPECT_EQ(p.problem.o.dtype, TESSERA_F32);
  EXPECT_EQ(p.problem.left, -1);
  EXPECT_EQ(p.problem.right, -1);
  EXPECT_TRUE(std::isnan(p.problem.scale));
  EXPECT_EQ(p.problem.flags, 0u);
  EXPECT_EQ(parse("sq8 d64 cuda").problem.q.dtype, TESSERA_BF16);
  EXPECT_EQ(parse("hq8 sq8 d64").problem.heads_kv, 8);
  EXPECT_EQ(parse("e4m3 sq8 d64").problem.o.dtype, TESSERA_BF16);
}

TEST(ProblemText, Canonical) {
  EXPECT_EQ(canonical("  causal d128 sq4096\tb4 hkv8 hq32 bf16 "),
            "fwd bf16 b4 hq32 hkv8 sq4096 sk4096 d128 causal cpu");
  EXPECT_EQ(canonical("bwd dv64 d128 sk5 sq3 cuda dlse sinks"),
            "bwd bf16 b1 hq1 hkv1 sq3 sk5 d128 dv64 dlse sinks cuda");
  EXPECT_EQ(canonical("sq3 d1 window=4,-1 causal"), "fwd f32 b1 hq1 hkv1 sq3 sk3 d1 window=4,0 cpu");
  EXPECT_EQ(canonical("sq3 d1 window=-1,0"), "fwd f32 b1 hq1 hkv1 sq3 sk3 d1 causal cpu");
  EXPECT_EQ(
      canonical("sq3 d1 topleft threads=2 splits=4 softcap=30 scale=0.1 seed=7 kernel=cpu.* isa=avx2 cuda=1 o=f32 f16"),
      "fwd f16 b1 hq1 hkv1 sq3 sk3 d1 isa=avx2 kernel=cpu.* o=f32 scale=0.1 seed=7 softcap=30 splits=4 threads=2 "
      "topleft cuda=1");
  EXPECT_EQ(canonical("sq3 d1 bias=bh layout=bshd"), "fwd f32 b1 hq1 hkv1 sq3 sk3 d1 bias cpu");
}

TEST(ProblemText, EveryWordSurvivesARoundTrip) {
  for (const char* word : {"causal",
                           "topleft",
                           "window=3,2",
                           "window=0,-1",
                           "softcap=0.5",
                           "scale=0",
                           "scale=-1",
                           "scale=1e-30",
                           "alibi",
                           "sinks",
                           "bias",
                           "bias=b",
                           "bias=h",
                           "bias=1",
                           "mask",
                           "o=f32",
                           "kv=int8",
                           "kv=e4m3",
                           "packed",
                           "paged=16",
                           "paged=16 pages=shuffled",
                           "packed paged=1",
                           "leftpad",
                           "seed=18446744073709551615",
                           "lens=equal",
                           "lens=longtail",
                           "lens=5:0:8",
                           "packed lens=longtail",
                           "layout=bhsd",
                           "packed layout=bhsd",
                           "splits=3",
                           "deterministic",
                           "batch-invariant",
                           "sm_margin=4",
                           "threads=64",
                           "kernel=cpu.?vx2.*",
                           "isa=portable",
                           "isa=neon",
                           "cuda",
                           "cuda=3"}) {
    const std::string text = canonical(std::string("bf16 b3 hq4 hkv2 sq8 sk6 d16 ") + word);
    EXPECT_EQ(canonical(text), text) << word;
    for (const char* part = word; *part != '\0';) {
      const size_t length = std::strcspn(part, " ");
      EXPECT_NE(text.find(std::string(part, length)), std::string::npos) << word << " is lost in " << text;
      part += length + (part[length] == ' ');
    }
  }
}

TEST(ProblemText, LengthsAndTotals) {
  const Parsed packed = parse("b3 sq10 sk7 d4 packed lens=longtail seed=3");
  EXPECT_EQ(packed.problem.layout_q, TESSERA_PACKED);
  EXPECT_EQ(packed.problem.total_q, 10 + 5 + 4);
  EXPECT_EQ(packed.problem.total_k, 7 + 4 + 3);
  EXPECT_EQ(packed.problem.flags & (TESSERA_FLAG_SEQUSED_Q | TESSERA_FLAG_SEQUSED_K), 0u);
  ASSERT_EQ(packed.extras.lens.size(), 3u);
  for (size_t i = 0; i < 3; ++i)
    EXPECT_EQ(packed.extras.lens[i] == 10, packed.extras.lens_k[i] == 7) << "one order for q and k";
  EXPECT_EQ(parse("b3 sq10 d4 packed").problem.total_q, 30);

  const Parsed given = parse("b3 sq4 sk9 d4 lens=9:0:3");
  EXPECT_EQ(given.extras.lens, (std::vector<int64_t>{4, 0, 3}));
  EXPECT_EQ(given.extras.lens_k, (std::vector<int64_t>{9, 0, 3}));
  EXPECT_NE(given.problem.flags & TESSERA_FLAG_SEQUSED_Q, 0u);
  EXPECT_NE(given.problem.flags & TESSERA_FLAG_SEQUSED_K, 0u);

  const Parsed paged = parse("b3 sq1 sk33 d4 paged=16 lens=33:0:16");
  EXPECT_EQ(paged.problem.layout_kv, TESSERA_PAGED);
  EXPECT_EQ(paged.problem.max_pages, 3);
  EXPECT_EQ(paged.problem.num_pages, 3 + 0 + 1 + 1);
  EXPECT_NE(paged.problem.flags & TESSERA_FLAG_SEQUSED_K, 0u);
  EXPECT_EQ(parse("b3 sq1 sk33 d4 paged=16 packed").problem.layout_q, TESSERA_PACKED);

  const std::vector<int64_t> order = parse("b50 sq1000 d4 lens=longtail seed=1").extras.lens;
  EXPECT_EQ(order, parse("b50 sq1000 d4 lens=longtail seed=1").extras.lens);
  EXPECT_NE(order, parse("b50 sq1000 d4 lens=longtail seed=2").extras.lens);
}

TEST(ProblemText, HeadsFirstLayout) {
  const tessera_problem p = parse("b2 hq4 hkv2 sq8 sk16 d64 dv32 layout=bhsd").problem;
  const int64_t q[] = {8 * 64 * 4, 64, 8 * 64, 1}, v[] = {16 * 32 * 2, 32, 16 * 32, 1};
  EXPECT_TRUE(std::equal(q, q + 4, p.q.stride));
  EXPECT_TRUE(std::equal(v, v + 4, p.v.stride));
  const tessera_problem packed = parse("b2 hq4 hkv2 sq8 d64 packed layout=bhsd").problem;
  const int64_t rows[] = {64, 16 * 64, 1, 0};
  EXPECT_TRUE(std::equal(rows, rows + 4, packed.q.stride));
}

TEST(ProblemText, BiasAxes) {
  const auto strides = [](const char* word) {
    const tessera_problem p = parse(std::string("b2 hq3 sq4 sk5 d8 ") + word).problem;
    return std::vector<int64_t>(p.bias.stride, p.bias.stride + 4);
  };
  EXPECT_EQ(strides("bias"), (std::vector<int64_t>{60, 20, 5, 1}));
  EXPECT_EQ(strides("bias=b"), (std::vector<int64_t>{20, 0, 5, 1}));
  EXPECT_EQ(strides("bias=h"), (std::vector<int64_t>{0, 20, 5, 1}));
  EXPECT_EQ(strides("bias=1"), (std::vector<int64_t>{0, 0, 5, 1}));
  EXPECT_EQ(strides("mask"), (std::vector<int64_t>{20, 0, 5, 1}));
  EXPECT_EQ(parse("sq4 d8 mask").problem.bias.dtype, TESSERA_U8);
  EXPECT_EQ(parse("f16 sq4 d8 bias").problem.bias.dtype, TESSERA_F16);
}

TEST(ProblemText, BadWordsAreNamed) {
  const struct {
    const char* text;
    std::vector<const char*> fragments;
  } cases[] = {{"", {"sq is missing"}},
               {"sq8", {"d is missing"}},
               {"d8", {"sq is missing"}},
               {"sq8 d8 flash", {"'flash'", "expected a word"}},
               {"sq8 d8 e5m2", {"'e5m2'", "e4m3"}},
               {"sq8 d8 dropout=0.1", {"'dropout=0.1'", "no dropout"}},
               {"sq-8 d8", {"'sq-8'", "0 to 2147483647"}},
               {"sq8 d8 b", {"'b'", "whole number"}},
               {"sq8 d8 b99999999999", {"'b99999999999'", "2147483647"}},
               {"sq8 d8 b4x", {"'b4x'"}},
               {"sq8 d8 sq9", {"'sq9' after 'sq8'", "sq"}},
               {"sq8 d8 fwd bwd", {"'bwd' after 'fwd'", "pass"}},
               {"sq8 d8 f16 bf16", {"'bf16' after 'f16'", "dtype"}},
               {"sq8 d8 cpu cuda", {"'cuda' after 'cpu'", "device"}},
               {"sq8 d8 bias mask", {"'mask' after 'bias'"}},
               {"sq8 d8 bias=x", {"'bias=x'", "bias=bh"}},
               {"sq8 d8 window=3", {"'window=3'", "l,r"}},
               {"sq8 d8 window=-2,0", {"'window=-2,0'", "at least -1"}},
               {"sq8 d8 softcap=high", {"'softcap=high'", "finite"}},
               {"sq8 d8 scale=inf", {"'scale=inf'", "finite"}},
               {"sq8 d8 scale=nan", {"'scale=nan'", "finite"}},
               {"sq8 d8 o=int8", {"'o=int8'", "o=bf16"}},
               {"sq8 d8 kv=f16", {"'kv=f16'", "kv=int8"}},
               {"sq8 d8 paged=0", {"'paged=0'", "from 1"}},
               {"sq8 d8 pages=shuffled", {"'pages=shuffled'", "'paged='"}},
               {"sq8 d8 paged=4 pages=sorted", {"'pages=sorted'", "pages=shuffled"}},
               {"sq8 d8 seed=-1", {"'seed=-1'", "18446744073709551615"}},
               {"sq8 d8 lens=1:2", {"2 lengths", "b is 1"}},
               {"b2 sq8 d8 lens=1:9", {"length of 9", "8"}},
               {"sq8 d8 lens=", {"'lens='", "longtail"}},
               {"sq8 d8 lens=1:x", {"'lens=1:x'"}},
               {"b2000000 sq8 d8 lens=longtail", {"b=2000000", "1048576"}},
               {"sq8 d8 layout=sbhd", {"'layout=sbhd'", "bhsd"}},
               {"sq8 d8 splits=-1", {"'splits=-1'"}},
               {"sq8 d8 isa=sse", {"'isa=sse'", "avx512"}},
               {"sq8 d8 kernel=", {"'kernel='", "63"}},
               {"sq8 d8 kernel=0123456789012345678901234567890123456789012345678901234567890123", {"1 to 63"}},
               {"sq8 d8 dlse", {"'dlse' without 'bwd'"}},
               {"sq8 d8 bias dbias", {"'dbias' without 'bwd'"}},
               {"bwd sq8 d8 dbias", {"'dbias' without 'bias'"}},
               {"bwd sq8 d8 mask dbias", {"'dbias' with 'mask'"}},
               {"sq8 d8 causal causal", {"'causal' after 'causal'"}},
               {"sq8 d8 causal=1", {"'causal=1'"}},
               {"sq8 d8 a\nb\x01", {"'a'"}}};
  for (const auto& bad : cases) {
    const std::string message = error_of(bad.text);
    for (const char* fragment : bad.fragments)
      EXPECT_NE(message.find(fragment), std::string::npos) << fragment << " in: " << message;
  }
}

// Random problems: the canonical line reads back as the very same problem, byte for byte.
TEST(ProblemText, RandomProblemsRoundTrip) {
  std::mt19937_64 random(20240501);
  const auto below = [&](uint64_t n) { return random() % n; };
  const auto maybe = [&](std::string* text, const std::string& word) { *text += below(3) == 0 ? " " + word : ""; };
  const auto num = [&](uint64_t n) { return std::to_string(below(n)); };
  for (int round = 0; round < 3000; ++round) {
    const bool backward = below(2) == 0;
    const uint64_t batch = below(5);
    std::string text = backward ? "bwd" : "fwd";
    maybe(&text, std::vector<std::string>{"f64", "f32", "f16", "bf16", "e4m3"}[below(5)]);
    text += " b" + std::to_string(batch) + " sq" + num(300) + " d" + num(600);
    for (const char* word : {"hq", "hkv", "sk", "dv"}) maybe(&text, word + num(200));
    for (const char* word : {"causal", "topleft", "alibi", "sinks", "packed", "leftpad", "deterministic",
                             "batch-invariant", "layout=bhsd"}) {
      maybe(&text, word);
    }
    maybe(&text, "window=" + std::to_string(static_cast<int>(below(9)) - 1) + "," +
                     std::to_string(static_cast<int>(below(9)) - 1));
    maybe(&text, "softcap=" + std::to_string(static_cast<double>(below(1000)) / 7));
    maybe(&text, "scale=" + std::to_string((static_cast<double>(below(1000)) - 500) / 3));
    const std::string bias = std::vector<std::string>{"", "bias", "bias=b", "bias=h", "bias=1", "mask"}[below(6)];
    if (!bias.empty()) text += " " + bias;
    if (backward && bias.rfind("bias", 0) == 0) maybe(&text, "dbias");
    if (backward) maybe(&text, "dlse");
    maybe(&text, "o=f32");
    maybe(&text, below(2) == 0 ? "kv=int8" : "kv=e4m3");
    if (below(3) == 0) {
      text += " paged=" + std::to_string(1 + below(64));
      maybe(&text, "pages=shuffled");
    }
    maybe(&text, "seed=" + std::to_string(random()));
    maybe(&text, below(2) == 0 ? "lens=equal" : "lens=longtail");
    for (const char* word : {"splits=", "sm_margin=", "threads="}) maybe(&text, word + num(9));
    maybe(&text, "kernel=cpu.*");
    maybe(&text, "isa=avx2");
    maybe(&text, std::vector<std::string>{"cpu", "cuda", "cuda=2"}[below(3)]);
    const Parsed first = parse(text);
    const std::string line = format_problem(first.problem, &first.extras);
    const Parsed second = parse(line);
    ASSERT_EQ(std::memcmp(static_cast<const void*>(&first.problem), static_cast<const void*>(&second.problem),
                          sizeof(tessera_problem)),
              0)
        << text << "\n"
        << line;
    TextExtras expected = first.extras;
    ASSERT_TRUE(expected == second.extras) << text << "\n" << line;
    ASSERT_EQ(format_problem(second.problem, &second.extras), line);
  }
}

TEST(ProblemText, WithoutExtrasTheProblemItselfSurvives) {
  for (const char* text :
       {"fwd bf16 b2 hq4 hkv2 sq8 sk6 d16 layout=bhsd bias=h", "bwd f16 b3 sq8 d16 packed dlse",
        "b2 sq8 d16 lens=equal", "bf16 kv=int8 b2 sq1 sk64 d16 paged=16 packed", "f16 b2 hq2 sq4 d8 mask"}) {
    const Parsed first = parse(text);
    const Parsed second = parse(format_problem(first.problem, nullptr));
    EXPECT_EQ(std::memcmp(static_cast<const void*>(&first.problem), static_cast<const void*>(&second.problem),
                          sizeof(tessera_problem)),
              0)
        << text << " -> " << format_problem(first.problem, nullptr);
  }
}

TEST(ProblemText, ResolvedProblemsPrintTheSameLine) {
  for (const char* text : {"fwd f32 b2 hq4 hkv2 sq8 sk6 d16 causal topleft cpu",
                           "fwd bf16 b1 hq2 hkv1 sq8 sk8 d64 layout=bhsd scale=0.5 cpu",
                           "bwd f16 b3 hq2 hkv2 sq8 sk8 d16 dv8 dlse packed softcap=2 cpu",
                           "fwd f32 b1 hq1 hkv1 sq8 sk8 d8 bias=1 splits=3 cpu"}) {
    Problem checked;
    tessera_status status;
    ASSERT_EQ(validate(parse(text).problem, &checked, &status), TESSERA_OK) << status.message;
    EXPECT_EQ(format_resolved(checked), canonical(text));
  }
}

}  // namespace
}  // namespace tessera::core
