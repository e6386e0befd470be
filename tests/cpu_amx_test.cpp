// The tile rows against the judge over the whole of the semantics: emulated on any machine, with the instructions where
// the CPU and the kernel permit them; and each reason for refusing, on devices made up for it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "element.hpp"
#include "judged_run.hpp"
#include "tile_rows.hpp"

namespace tessera::tests {
namespace {

using baselines::OperandSet;

constexpr const char* kEmulated = "cpu.amx_emulated.forward";
constexpr const char* kNative = "cpu.amx.forward";

void check(const OperandSet& operands, const std::string& what) { check_tile_rows(operands, "forward", what); }
void check(const std::string& text) { check(operands_of(text), text); }

TEST(AmxForward, BandsAndTerms) {
  int turn = 0;
  const auto check_terms = [&](const char* words) {
    for (const char* dtype : {"bf16", "f16", "f32"})
      check(std::string("fwd ") + dtype + " b2 hq4 hkv2 " + kTileSizes[turn++ % 6] + " d32 " + words);
  };
  for (const char* words : kTileTerms) check_terms(words);
  check_terms("sinks");
  check_terms("alibi softcap=7 bias=b sinks causal");
}

TEST(AmxForward, HeadDimsAndGroups) {
  int turn = 0;
  for (const char* dims : kTileDims) {
    const char* dtype = turn % 2 == 0 ? "bf16" : "f16";
    const std::string o = turn % 3 == 0 ? " o=f32" : "";
    const std::string rest = std::string(" b1 ") + kTileHeads[turn++ % 4] + " sq37 sk70 causal " + dims;
    check(std::string("fwd ") + dtype + rest + o);
    check("fwd f32" + rest);
  }
}

TEST(AmxForward, LayoutsLengthsAndEmptyRows) {
  constexpr const char* kWords[] = {"packed lens=longtail causal",
                                    "packed lens=70:0:1",
                                    "packed lens=0:0:0",
                                    "paged=16 pages=shuffled lens=70:0:33",
                                    "paged=5 pages=shuffled causal",
                                    "paged=64 leftpad lens=70:20:1",
                                    "lens=70:1:0 sinks",
                                    "lens=17:70:64 causal leftpad",
                                    "layout=bhsd causal",
                                    "packed layout=bhsd lens=70:3:40 window=9,2"};
  for (const char* words : kWords)
    for (const char* dtype : {"bf16", "f16", "f32"})
      check(std::string("fwd ") + dtype + " b3 hq4 hkv2 sq70 sk70 d24 " + words);
  // Rows without keys: more queries than keys, a window that reaches none, no keys at all, no queries.
  for (const char* text : {"bf16 hq2 sq90 sk20 d16 causal", "f16 hq2 sq40 sk8 d16 window=0,0 topleft",
                           "bf16 hq2 sq40 sk0 d16", "f16 hq2 sq40 sk0 d16 sinks", "bf16 hq2 sq0 sk40 d16",
                           "f32 hq2 sq90 sk20 d16 causal", "f32 hq2 sq40 sk0 d16 sinks", "f32 hq2 sq0 sk40 d16"})
    check(std::string("fwd ") + text);
}

TEST(AmxForward, StridesCacheRowsAndBiasStrides) {
  for (const char* dtype : {"bf16", "f16", "f32"}) {
    tessera_problem problem;
    core::TextExtras extras;
    const std::string text = std::string("fwd ") + dtype + " b3 hq4 hkv2 sq40 sk75 d48 causal lens=40:9:33";
    ASSERT_EQ(core::parse_problem(text, &problem, &extras, nullptr), TESSERA_OK);
    problem.flags |= TESSERA_FLAG_LSE | TESSERA_FLAG_BATCH_IDX;
    for (tessera_desc* desc : {&problem.q, &problem.k, &problem.v, &problem.o}) {
      desc->align = std::string(dtype) == "f32" ? 4 : 2;  // gaps between rows and no alignment beyond an element's
      desc->stride[3] = 1;
      desc->stride[1] = 51;
      desc->stride[0] = 51 * 80;
      desc->stride[2] = 51 * 80 * 6 + 1;
    }
    check(baselines::make_operands(problem, extras), text + " with gaps and cache rows");
  }
}

// Bytes outside of the lengths, and rows of other tiles, when a value is not finite.
TEST(AmxForward, PoisonOutsideChangesNoBit) {
  for (const char* words : {"lens=40:9 causal", "paged=16 pages=shuffled lens=33:40", "leftpad lens=40:21"}) {
    const OperandSet operands = operands_of(std::string("fwd bf16 b2 hq2 hkv1 sq40 sk90 d24 ") + words);
    ASSERT_EQ(run_pinned(operands, kEmulated).code, TESSERA_OK);
    const std::vector<std::byte> expected = output_bytes(operands);
    for (const void* data : {operands.tensors.q, operands.tensors.k, operands.tensors.v})
      for (const baselines::Buffer& buffer : operands.buffers) {
        if (buffer.data() != data) continue;
        int64_t poisoned = 0;
        for (size_t i = 0; i < buffer.bytes(); i += 2) {
          auto* at = reinterpret_cast<uint16_t*>(buffer.data() + i);
          if (*at != 0xffff) continue;
          *at = 0x7f80;  // infinity; random inputs hold neither
          ++poisoned;
        }
        EXPECT_GT(poisoned, 0);
      }
    ASSERT_EQ(run_pinned(operands, kEmulated).code, TESSERA_OK);
    EXPECT_EQ(output_bytes(operands), expected) << words;
  }
}

#if defined(__x86_64__)
// What a native row says of `text` on a machine with or without the tiles.
std::string refusal(const std::string& text, core::Isa isa, bool has_amx, int32_t cap = TESSERA_ISA_AUTO,
                    const char* name = kNative, bool has_int8 = true) {
  core::DeviceInfo device = core::cpu_info();
  device.isa = isa;
  device.has_amx_bf16 = has_amx;
  device.has_amx_int8 = has_int8;
  tessera_problem problem;
  EXPECT_EQ(core::parse_problem(text, &problem, nullptr, nullptr), TESSERA_OK) << text;
  problem.isa = cap;
  for (const core::KernelEntry& row : core::cpu_kernels())
    if (std::strcmp(row.name, name) == 0) {
      const core::Refusal answer = row.refuse(validated(problem), device);
      return answer ? core::format_refusal(answer) : "";
    }
  return "no such row";
}

// Errors of a score are relative errors of its probability, and its lse is held to 2^-20 of itself.
TEST(AmxForward, LargeScoresKeepTheirLse) {
  for (const char* dtype : {"f16", "bf16", "f32"}) {
    for (const char* scale : {"3", "10", "30", "100"})
      check(std::string("fwd ") + dtype + " sq128 sk300 d128 hq2 causal scale=" + scale);
  }
}

// A step whose mask hides nothing takes the maximum of the steps before and is repeated where that is too small: keys
// that double every 100 keys, of head dims whose values are multiplied by steps and by chunks.
TEST(AmxForward, MaximaThatRiseRepeatSteps) {
  constexpr std::pair<const char*, int> kExponents[] = {{"f16", 10}, {"bf16", 7}, {"f32", 23}};
  for (const auto& type : kExponents)
    for (const size_t dim : {16, 64, 80, 128}) {
      const int shift = type.second;
      const std::string text = std::string("fwd ") + type.first + " hq2 hkv1 sq64 sk700 d" + std::to_string(dim);
      OperandSet operands = operands_of(text);
      const auto raise = [&](auto* bits) {
        for (size_t i = 0; i < 700 * dim; ++i)
          if (bits[i] << 1 != 0)
            bits[i] = static_cast<std::decay_t<decltype(*bits)>>(bits[i] + (i / dim / 100 << shift));
      };
      void* k = const_cast<void*>(operands.tensors.k);
      shift == 23 ? raise(static_cast<uint32_t*>(k)) : raise(static_cast<uint16_t*>(k));
      check(operands, text);
    }
}

float* floats_of(const void* rows) { return const_cast<float*>(static_cast<const float*>(rows)); }

// Float32 operands are three bf16 each, of float32's range: what is far from 1 keeps its digits, unless its last part
// is below 2^-126.
TEST(AmxForward, Float32OfAnyMagnitudeKeepsTheTolerance) {
  constexpr int kPowers[][3] = {{0, 0, 0}, {60, -60, 0}, {-90, 90, 0}, {100, -100, 40}, {0, 0, 110}, {0, 0, -100}};
  for (const auto& [q, k, v] : kPowers) {
    OperandSet operands = operands_of("fwd f32 hq2 sq40 sk90 d64 causal");
    for (size_t i = 0; i < 2 * 40 * 64; ++i)
      floats_of(operands.tensors.q)[i] = std::ldexp(floats_of(operands.tensors.q)[i], q);
    for (size_t i = 0; i < 2 * 90 * 64; ++i) {
      floats_of(operands.tensors.k)[i] = std::ldexp(floats_of(operands.tensors.k)[i], k);
      floats_of(operands.tensors.v)[i] = std::ldexp(floats_of(operands.tensors.v)[i], v);
    }
    check(operands, "powers " + std::to_string(q) + ", " + std::to_string(k) + ", " + std::to_string(v));
  }
}

// The nearest bf16 of the largest floats is infinite: their first part is cut off.
TEST(AmxForward, TheLargestFloatsStayFinite) {
  const float largest = std::numeric_limits<float>::max();
  OperandSet operands = operands_of("fwd f32 hq1 sq40 sk1 d64 scale=1");
  for (size_t i = 0; i < 40 * 64; ++i) floats_of(operands.tensors.q)[i] = i % 64 == 0 ? largest : 0;
  for (size_t i = 0; i < 64; ++i) floats_of(operands.tensors.k)[i] = 0x1p-100f;
  for (size_t i = 0; i < 64; ++i) floats_of(operands.tensors.v)[i] = i % 2 == 0 ? largest : -largest;
  for (const core::KernelEntry* entry : library_rows()) {
    if (run_pinned(operands, entry->name).code == TESSERA_UNSUPPORTED) continue;
    for (size_t i = 0; i < 40 * 64; ++i)
      ASSERT_EQ(floats_of(operands.tensors.o)[i], i % 2 == 0 ? largest : -largest) << entry->name << ", element " << i;
    for (size_t i = 0; i < 40; ++i)
      ASSERT_NEAR(floats_of(operands.tensors.lse)[i], 0x1p28, 0x1p28 * 0x1p-20) << entry->name;
  }
}

// What is infinite or NaN in q, k or v leaves the same elements of o finite, infinite and NaN as on the plain row; but
// v may reach rows that a window hides from it.
TEST(AmxForward, Float32InfinitiesReachWhatTheyReachOnVectors) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const std::string words : {"", " causal", " window=40,0"})
    for (const float value : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()})
      for (int which = 0; which < 3; ++which) {
        OperandSet operands = operands_of("fwd f32 hq1 sq40 sk90 d64" + words);
        const void* rows[] = {operands.tensors.q, operands.tensors.k, operands.tensors.v};
        floats_of(rows[which])[17 * 64 + 5] = value;
        ASSERT_EQ(run_pinned(operands, "cpu.portable.forward").code, TESSERA_OK);
        const std::vector<float> expected(floats_of(operands.tensors.o), floats_of(operands.tensors.o) + 40 * 64);
        for (const char* row : {kEmulated, kNative}) {
          if (run_pinned(operands, row).code == TESSERA_UNSUPPORTED) continue;
          for (size_t i = 0; i < expected.size(); ++i) {
            if (which == 2 && words == " window=40,0" && i / 64 + 50 - 40 > 17) continue;
            const float o = floats_of(operands.tensors.o)[i];
            const bool same = std::isnan(expected[i])   ? std::isnan(o)
                              : std::isinf(expected[i]) ? o == expected[i]
                                                        : std::fabs(o - expected[i]) < 1e-5f;
            ASSERT_TRUE(same) << row << words << ", " << value << " in " << which << ": element " << i << " is " << o
                              << ", expected " << expected[i];
          }
        }
      }
}

