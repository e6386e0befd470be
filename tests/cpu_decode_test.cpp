// The CPU decode rows: caches that grow a token at a time, every cache type and layout under every cap on the set of
// instructions, scales of int8 caches by whole, row, block and page, bytes outside of the lengths, and where the rows
// end.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "cpu/decode_call.hpp"
#include "judged_run.hpp"
#define TESSERA_CPU_ISA decode_test
#include "cpu/vec_portable.hpp"
// After the vectors that it is written over.
#include "cpu/decode_products.hpp"
#include "sanitized.hpp"

namespace tessera::tests {
namespace {

using baselines::OperandSet;

constexpr int64_t kLeastRowsOfTiles = 8;  // of bf16: below, cpu.amx.decode refuses
constexpr const char* kCaches[] = {"f32", "f16", "bf16", "f32 kv=int8", "f16 kv=int8", "bf16 kv=int8"};

bool is_decode(const std::string& name) { return name.size() > 7 && name.substr(name.size() - 7) == ".decode"; }

// The decode rows on vectors that this machine can run.
std::vector<std::string> decode_rows() {
  std::vector<std::string> rows;
  const OperandSet operands = operands_of("fwd f32 sq1 sk8 d8");
  for (const core::KernelEntry* row : library_rows())
    if (is_decode(row->name) && run_pinned(operands, row->name).code == TESSERA_OK) rows.push_back(row->name);
  EXPECT_FALSE(rows.empty());
  return rows;
}
// And those on tiles where the problem is one for them: the emulation on any machine, the instructions where the
// machine has them and the rows fill the tiles.
std::vector<std::string> decode_rows(const OperandSet& operands) {
  std::vector<std::string> rows = decode_rows();
  const tessera_problem& p = operands.problem;
  if (p.k.dtype != TESSERA_BF16 && p.k.dtype != TESSERA_INT8) return rows;
  rows.push_back("cpu.amx_emulated.decode");
  const core::DeviceInfo& device = core::cpu_info();
  const bool enough = p.k.dtype == TESSERA_INT8 || p.seqlen_q * (p.heads_q / p.heads_kv) >= kLeastRowsOfTiles;
  if (enough && device.isa == core::Isa::amx && device.has_amx_int8) rows.push_back("cpu.amx.decode");
  return rows;
}

// Factors by batch or page, blocks of `rows` keys (0: one block) and key head.
void set_scales(tessera_problem* p, int32_t rows) {
  const int64_t length = p->layout_kv == TESSERA_PAGED ? p->page_size : p->seqlen_k;
  const int64_t blocks = rows == 0 ? 1 : (length + rows - 1) / rows;
  for (tessera_desc* scale : {&p->k_scale, &p->v_scale}) {
    scale->stride[0] = blocks * p->heads_kv;
    scale->stride[1] = rows == 0 ? 0 : p->heads_kv;
    scale->stride[2] = 1;
  }
  p->k_scale_rows = p->v_scale_rows = rows;
}

struct Parsed {
  tessera_problem problem;
  core::TextExtras extras;
};
Parsed parse(const std::string& text) {
  Parsed parsed;
  tessera_status status{};
  EXPECT_EQ(core::parse_problem(text, &parsed.problem, &parsed.extras, &status), TESSERA_OK) << status.message;
  parsed.problem.flags |= TESSERA_FLAG_LSE;
  return parsed;
}
OperandSet scaled_operands(const std::string& text, int32_t rows) {
  Parsed parsed = parse(text);
  set_scales(&parsed.problem, rows);
  return baselines::make_operands(parsed.problem, parsed.extras);
}

void expect_right_on_every_row(const OperandSet& operands, const std::string& what) {
  const Judged judged = judge(operands);
  for (const std::string& row : decode_rows(operands)) {
    RunResult result;
    EXPECT_EQ(check_row(operands, judged, row, &result), "") << what;
    EXPECT_EQ(result.code, TESSERA_OK) << what << ": " << result.message;
  }
}

// pytorch/pytorch#194167: contexts that grow by one left rows unwritten in some split counts.
TEST(DecodeGrowthFull, TokenByTokenInAnySplits) {
  constexpr const char* kHeads[] = {"hq4 hkv1", "hq2 hkv2", "hq7 hkv1", "hq8 hkv1"};
  for (size_t cache = 0; cache < 4; ++cache) {
    for (int sk = 1; sk <= 600; sk += kSanitized ? 7 : 1) {
      const std::string text = std::string("fwd ") + kCaches[cache] + " b1 " + kHeads[(size_t(sk) + cache) % 4] +
                               " sq1 sk600 d20 dv24 causal lens=" + std::to_string(sk) +
                               (sk % 3 == 0 ? " paged=16 pages=shuffled" : "");
      OperandSet operands = operands_of(text);
      const std::vector<std::string> rows = decode_rows(operands);
      const Judged judged = judge(operands);
      for (const int splits : {0, 1, 2, 3, 7}) {
        operands.problem.num_splits = splits;
        // The widest row always, the others in turn.
        for (size_t r = 0; r < rows.size(); ++r) {
          if (r > 0 && (size_t(sk) + size_t(splits) + r) % 4 != 0) continue;
          RunResult result;
          ASSERT_EQ(check_row(operands, judged, rows[r], &result), "") << text << " splits=" << splits;
          ASSERT_EQ(result.code, TESSERA_OK) << result.message;
        }
      }
    }
  }
}

// A problem whose partial states no 64 bits count: the row says so instead of planning with a wrong size.
TEST(CpuDecode, StatesPast64BitsAreRefused) {
  tessera_problem problem;
  const char* text = "fwd f32 b64000019 hq88888886 sq44 d1 kernel=cpu.portable.decode cpu";
  ASSERT_EQ(tessera_problem_parse(text, &problem, nullptr), TESSERA_OK);
  tessera_plan* plan = nullptr;
  tessera_status status{};
  EXPECT_EQ(tessera_plan_create(&problem, &plan, &status), TESSERA_UNSUPPORTED);
  EXPECT_NE(std::string(status.message).find("2^58"), std::string::npos) << status.message;
}

TEST(CpuDecode, LayoutsGroupsAndTerms) {
  constexpr const char* kLayouts[] = {"", "packed", "paged=16 pages=shuffled", "paged=5", "layout=bhsd"};
  constexpr const char* kTerms[] = {"causal", "window=70,0 sinks", "alibi softcap=5", "bias=bh", "mask", "leftpad"};
  constexpr const char* kHeads[] = {"hq3 hkv3 d64",       "hq8 hkv2 d128", "hq7 hkv1 d40 dv72",
                                    "hq16 hkv2 d33 dv17", "hq4 hkv1 d256", "hq24 hkv2 d64 dv96"};
  int turn = 0;
  for (const char* cache : kCaches) {
    for (const std::string layout : kLayouts) {
      for (int repeat = 0; repeat < 2; ++repeat, ++turn) {
        std::string term = kTerms[(turn * 5 + turn / 6) % 6];
        if (layout == "packed" && (term[0] == 'b' || term[0] == 'm' || term[0] == 'l')) term = "causal sinks";
        const std::string text = std::string("fwd ") + cache + " b3 " + kHeads[(turn + turn / 6) % 6] + " sq" +
                                 std::to_string(1 + turn % 3) + " sk200 lens=200:0:131 " + layout + " " + term +
                                 " splits=" + std::to_string(turn % 4);
        expect_right_on_every_row(operands_of(text), text);
      }
    }
  }
}

// One factor for all rows, for each row, for 128 rows, for each page; by sequence or page and by head.
TEST(CpuDecode, ScalesOfInt8CachesByWholeRowBlockAndPage) {
  for (const char* q : {"f32", "f16", "bf16"}) {
    const std::string start = std::string("fwd ") + q + " b3 hq8 hkv2 sq2 sk300 d40 kv=int8 lens=300:0:129 ";
    for (const char* layout : {"", "packed", "leftpad", "paged=16 pages=shuffled", "paged=256", "paged=7 leftpad"}) {
      for (const int32_t rows : {0, 1, 128}) {
        const std::string text = start + layout;
        expect_right_on_every_row(scaled_operands(text, rows), text + " scales of " + std::to_string(rows));
      }
    }
    const std::string paged = start + "paged=16 pages=shuffled";
    expect_right_on_every_row(scaled_operands(paged, 16), paged + " scales by page");
    // Broadcast: one factor for the call, then null pointers, which mean 1.
    OperandSet one = operands_of(start);
    expect_right_on_every_row(one, start + " one factor");
    one.tensors.k_scale = one.tensors.v_scale = nullptr;
    // Scores of whole numbers up to 32 standard deviations would leave one key a row.
    one.problem.scale = 1.0 / 4096;
    expect_right_on_every_row(one, start + " no factors");
  }
}

// For each row of the caches [batch or page, row], whether the lengths or the table give it to a sequence.
std::vector<bool> used_rows(const OperandSet& operands) {
  const tessera_problem& p = operands.problem;
  const bool paged = p.layout_kv == TESSERA_PAGED;
  const int64_t rows = paged ? p.page_size : p.seqlen_k;
  std::vector<bool> used(static_cast<size_t>((paged ? p.num_pages : p.batch_kv) * rows), false);
  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t j = operands.tensors.leftpad == nullptr ? 0 : operands.tensors.leftpad[b];
         j < operands.tensors.seqused_k[b]; ++j) {
      const int64_t outer = paged ? operands.tensors.page_table[b * p.max_pages + j / rows] : b;
      used[static_cast<size_t>(outer * rows + j % rows)] = true;
    }
  EXPECT_GT(std::count(used.begin(), used.end(), false), 0);
  return used;
}

constexpr const char* kPoisonedLayouts[] = {"", "leftpad", "paged=16 pages=shuffled", "paged=16 leftpad"};

TEST(CpuDecode, ScalesOfUnusedRowsAndPagesReachNothing) {
  for (const char* layout : kPoisonedLayouts) {
    const std::string text = std::string("fwd f32 b2 hq8 hkv2 sq2 sk300 d24 kv=int8 lens=130:37 ") + layout;
    const OperandSet operands = scaled_operands(text, 1);
    const std::vector<bool> used = used_rows(operands);
    for (const std::string& row : decode_rows(operands)) {
      ASSERT_EQ(run_pinned(operands, row).code, TESSERA_OK);
      const std::vector<std::byte> expected = output_bytes(operands);
      for (const float value : {NAN, INFINITY, 1e30f}) {
        for (size_t i = 0; i < used.size(); ++i)
          for (size_t h = 0; h < 2 && !used[i]; ++h)
            for (const float* scales : {operands.tensors.k_scale, operands.tensors.v_scale})
              const_cast<float*>(scales)[i * 2 + h] = value;
        ASSERT_EQ(run_pinned(operands, row).code, TESSERA_OK);
        EXPECT_TRUE(output_bytes(operands) == expected) << row << ' ' << layout << ' ' << value;
      }
    }
  }
}

// What whole numbers cannot hold: queries and scales that are not finite, and weights from 1e-30 to 1e30 in a block.
TEST(CpuDecode, Int8RowsThatAreNotFiniteAreAsOnVectors) {
  const auto floats = [](const OperandSet& operands) {
    const std::vector<std::byte> bytes = output_bytes(operands);
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
    return values;
  };
  const OperandSet operands = scaled_operands("fwd f32 b1 hq8 hkv1 sq1 sk200 d40 kv=int8", 1);
  auto* q = const_cast<float*>(static_cast<const float*>(operands.tensors.q));
  auto* v_scale = const_cast<float*>(operands.tensors.v_scale);
  for (int turn = 0; turn < 4; ++turn) {
    if (turn == 1) q[3 * 40 + 5] = INFINITY, q[6 * 40] = NAN;
    if (turn == 2) v_scale[70] = INFINITY;
    if (turn == 3) q[3 * 40 + 5] = q[6 * 40] = 1.0f, v_scale[70] = 1e30f, v_scale[71] = 1e-30f, v_scale[150] = -1e30f;
    ASSERT_EQ(run_pinned(operands, "cpu.portable.decode").code, TESSERA_OK);
    const std::vector<float> expected = floats(operands);
    for (const std::string& row : decode_rows(operands)) {
      ASSERT_EQ(run_pinned(operands, row).code, TESSERA_OK);
      const std::vector<float> found = floats(operands);
      const float largest = turn == 3 ? 1e32f : 1.0f;
      for (size_t i = 0; i < found.size(); ++i) {
        if (std::isfinite(expected[i]))
          ASSERT_LE(std::fabs(found[i] - expected[i]), 2e-6f * largest) << row << " turn " << turn << ", element " << i;
        else
          ASSERT_TRUE(found[i] == expected[i] || (std::isnan(found[i]) && std::isnan(expected[i])))
              << row << " turn " << turn << ", element " << i << ": " << found[i] << " for " << expected[i];
      }
    }
  }
}

// Blocks and splits that end anywhere, one key head and pairs of narrow ones, one strip of rows and more, in each q.
TEST(CpuDecodeFull, Int8CachesOfEveryLength) {
  constexpr const char* kHeads[] = {"hq4 hkv1 d64",  "hq8 hkv2 d64",      "hq6 hkv3 d64 dv40", "hq4 hkv1 d128",
                                    "hq5 hkv5 d32",  "hq16 hkv1 d64",     "hq10 hkv2 d80",     "hq9 hkv3 d192 dv128",
                                    "hq3 hkv1 d256", "hq12 hkv4 d64 dv64"};
  constexpr const char* kWords[] = {"",        "causal", "window=90,0", "paged=1 pages=shuffled", "paged=16 sinks",
                                    "splits=2"};
  for (int begin = 1, turn = 0; begin <= 300; begin += 10, ++turn) {
    std::string lens = std::to_string(begin);
    for (int at = begin + 1; at < begin + 10; ++at) lens += ':' + std::to_string(at);
    const std::string text = std::string("fwd ") +
                             (turn % 3 == 0   ? "f32"
                              : turn % 3 == 1 ? "f16"
                                              : "bf16") +
                             " b10 " + kHeads[turn % 10] + " sq" + std::to_string(1 + turn % 4) +
                             " sk310 kv=int8 lens=" + lens + ' ' + kWords[turn / 3 % 6];
    expect_right_on_every_row(scaled_operands(text, turn % 2), text + " scales of " + std::to_string(turn % 2));
  }
}

// q as whole numbers of 22 bits of its row's largest element: rows of any size, and an element 10^4 times the others,
// of which 9 bits are left.
TEST(CpuDecode, Int8QueriesOfAnySizeAndWithOutliers) {
  for (const char* dims : {"d64", "d128"}) {
    const OperandSet operands = operands_of(std::string("fwd f32 b1 hq8 hkv2 sq2 sk300 kv=int8 ") + dims);
    auto* q = const_cast<float*>(static_cast<const float*>(operands.tensors.q));
    const int64_t dim = operands.problem.head_dim_qk;
    for (int64_t r = 0; r < 16; ++r) {
      float* row = q + r * dim;
      for (int64_t d = 0; d < dim; ++d) row[d] *= r % 4 == 1 ? 1e-4f : r % 4 == 2 ? 1e-30f : r % 4 == 3 ? 0.0f : 0.1f;
      if (r % 4 == 1) row[(7 * r) % dim] *= 1e4f;
    }
    expect_right_on_every_row(operands, std::string("queries of many sizes, ") + dims);
  }
}

// Cache tails, spare pages and left padding hold NaN, infinity, and in int8 the largest numbers.
TEST(CpuDecode, CacheBytesOutsideOfTheLengthsReachNothing) {
  for (const char* cache : kCaches) {
    for (const char* layout : kPoisonedLayouts) {
      const std::string text = std::string("fwd ") + cache + " b3 hq8 hkv1 sq1 sk150 d48 lens=149:1:65 " + layout;
      const OperandSet operands = operands_of(text);
      const tessera_problem& p = operands.problem;
      const std::vector<bool> used = used_rows(operands);
      const int64_t row_bytes = p.head_dim_qk * core::dtype_bytes(p.k.dtype);
      for (const std::string& row : decode_rows(operands)) {
        std::vector<std::byte> expected;
        // 0xff is NaN and -1; 0x7f NaN and 127; 0x80 -128; 0x7c a number near float16's infinity.
        for (const int fill : {0x00, 0xff, 0x7f, 0x80, 0x7c}) {
          for (const void* data : {operands.tensors.k, operands.tensors.v})
            for (size_t i = 0; i < used.size(); ++i)
              if (!used[i])
                std::memset(const_cast<char*>(static_cast<const char*>(data)) + static_cast<int64_t>(i) * row_bytes,
                            fill, static_cast<size_t>(row_bytes));
          ASSERT_EQ(run_pinned(operands, row).code, TESSERA_OK);
          if (expected.empty()) expected = output_bytes(operands);
          EXPECT_TRUE(output_bytes(operands) == expected) << row << ' ' << text << " byte " << fill;
        }
      }
    }
  }
}

// Every cap that this machine has picks the decode row of that set, which is right, and says why the wider ones were
// passed over.
TEST(CpuDecode, EveryCapTakesItsRow) {
  const auto machine = static_cast<int32_t>(core::cpu_info().isa);
  std::vector<int32_t> caps = {TESSERA_ISA_PORTABLE};
  if (machine == TESSERA_ISA_NEON) {
    caps.push_back(TESSERA_ISA_NEON);
  } else {
    for (int32_t cap = TESSERA_ISA_AVX2; cap <= machine; ++cap) caps.push_back(cap);
  }
  for (const std::string cache : kCaches) {
    for (const char* heads : {" hq8 hkv2", " hq16 hkv2"}) {
      OperandSet operands = operands_of("fwd " + cache + " b2" + heads + " sq1 sk700 d64 lens=700:33");
      const Judged judged = judge(operands);
      for (const int32_t cap : caps) {
        operands.problem.isa = cap;
        RunResult result;
        EXPECT_EQ(check_row(operands, judged, "", &result), "") << cache;
        ASSERT_EQ(result.code, TESSERA_OK) << result.message;
        const bool tiles =
            operands.problem.k.dtype == TESSERA_INT8 || (operands.problem.heads_q == 16 && cache == "bf16");
        const char* set = core::isa_name(cap == TESSERA_ISA_AMX && !tiles ? TESSERA_ISA_AVX512 : cap);
        EXPECT_EQ(result.plan.entry->name, std::string("cpu.") + set + ".decode") << cache;
        if (result.plan.passed_over > 0) {
          const std::string reason = result.plan.first_reason;
          EXPECT_TRUE(reason.find("isa= caps the instruction set below") == 0 || reason.find("this CPU has no") == 0 ||
                      reason.find("takes k in bf16 or int8") == 0 || reason.find("fewer than 8 rows") == 0)
              << reason;
        }
      }
    }
  }
}

TEST(CpuDecode, TheBoundOnRowsIsWhereTheForwardRowsTakeOver) {
  const auto plan_of = [](int64_t sq, int group, const char* words) {
    Parsed parsed =
        parse("fwd bf16 b1 hq" + std::to_string(group) + " hkv1 sq" + std::to_string(sq) + " sk4096 d64" + words);
    core::Plan plan;
    tessera_status status{};
    EXPECT_EQ(core::make_plan(parsed.problem, {}, &plan, &status), TESSERA_OK) << status.message;
    return plan;
  };
  const int64_t bound = cpu::kMaxDecodeRows;
  for (const int group : {1, 4, 7, 8}) {
    EXPECT_TRUE(is_decode(plan_of(bound / group, group, "").entry->name)) << group;
    const core::Plan past = plan_of(bound / group + 1, group, "");
    EXPECT_FALSE(is_decode(past.entry->name)) << group;
    EXPECT_GE(past.passed_over, 1);
    // Int8 caches have no other row, so the bound does not hold for them.
    EXPECT_TRUE(is_decode(plan_of(bound / group + 1, group, " kv=int8").entry->name)) << group;
  }
  // Pinned, each row names the bound itself.
  for (const std::string& row : decode_rows()) {
    Parsed parsed = parse("fwd f32 b1 hq1 sq" + std::to_string(bound + 1) + " sk4096 d64 kernel=" + row);
    core::Plan plan;
    tessera_status status{};
    EXPECT_EQ(core::make_plan(parsed.problem, {}, &plan, &status), TESSERA_UNSUPPORTED);
    const std::string reason =
        "seqlen_q * group above " + std::to_string(bound) + " (seqlen_q * group=" + std::to_string(bound + 1) + ")";
    EXPECT_NE(std::string(status.message).find(row + ": " + reason), std::string::npos) << status.message;
  }
}

// Which rows are asked for: near, those that come `distance` later in the order of use and the row itself behind the
// last, far, those of the next block in the order of memory and its last one behind that. Whatever the blocks' lengths,
// no list is read past its end.
TEST(CpuDecode, RowsAreAskedForInTheirOrder) {
  constexpr std::byte kMemory[4096] = {};
  const std::byte* now[7];
  const std::byte* then[5];
  for (int i = 0; i < 7; ++i) now[i] = kMemory + 100 * i;
  for (int i = 0; i < 5; ++i) then[i] = kMemory + 2000 + 100 * i;
  const std::byte* asked[8];
  const auto places = [&](int64_t count) {
    std::vector<int64_t> rows;
    for (int64_t i = 0; i < count; ++i) rows.push_back(asked[i] - kMemory);
    EXPECT_EQ(asked[count], kMemory) << "written past " << count;
    return rows;
  };
  for (int64_t count = 1; count <= 7; ++count)
    for (int64_t next = 0; next <= 5; ++next)
      for (int64_t distance = 1; distance <= 13; ++distance) {
        std::vector<int64_t> expected;
        for (int64_t i = 0; i < count; ++i) {
          const int64_t at = i + distance;
          expected.push_back(at < count          ? 100 * at + 8
                             : at - count < next ? 2000 + 100 * (at - count) + 24
                                                 : 100 * i + 8);
        }
        std::fill(std::begin(asked), std::end(asked), kMemory);
        cpu::decode_test::rows_near({now, count, 8}, {then, next, 24}, distance, asked);
        EXPECT_EQ(places(count), expected) << count << ' ' << next << ' ' << distance;
      }
  const auto far = [&](int64_t keys, int64_t first, int64_t count) {
    std::fill(std::begin(asked), std::end(asked), kMemory);
    cpu::decode_test::rows_far({then, keys, 0}, 2, 40, first, count, asked);
    return places(count);
  };
  EXPECT_EQ(far(3, 0, 3), (std::vector<int64_t>{2000, 2040, 2100}));
  EXPECT_EQ(far(3, 3, 3), (std::vector<int64_t>{2140, 2200, 2240}));
  EXPECT_EQ(far(1, 1, 4), (std::vector<int64_t>{2040, 2040, 2040, 2040}));
}

// In streams: over all heads each row of the next block's keys and values once, each stream in the order of memory, and
// of a shorter block every row too.
template <int kStreams>
void expect_every_row_once(int64_t heads, int64_t count) {
  constexpr int64_t kBlock = cpu::kDecodeBlock, kAsked = 2 * kBlock;
  static constexpr std::byte kMemory[1 << 14] = {};
  constexpr int64_t kHalf = sizeof kMemory / 2;  // keys in the first half, values in the second
  constexpr int64_t kHeadBytes[] = {2, 3, 2, 3, 2, 3, 2, 3};
  const std::byte *keys[kBlock], *values[kBlock];
  for (int64_t j = 0; j < kBlock; ++j) keys[j] = kMemory + 100 * j, values[j] = kMemory + kHalf + 100 * j;
  std::multiset<int64_t> rows;
  int64_t last[kStreams];
  std::fill(std::begin(last), std::end(last), -1);
  for (int64_t index = 0; index < heads; ++index) {
    const std::byte* asked[kAsked + 1];
    std::fill(std::begin(asked), std::end(asked), nullptr);
    cpu::decode_test::rows_in_streams<kStreams>({keys, count, 0}, {values, count, 0}, kHeadBytes, heads, index, asked);
    EXPECT_EQ(asked[kAsked], nullptr) << "written past the list";
    for (int64_t j = 0; j < kAsked; ++j) {
      const int64_t at = asked[j] - kMemory;
      EXPECT_EQ(at >= kHalf, j % 2 == 1);
      EXPECT_TRUE(count < kBlock || at > last[j % kStreams]) << heads << ' ' << index << ' ' << j;
      last[j % kStreams] = at;
      rows.insert(at);
    }
  }
  for (int64_t j = 0; j < count; ++j)
    for (int64_t h = 0; h < heads; ++h)
      for (const int64_t at : {100 * j + 2 * h, kHalf + 100 * j + 3 * h}) {
        const size_t times = rows.count(at);
        EXPECT_TRUE(count == kBlock ? times == 1 : times >= 1) << heads << ' ' << count << ' ' << at;
      }
}
TEST(CpuDecode, StreamsAskForEveryRowOfTheNextBlock) {
  for (const int64_t heads : {1, 2, 3, 8, 24, 32})
    for (const int64_t count : {int64_t{1}, int64_t{17}, int64_t{40}, cpu::kDecodeBlock}) {
      expect_every_row_once<8>(heads, count);
      expect_every_row_once<4>(heads, count);
    }
}

TEST(CpuDecode, RefusalsNameTheirReason) {
  const struct {
    const char *words, *reason;
  } cases[] = {
      {"f64 sq1 sk9 d8", "takes q in f32, f16 or bf16 (q.dtype=f64)"},
      {"bf16 sq1 sk9 d8 kv=e4m3", "takes k in f32, f16, bf16 or int8 (k.dtype=e4m3)"},
      {"bwd f32 sq1 sk9 d8", "runs the forward pass only (pass=bwd)"},
      {"f32 sq1 sk9 d577 dv8", "head_dim_qk above 576 (head_dim_qk=577)"},
      {"f32 sq1 sk9 d8 dv513", "head_dim_v above 512 (head_dim_v=513)"},
      {"bf16 sq1 sk9 d8 kv=int8", "reads v in the order of its rows only (v_order=1)"},
  };
  for (const std::string& row : decode_rows()) {
    for (const auto& one : cases) {
      Parsed parsed = parse(std::string(one.words) + " kernel=" + row);
      if (std::strstr(one.reason, "v_order") != nullptr) parsed.problem.v_order = 1;
      core::Plan plan;
      tessera_status status{};
      EXPECT_EQ(core::make_plan(parsed.problem, {}, &plan, &status), TESSERA_UNSUPPORTED) << one.words;
      EXPECT_NE(std::string(status.message).find(row + ": " + one.reason), std::string::npos) << status.message;
    }
  }
}

}  // namespace
}  // namespace tessera::tests
