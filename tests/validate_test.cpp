// Every rule of validate(): a good neighbour that passes and a bad one whose message names argument, value and
// expectation.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "problem.hpp"
#include "problem_text.hpp"

namespace tessera::core {
namespace {

using Edit = std::function<void(tessera_problem&)>;

tessera_problem parse(const char* text) {
  tessera_problem problem;
  tessera_status status;
  EXPECT_EQ(parse_problem(text, &problem, nullptr, &status), TESSERA_OK) << status.message;
  return problem;
}

struct Rule {
  const char* name;
  const char* text;  // a good problem
  Edit good, bad;
  std::vector<const char*> fragments;  // of the bad one's message
};

Edit nothing() {
  return [](tessera_problem&) {};
}

#define EDIT(body) [](tessera_problem& p) { body; }

constexpr const char* kDense = "f32 b2 hq4 hkv2 sq8 sk16 d64";
constexpr const char* kPacked = "f32 b2 hq4 hkv2 sq8 sk16 d64 packed";
constexpr const char* kPaged = "bf16 b2 hq4 hkv2 sq8 sk16 d64 paged=16";
constexpr const char* kBackward = "bwd f32 b2 hq4 hkv2 sq8 sk16 d64";

const std::vector<Rule> kNumberRules = {
    {"size", kDense, nothing(), EDIT(p.size -= 8), {"problem.size is", "tessera_problem_init"}},
    {"larger size", kDense, nothing(), EDIT(p.size += 8), {"problem.size is"}},
    {"kernel string",
     kDense,
     EDIT(std::memset(p.kernel, 'k', 63)),
     EDIT(std::memset(p.kernel, 'k', 64)),
     {"kernel", "zero-terminated", "63"}},
    {"device string",
     kDense,
     nothing(),
     EDIT(std::memset(p.device_name, 'k', 32)),
     {"device_name", "zero-terminated", "31"}},
    {"named device on the CPU",
     "f16 sq8 d64 cuda",
     EDIT(std::strcpy(p.device_name, "h200")),
     EDIT(std::strcpy(p.device_name, "h200"); p.device = -1),
     {"device_name is \"h200\"", "device 0"}},
    {"pass", kDense, EDIT(p.pass = 1), EDIT(p.pass = 2), {"pass is 2", "TESSERA_BACKWARD"}},
    {"device", kDense, EDIT(p.device = 3), EDIT(p.device = -2), {"device is -2", "-1 (the CPU)"}},
    {"layout_q", kDense, nothing(), EDIT(p.layout_q = TESSERA_PAGED), {"layout_q is 2", "TESSERA_PACKED"}},
    {"layout_kv", kDense, nothing(), EDIT(p.layout_kv = 3), {"layout_kv is 3", "TESSERA_PAGED"}},
    {"mask_alignment",
     kDense,
     EDIT(p.mask_alignment = 1),
     EDIT(p.mask_alignment = 2),
     {"mask_alignment is 2", "TESSERA_TOP_LEFT"}},
    {"isa", kDense, EDIT(p.isa = 5), EDIT(p.isa = 6), {"isa is 6"}},
    {"negative isa", kDense, nothing(), EDIT(p.isa = -1), {"isa is -1"}},
    {"v_order", kDense, nothing(), EDIT(p.v_order = 2), {"v_order is 2", "0 or 1"}},
    {"num_splits", kDense, EDIT(p.num_splits = 65536), EDIT(p.num_splits = -1), {"num_splits is -1", "65536"}},
    {"many splits", kDense, nothing(), EDIT(p.num_splits = 65537), {"num_splits is 65537"}},
    {"sm_margin", kDense, EDIT(p.sm_margin = 8), EDIT(p.sm_margin = -8), {"sm_margin is -8", "0 or more"}},
    {"threads", kDense, EDIT(p.threads = 64), EDIT(p.threads = -1), {"threads is -1"}},
    {"batch", kDense, EDIT(p.batch = 0), EDIT(p.batch = -1), {"batch is -1", "2147483647"}},
    {"large batch", kDense, nothing(), EDIT(p.batch = int64_t{1} << 31), {"batch is 2147483648"}},
    {"batch_kv", kDense, EDIT(p.batch_kv = 3), EDIT(p.batch_kv = 1), {"batch_kv is 1", "batch is 2", "batch_idx"}},
    {"batch_kv picked",
     kDense,
     EDIT(p.batch_kv = 1; p.flags |= TESSERA_FLAG_BATCH_IDX),
     EDIT(p.batch_kv = -1),
     {"batch_kv is -1"}},
    {"batch_kv packed", kPacked, EDIT(p.batch_kv = 2), EDIT(p.batch_kv = 3), {"batch_kv is 3", "only dense"}},
    {"batch_kv backward", kBackward, EDIT(p.batch_kv = 2), EDIT(p.batch_kv = 3), {"batch_kv is 3", "backward"}},
    {"seqlen_q", kDense, EDIT(p.seqlen_q = 0), EDIT(p.seqlen_q = -5), {"seqlen_q is -5"}},
    {"seqlen_k", kDense, EDIT(p.seqlen_k = 0), EDIT(p.seqlen_k = -5), {"seqlen_k is -5"}},
    {"total_q", kPacked, EDIT(p.total_q = 0), EDIT(p.total_q = -1), {"total_q is -1"}},
    {"total_k", kPacked, EDIT(p.total_k = 0), EDIT(p.total_k = int64_t{1} << 33), {"total_k is 8589934592"}},
    {"head dim", kDense, EDIT(p.head_dim_qk = 1), EDIT(p.head_dim_qk = 0), {"head_dim_qk is 0", "1 or more"}},
    {"head dim of v", kDense, EDIT(p.head_dim_v = 1), EDIT(p.head_dim_v = -64), {"head_dim_v is -64"}},
    {"page_size", kPaged, nothing(), EDIT(p.page_size = 0), {"page_size is 0", "1 or more"}},
    {"num_pages", kPaged, EDIT(p.num_pages = 0), EDIT(p.num_pages = -1), {"num_pages is -1"}},
    {"max_pages",
     kPaged,
     EDIT(p.max_pages = 9),
     EDIT(p.max_pages = 0),
     {"max_pages is 0", "page_size 16", "seqlen_k = 16"}},
    {"page_table_stride",
     kPaged,
     EDIT(p.page_table_stride = 7),
     EDIT(p.max_pages = 8; p.page_table_stride = 7),
     {"page_table_stride is 7", "max_pages = 8"}},
    {"left", kDense, EDIT(p.left = -1), EDIT(p.left = -2), {"left is -2", "unbounded"}},
    {"right", kDense, EDIT(p.right = INT64_MAX), EDIT(p.right = -3), {"right is -3", "unbounded"}},
    {"scale", kDense, EDIT(p.scale = -1.0), EDIT(p.scale = INFINITY), {"scale is inf", "1/sqrt(head_dim_qk)"}},
    {"negative infinite scale", kDense, EDIT(p.scale = 0.0), EDIT(p.scale = -INFINITY), {"scale is -inf"}},
    {"softcap", kDense, EDIT(p.softcap = 30.0), EDIT(p.softcap = -1.0), {"softcap is -1", "0 (off)"}},
    {"NaN softcap", kDense, EDIT(p.softcap = 0.0), EDIT(p.softcap = NAN), {"softcap is", "nan"}},
    {"infinite softcap", kDense, nothing(), EDIT(p.softcap = INFINITY), {"softcap is inf"}},
    {"scale beyond float32", kDense, EDIT(p.scale = -1e30), EDIT(p.scale = -3e37), {"scale is -3e+37", "1e+30"}},
    {"scale of doubles", kDense, EDIT(p.scale = 1e30), EDIT(p.scale = 1e300), {"scale is 1e+300", "unless q is f64"}},
    {"softcap beyond float32", kDense, EDIT(p.softcap = 1e30), EDIT(p.softcap = 1e39), {"softcap is 1e+39"}},
    {"softcap below float32", kDense, EDIT(p.softcap = 1e-30), EDIT(p.softcap = 1e-60), {"softcap is 1e-60"}},
};

const std::vector<Rule> kFlagRules = {
    {"unknown flags",
     kDense,
     EDIT(p.flags = TESSERA_FLAG_SEQUSED_K),
     EDIT(p.flags = uint64_t{1} << 14),
     {"flags is 0x4000", "unknown bits 0x4000"}},
    {"d_lse",
     "bwd f32 sq8 d64",
     EDIT(p.flags |= TESSERA_FLAG_D_LSE),
     EDIT(p.flags |= TESSERA_FLAG_D_LSE; p.pass = 0),
     {"D_LSE", "backward"}},
    {"d_sinks alone",
     "bwd f32 sq8 d64 sinks",
     nothing(),
     EDIT(p.flags &= ~TESSERA_FLAG_SINKS),
     {"D_SINKS without SINKS"}},
    {"d_bias alone",
     "bwd f32 sq8 d64 bias dbias",
     nothing(),
     EDIT(p.flags &= ~TESSERA_FLAG_BIAS),
     {"D_BIAS without BIAS"}},
    {"bias with packed", "f32 sq8 d64 bias", nothing(), EDIT(p.layout_q = TESSERA_PACKED), {"bias", "packed"}},
    {"batch_idx with paged",
     kDense,
     EDIT(p.flags |= TESSERA_FLAG_BATCH_IDX),
     EDIT(p.flags |= TESSERA_FLAG_BATCH_IDX; p.layout_kv = TESSERA_PACKED),
     {"batch_idx", "dense"}},
    {"backward of pages", kPaged, nothing(), EDIT(p.pass = TESSERA_BACKWARD), {"layout_kv", "backward"}},
    {"backward of batch_idx", kBackward, nothing(), EDIT(p.flags |= TESSERA_FLAG_BATCH_IDX), {"batch_idx", "backward"}},
    {"backward of leftpad", kBackward, nothing(), EDIT(p.flags |= TESSERA_FLAG_LEFTPAD), {"leftpad", "backward"}},
    {"alibi_stride", kDense, EDIT(p.alibi_stride = 4), EDIT(p.alibi_stride = -4), {"alibi_stride is -4"}},
    {"huge alibi_stride", kDense, nothing(), EDIT(p.alibi_stride = INT64_MAX / 2), {"alibi_stride is", "below"}},
    {"v_mean_stride",
     "bf16 kv=int8 sq8 d64",
     EDIT(p.v_mean_stride = 64),
     EDIT(p.v_mean_stride = -1),
     {"v_mean_stride is -1"}},
    {"paged v_mean_stride", kPaged, nothing(), EDIT(p.v_mean_stride = 1), {"v_mean_stride is 1", "paged"}},
    {"v_mean of floats",
     "bf16 kv=int8 sq8 d64",
     EDIT(p.flags |= TESSERA_FLAG_V_MEAN),
     EDIT(p.flags |= TESSERA_FLAG_V_MEAN; p.k.dtype = p.v.dtype = TESSERA_BF16),
     {"V_MEAN", "bf16"}},
    {"v_order of floats",
     "bf16 kv=int8 sq8 d64",
     EDIT(p.v_order = 1),
     EDIT(p.v_order = 1; p.k.dtype = p.v.dtype = TESSERA_BF16),
     {"v_order is 1", "e4m3 or int8"}},
    {"v_order over pages",
     "bf16 kv=int8 sq8 sk16 d64 paged=16",
     EDIT(p.v_order = 1),
     EDIT(p.v_order = 1; p.page_size = 8; p.max_pages = 4),
     {"page_size is 8", "multiple of 16"}},
};

const std::vector<Rule> kDtypeRules = {
    {"q dtype",
     kDense,
     EDIT(p.q.dtype = p.k.dtype = p.v.dtype = p.o.dtype = TESSERA_F64),
     EDIT(p.q.dtype = TESSERA_INT8),
     {"q.dtype is 6 (int8)"}},
    {"unknown q dtype", kDense, nothing(), EDIT(p.q.dtype = 99), {"q.dtype is 99 (?)", "bf16"}},
    {"no q dtype", kDense, nothing(), EDIT(p.q.dtype = 0), {"q.dtype is 0"}},
    {"mixed k",
     kDense,
     EDIT(p.k.dtype = 0),
     EDIT(p.k.dtype = TESSERA_F16),
     {"k.dtype is 3 (f16)", "q.dtype is 2 (f32)"}},
    {"mixed v",
     kDense,
     EDIT(p.v.dtype = 0),
     EDIT(p.v.dtype = TESSERA_BF16),
     {"v.dtype is 4 (bf16)", "k.dtype is 2 (f32)"}},
    {"int8 cache",
     "f16 kv=int8 sq8 d64",
     nothing(),
     EDIT(p.q.dtype = p.o.dtype = TESSERA_F64),
     {"k.dtype is 6 (int8)", "q.dtype is 1 (f64)"}},
    {"o partials",
     "bf16 sq8 d64",
     EDIT(p.o.dtype = TESSERA_F32),
     EDIT(p.o.dtype = TESSERA_F16),
     {"o.dtype is 3 (f16)", "q's dtype, or f32"}},
    {"o of doubles", "f64 sq8 d64", EDIT(p.o.dtype = 0), EDIT(p.o.dtype = TESSERA_F32), {"o.dtype is 2 (f32)", "f64"}},
    {"o of e4m3",
     "e4m3 sq8 d64",
     EDIT(p.o.dtype = TESSERA_F16),
     EDIT(p.o.dtype = TESSERA_E4M3),
     {"o.dtype is 5 (e4m3)", "bf16"}},
    {"dq dtype",
     "bwd bf16 sq8 d64",
     EDIT(p.dq.dtype = TESSERA_F32),
     EDIT(p.dq.dtype = TESSERA_F16),
     {"dq.dtype is 3 (f16)"}},
    {"d_o dtype", "bwd bf16 sq8 d64", EDIT(p.d_o.dtype = 0), EDIT(p.d_o.dtype = TESSERA_U8), {"d_o.dtype is 7 (u8)"}},
    {"bias dtype",
     "bf16 sq8 d64 bias",
     EDIT(p.bias.dtype = TESSERA_F32),
     EDIT(p.bias.dtype = TESSERA_F16),
     {"bias.dtype is 3 (f16)", "u8"}},
    {"d_bias of a mask",
     "bwd f32 sq8 d64 bias dbias",
     nothing(),
     EDIT(p.bias.dtype = TESSERA_U8),
     {"D_BIAS", "u8 mask"}},
    {"d_bias dtype",
     "bwd bf16 sq8 d64 bias dbias",
     EDIT(p.d_bias.dtype = TESSERA_F32),
     EDIT(p.d_bias.dtype = TESSERA_F16),
     {"d_bias.dtype is 3"}},
    {"align", kDense, EDIT(p.k.align = 4), EDIT(p.k.align = 24), {"k.align is 24", "power of two"}},
    {"align below the element",
     "f16 sq8 d64",
     EDIT(p.v.align = 2),
     EDIT(p.v.align = 1),
     {"v.align is 1", "at least 2"}},
    {"negative align", kDense, EDIT(p.q.align = 256), EDIT(p.q.align = -16), {"q.align is -16"}},
    {"scales of floats",
     "f16 kv=int8 sq8 d64",
     EDIT(p.k_scale_rows = 128),
     EDIT(p.q_scale_rows = 128),
     {"q_scale", "f16", "only for e4m3 and int8"}},
    {"scale rows",
     "f16 kv=int8 sq8 d64",
     EDIT(p.v_scale_rows = 1),
     EDIT(p.v_scale_rows = 64),
     {"v_scale_rows is 64", "128"}},
    {"scale rows of pages",
     "f16 kv=int8 sq8 d64 paged=32",
     EDIT(p.k_scale_rows = 32),
     EDIT(p.k_scale_rows = 16),
     {"k_scale_rows is 16", "page_size"}},
    {"scale dtype",
     "f16 kv=int8 sq8 d64",
     EDIT(p.k_scale.dtype = TESSERA_F32),
     EDIT(p.k_scale.dtype = TESSERA_F16),
     {"k_scale.dtype is 3"}},
};

void set_stride(tessera_desc& desc, int64_t a, int64_t b, int64_t c, int64_t d) {
  desc.stride[0] = a;
  desc.stride[1] = b;
  desc.stride[2] = c;
  desc.stride[3] = d;
}

// kDense: q, o [2, 8, 4, 64]; k, v [2, 16, 2, 64].
const std::vector<Rule> kStrideRules = {
    {"last stride",
     kDense,
     EDIT(set_stride(p.k, 2048, 128, 64, 1)),
     EDIT(set_stride(p.k, 4096, 256, 128, 2)),
     {"k.stride[3] is 2", "expected 1"}},
    {"negative stride",
     kDense,
     EDIT(set_stride(p.q, 2048, 256, 64, 1)),
     EDIT(set_stride(p.q, 2048, -256, 64, 1)),
     {"q.stride[1] is -256", "0 or more"}},
    {"packed has three",
     kPacked,
     EDIT(set_stride(p.q, 256, 64, 1, 0)),
     EDIT(set_stride(p.q, 2048, 256, 64, 1)),
     {"q.stride[2] is 64", "expected 1"}},
    {"packed fourth", kPacked, nothing(), EDIT(set_stride(p.q, 256, 64, 1, 1)), {"q.stride[3] is 1", "three dims"}},
    {"broadcast input, written output",
     kDense,
     EDIT(set_stride(p.k, 0, 128, 64, 1)),
     EDIT(set_stride(p.o, 0, 256, 64, 1)),
     {"o.stride[0] is 0", "overlap", "expected at least"}},
    {"rows of o overlap",
     kDense,
     EDIT(set_stride(p.o, 2048, 256, 64, 1)),
     EDIT(set_stride(p.o, 2048, 255, 64, 1)),
     {"o.stride[1] is 255", "at least 256"}},
    {"heads of o overlap",
     kDense,
     EDIT(set_stride(p.o, 2048, 64, 512, 1)),
     EDIT(set_stride(p.o, 2048, 64, 32, 1)),
     {"o.stride[", "overlap"}},
    {"dq overlaps",
     kBackward,
     EDIT(set_stride(p.dq, 9999, 256, 64, 1)),
     EDIT(set_stride(p.dq, 2048, 0, 64, 1)),
     {"dq.stride[1] is 0", "overlap"}},
    {"dk overlaps",
     kBackward,
     EDIT(set_stride(p.dk, 2048, 128, 64, 1)),
     EDIT(set_stride(p.dk, 2000, 128, 64, 1)),
     {"dk.stride[0] is 2000", "at least 2048"}},
    {"dv overlaps", kBackward, nothing(), EDIT(set_stride(p.dv, 2048, 128, 0, 1)), {"dv.stride[2] is 0"}},
    {"o is read in backward",
     kBackward,
     EDIT(set_stride(p.o, 0, 256, 64, 1)),
     EDIT(set_stride(p.o, 0, 256, 64, 2)),
     {"o.stride[3] is 2"}},
    {"offsets overflow",
     kDense,
     EDIT(set_stride(p.v, int64_t{1} << 33, 128, 64, 1)),
     EDIT(set_stride(p.v, INT64_MAX, 128, 64, 1)),
     {"v.stride[0] is 9223372036854775807", "2^61"}},
    {"bias last stride",
     "f32 b2 hq2 sq8 sk16 d64 bias",
     EDIT(set_stride(p.bias, 0, 0, 0, 0)),
     EDIT(set_stride(p.bias, 0, 0, 1, 8)),
     {"bias.stride[3] is 8", "0 to broadcast"}},
    {"bias stride sign",
     "f32 b2 hq2 sq8 sk16 d64 bias",
     nothing(),
     EDIT(set_stride(p.bias, 0, -1, 16, 1)),
     {"bias.stride[1] is -1"}},
    {"d_bias overlaps",
     "bwd f32 b2 hq2 sq8 sk16 d64 bias dbias",
     EDIT(set_stride(p.d_bias, 0, 128, 16, 1)),
     EDIT(set_stride(p.d_bias, 0, 127, 16, 1)),
     {"d_bias.stride[1] is 127", "at least 128"}},
    {"scale stride sign",
     "f16 kv=int8 b2 sq8 d64",
     EDIT(set_stride(p.k_scale, 1, 0, 0, 0)),
     EDIT(set_stride(p.k_scale, -1, 0, 0, 0)),
     {"k_scale.stride[0] is -1"}},
};

void check_rules(const std::vector<Rule>& rules) {
  for (const Rule& rule : rules) {
    SCOPED_TRACE(rule.name);
    tessera_status status{};
    Problem problem{};
    tessera_problem good = parse(rule.text);
    rule.good(good);
    EXPECT_EQ(validate(good, &problem, &status), TESSERA_OK) << status.message;
    tessera_problem bad = parse(rule.text);
    rule.bad(bad);
    Problem untouched{};
    untouched.batch = 12345;
    EXPECT_EQ(validate(bad, &untouched, &status), TESSERA_INVALID_ARGUMENT);
    EXPECT_EQ(status.code, TESSERA_INVALID_ARGUMENT);
    EXPECT_EQ(untouched.batch, 12345) << "a refused problem was written";
    for (const char* fragment : rule.fragments)
      EXPECT_NE(std::strstr(status.message, fragment), nullptr) << fragment << " in: " << status.message;
    EXPECT_EQ(validate(bad, &untouched, nullptr), TESSERA_INVALID_ARGUMENT) << "a NULL status is allowed";
  }
}

TEST(Validate, Numbers) { check_rules(kNumberRules); }
TEST(Validate, Flags) { check_rules(kFlagRules); }
TEST(Validate, Dtypes) { check_rules(kDtypeRules); }
TEST(Validate, Strides) { check_rules(kStrideRules); }

TEST(Validate, HeadCountsNameBothNumbers) {
  for (const auto& [q, kv] :
       std::vector<std::pair<int, int>>{{33, 2}, {3, 2}, {2, 4}, {4, 0}, {0, 0}, {8, 3}, {-4, 2}, {4, -2}}) {
    tessera_problem problem = parse(kDense);
    problem.heads_q = q;
    problem.heads_kv = kv;
    tessera_status status;
    Problem checked;
    EXPECT_EQ(validate(problem, &checked, &status), TESSERA_INVALID_ARGUMENT);
    EXPECT_NE(
        std::string(status.message).find("heads_q is " + std::to_string(q) + " and heads_kv is " + std::to_string(kv)),
        std::string::npos)
        << status.message;
  }
}

TEST(Validate, ResolvesDefaults) {
  tessera_problem given = parse(kDense);
  Problem p;
  ASSERT_EQ(validate(given, &p, nullptr), TESSERA_OK);
  EXPECT_DOUBLE_EQ(p.scale, 0.125);
  EXPECT_EQ(p.group, 2);
  EXPECT_EQ(p.batch_kv, 2);
  EXPECT_EQ(p.q.align, 16);
  EXPECT_EQ(p.q.batch_stride, 8 * 4 * 64);
  EXPECT_EQ(p.q.row_stride, 4 * 64);
  EXPECT_EQ(p.q.head_stride, 64);
  EXPECT_EQ(p.d_o.dtype, 0) << "forward has no d_o";
  given.scale = 0.0;
  ASSERT_EQ(validate(given, &p, nullptr), TESSERA_OK);
  EXPECT_EQ(p.scale, 0.0) << "0 is a value";
}

TEST(Validate, StridesOfSizeOneDimsAreNeverUsed) {
  tessera_problem given = parse("f32 b1 hq1 sq8 d1");
  for (tessera_desc* desc : {&given.q, &given.k, &given.v, &given.o}) set_stride(*desc, -7, 5, INT64_MIN, 99);
  Problem p;
  tessera_status status;
  ASSERT_EQ(validate(given, &p, &status), TESSERA_OK) << status.message;
  EXPECT_EQ(p.q.batch_stride, 0);
  EXPECT_EQ(p.q.row_stride, 5);
  EXPECT_EQ(p.q.head_stride, 0);
}

TEST(Validate, EmptyProblemsAreFine) {
  for (const char* text : {"f32 b0 sq8 d64", "f32 sq0 sk8 d64", "f32 sq8 sk0 d64", "bwd f32 b0 sq8 d64",
                           "f32 b2 sq0 sk0 d64 packed", "f32 b0 sq8 d64 paged=16", "f32 sq0 sk7 d64 bias"}) {
    const tessera_problem given = parse(text);
    Problem p;
    tessera_status status;
    EXPECT_EQ(validate(given, &p, &status), TESSERA_OK) << text << ": " << status.message;
  }
}

TEST(Validate, OutputsMayBeSlicesOfOneBuffer) {
  // dq, dk, dv as slices of [1, 130, 3, 4, 256]: row stride 3 * 4 * 256.
  tessera_problem given = parse("bwd bf16 b1 hq4 hkv4 sq130 d256");
  for (tessera_desc* desc : {&given.dq, &given.dk, &given.dv}) set_stride(*desc, 130 * 3072, 3072, 256, 1);
  Problem p;
  tessera_status status;
  EXPECT_EQ(validate(given, &p, &status), TESSERA_OK) << status.message;
}

}  // namespace
}  // namespace tessera::core