// At 2^37 the last digit of a float32 lse is coarser than ln 2: weights taken from the merged lse would not sum to 1.
TEST(AmxForward, ASinkAsLargeAsTheScoresTakesHalf) {
  OperandSet operands = operands_of("fwd bf16 hq2 hkv2 sq40 sk1 d64 scale=1 sinks");
  const auto fill = [](const void* rows, size_t count, float value) {
    for (size_t i = 0; i < count; ++i) {
      const uint16_t stored = core::float_to_bf16(value);
      std::memcpy(const_cast<std::byte*>(static_cast<const std::byte*>(rows)) + 2 * i, &stored, sizeof stored);
    }
  };
  fill(operands.tensors.q, 2 * 40 * 64, 0x1p18f);
  fill(operands.tensors.k, 2 * 64, 0x1p13f);
  fill(operands.tensors.v, 2 * 64, 3.0f);
  for (int h = 0; h < 2; ++h) const_cast<float*>(operands.tensors.sinks)[h] = 0x1p37f;
  int ran = 0;
  for (const core::KernelEntry* entry : library_rows()) {
    const RunResult result = run_pinned(operands, entry->name);
    if (result.code == TESSERA_UNSUPPORTED) continue;
    ASSERT_EQ(result.code, TESSERA_OK) << entry->name << ": " << result.message;
    ++ran;
    for (size_t i = 0; i < 2 * 40 * 64; ++i) {
      uint16_t stored;
      std::memcpy(&stored, static_cast<const std::byte*>(operands.tensors.o) + 2 * i, sizeof stored);
      ASSERT_EQ(core::bf16_to_float(stored), 1.5f) << entry->name << ", element " << i;
    }
  }
  EXPECT_GE(ran, 2);  // the portable row and the emulated tiles
}

TEST(AmxForward, RefusalsNameTheirReason) {
  const std::string good = "fwd bf16 sq64 d64";
  EXPECT_EQ(refusal(good, core::Isa::amx, true), "");
  EXPECT_EQ(refusal(good, core::Isa::amx, true, TESSERA_ISA_AMX), "");
  const std::string absent = "this CPU has no AMX, the system does not permit it, or TESSERA_ISA caps it";
  EXPECT_EQ(refusal(good, core::Isa::avx512, true), absent) << "TESSERA_ISA caps it";
  EXPECT_EQ(refusal(good, core::Isa::amx, false), absent) << "the kernel denies the tile registers";
  EXPECT_EQ(refusal(good, core::Isa::avx2, false), absent);
  for (const int32_t cap : {TESSERA_ISA_PORTABLE, TESSERA_ISA_AVX2, TESSERA_ISA_AVX512})
    EXPECT_EQ(refusal(good, core::Isa::amx, true, cap), "isa= caps the instruction set below amx");
  EXPECT_EQ(refusal("fwd bf16 sq15 sk64 d64", core::Isa::amx, true),
            "fewer than 16 queries leave its tiles empty (seqlen_q=15)");
  EXPECT_EQ(refusal("fwd f32 sq64 d64", core::Isa::amx, true), "");
  EXPECT_EQ(refusal("fwd f64 sq64 d64", core::Isa::amx, true), "bf16, f16 and f32 only");
  EXPECT_EQ(refusal("bwd bf16 sq64 d64", core::Isa::amx, true), "forward only");
  EXPECT_EQ(refusal("fwd bf16 sq64 d64 kv=int8", core::Isa::amx, true), "takes k in q's dtype (k.dtype=int8)");
  EXPECT_EQ(refusal("fwd bf16 sq64 d577", core::Isa::amx, true), "head_dim_qk above 576 (head_dim_qk=577)");
  EXPECT_EQ(refusal("fwd f16 sq64 d64 dv1900000000", core::Isa::amx, true),
            "head_dim_v above 512 (head_dim_v=1900000000)");
  EXPECT_EQ(refusal("fwd bf16 sq64 d64 splits=2", core::Isa::amx, true), "splits are for the vector rows (splits=2)");
}

TEST(AmxDecode, RefusalsNameTheirReason) {
  const auto decode = [](const std::string& text, core::Isa isa = core::Isa::amx, bool has_amx = true,
                         int32_t cap = TESSERA_ISA_AUTO, bool has_int8 = true) {
    return refusal("fwd " + text, isa, has_amx, cap, "cpu.amx.decode", has_int8);
  };
  const std::string good = "bf16 hq8 hkv1 sq1 sk64 d64", quantised = good + " kv=int8";
  for (const std::string& text : {good, quantised}) {
    EXPECT_EQ(decode(text), "");
    EXPECT_EQ(decode(text, core::Isa::amx, true, TESSERA_ISA_AVX512), "isa= caps the instruction set below amx");
    for (const core::Isa isa : {core::Isa::avx512, core::Isa::neon})
      EXPECT_EQ(decode(text, isa), "this CPU has no AMX, the system does not permit it, or TESSERA_ISA caps it");
  }
  EXPECT_EQ(decode(good, core::Isa::amx, true, TESSERA_ISA_AUTO, false), "");
  EXPECT_EQ(decode(quantised, core::Isa::amx, true, TESSERA_ISA_AUTO, false), "this CPU has no AMX-INT8");
  EXPECT_EQ(decode("f16 hq8 hkv1 sq1 sk64 d64"), "takes k in bf16 or int8, as its tiles do (k.dtype=f16)");
  EXPECT_EQ(decode("bf16 hq7 hkv1 sq1 sk64 d64"),
            "fewer than 8 rows of a key head leave its tiles empty (seqlen_q * group=7)");
  EXPECT_EQ(decode("bf16 hq1 hkv1 sq1 sk64 d64 kv=int8"), "");
  EXPECT_EQ(decode("bf16 hq8 hkv1 sq17 sk64 d64"), "seqlen_q * group above 128 (seqlen_q * group=136)");
}

TEST(AmxForward, ThisMachineRunsItOrSaysWhyNot) {
  const OperandSet operands = operands_of("fwd bf16 hq2 sq64 d64");
  const RunResult result = run_pinned(operands, kNative);
  const core::DeviceInfo& device = core::cpu_info();
  if (device.isa == core::Isa::amx && device.has_amx_bf16) {
    EXPECT_EQ(result.code, TESSERA_OK) << result.message;
  } else {
    EXPECT_EQ(result.code, TESSERA_UNSUPPORTED);
    EXPECT_NE(result.message.find("cpu.amx.forward: this CPU has no AMX, the system does not permit it"),
              std::string::npos)
        << result.message;
  }
}
#endif

// The emulation is for tests: no plan takes it unless it is named.
TEST(AmxForward, EmulationRunsOnlyWhenNamed) {
  for (const char* text : {"fwd bf16 sq64 d64", "fwd bf16 sq64 d600", "fwd f16 sq64 d64 dv600", "fwd f32 sq64 d64",
                           "fwd bf16 hq8 hkv1 sq1 sk64 d64", "fwd bf16 hq8 hkv1 sq1 sk64 d64 kv=int8"}) {
    tessera_problem problem;
    ASSERT_EQ(core::parse_problem(text, &problem, nullptr, nullptr), TESSERA_OK);
    core::Plan plan;
    if (core::make_plan(problem, {}, &plan, nullptr) == TESSERA_OK) {
      EXPECT_EQ(std::string(plan.entry->name).find("emulated"), std::string::npos) << text;
    }
  }
}

}  // namespace
}  // namespace tessera::tests
