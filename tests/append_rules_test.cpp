// What a caller of tessera_append, or of a run that appends, can get wrong: one line that names the argument, its value
// and what was expected; nothing is written, and the next right call works.
#include "append_case.hpp"

namespace tessera::test {
namespace {

AppendCase right_case() {
  AppendCase a;
  const Shape shape{.batch = 2, .seqlen_q = 2, .seqlen_k = 20, .heads_q = 2, .heads_kv = 1, .head_dim_qk = 16};
  a.c = Case::paged(TESSERA_BF16, shape, 8, 6, {0, 1, 2, 3, 4, 5});
  a.c.randomize(91);
  a.c.set_causal();
  a.c.seqused_k = {3, 17};
  a.make_rows(TESSERA_BF16, 3, 92);
  a.make_rotary(8, 20, 0, true);
  return a;
}

AppendCase copy_of(const AppendCase& a) {
  AppendCase copy = a;
  copy.c.k = a.c.k.clone(), copy.c.v = a.c.v.clone();
  copy.c.o = a.c.o.clone(), copy.c.lse = a.c.lse.clone();
  if (!a.q_rotated.absent()) copy.q_rotated = a.q_rotated.clone();
  return copy;
}

struct Call {
  AppendCase a;
  tessera_problem problem;
  tessera_tensors tensors;
  tessera_append_args args;
  explicit Call(const AppendCase& from) : a(copy_of(from)) {
    tensors = a.bind();
    problem = a.c.problem;
    args = a.args();
  }
  int run(bool in_attention, tessera_status* status) {
    if (!in_attention) return tessera_append(&problem, &tensors, &args, nullptr, status);
    tensors.append = &args;
    return run_raw(problem, tensors, status);
  }
};

void expect_refused(Call& call, bool in_attention, int code, const std::vector<std::string>& words) {
  const AppendCase before = copy_of(call.a);
  tessera_status status{};
  EXPECT_EQ(call.run(in_attention, &status), code) << status.message;
  const std::string message = status.message;
  for (const std::string& word : words) EXPECT_NE(message.find(word), std::string::npos) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos);
  EXPECT_TRUE(call.a.c.k.same_bits(before.c.k) && call.a.c.k.gaps_intact());
  EXPECT_TRUE(call.a.c.v.same_bits(before.c.v) && call.a.c.v.gaps_intact());
  EXPECT_TRUE(call.a.c.o.same_bits(before.c.o) && call.a.c.o.gaps_intact());
  EXPECT_TRUE(call.a.c.lse.same_bits(before.c.lse) && call.a.c.lse.gaps_intact());
  if (before.q_rotated.absent()) return;
  EXPECT_TRUE(call.a.q_rotated.same_bits(before.q_rotated) && call.a.q_rotated.gaps_intact());
}

// Refused alone and with attention, and the unchanged case works after it.
void expect_both_refused(const std::function<void(Call&)>& change, const std::vector<std::string>& words,
                         int code = TESSERA_INVALID_ARGUMENT) {
  for (const bool in_attention : {false, true}) {
    SCOPED_TRACE(in_attention ? "in attention" : "alone");
    Call call(right_case());
    change(call);
    expect_refused(call, in_attention, code, words);
    tessera_status status{};
    Call next(right_case());
    EXPECT_EQ(next.run(in_attention, &status), TESSERA_OK) << status.message;
  }
}

TEST(AppendRules, Numbers) {
  expect_both_refused([](Call& c) { c.args.size = 8; }, {"append_args.size is 8"});
  expect_both_refused([](Call& c) { c.args.seqlen_new = -1; }, {"seqlen_new is -1", "0 to 2147483647"});
  expect_both_refused([](Call& c) { c.args.total_new = int64_t{1} << 31; }, {"total_new is 2147483648"});
  expect_both_refused([](Call& c) { c.args.rotary_seqlen = -2; }, {"rotary_seqlen is -2"});
  expect_both_refused([](Call& c) { c.args.rotary_dim = 7; }, {"rotary_dim is 7", "even", "head_dim_qk = 16"});
  expect_both_refused([](Call& c) { c.args.rotary_dim = 18; }, {"rotary_dim is 18"});
  expect_both_refused([](Call& c) { c.args.rotary_interleaved = 2; }, {"rotary_interleaved is 2"});
  expect_both_refused([](Call& c) { c.args.rotary_dim = 0; }, {"q_rotated is 0x", "rotary_dim is 0"});
}

TEST(AppendRules, OperandsOfTheWrongKind) {
  expect_both_refused([](Call& c) { c.args.k_new.dtype = TESSERA_F64; },
                      {"k_new.dtype is 1 (f64)", "f32, f16 or bf16"});
  expect_both_refused([](Call& c) { c.args.v_new.dtype = TESSERA_INT8; }, {"v_new.dtype is 6 (int8)"});
  expect_both_refused([](Call& c) { c.args.q_out.dtype = TESSERA_F32; }, {"q_out.dtype is 2 (f32)", "bf16"});
  expect_both_refused([](Call& c) { c.args.k_new.align = 3; }, {"k_new.align is 3"});
  expect_both_refused([](Call& c) { c.args.k_new.stride[1] = -16; }, {"k_new.stride[1] is -16"});
  expect_both_refused([](Call& c) { c.args.v_new.stride[3] = 2; }, {"v_new.stride[3] is 2", "expected 1"});
  expect_both_refused([](Call& c) { c.args.q_out.stride[0] = 0; }, {"q_out.stride[0] is 0", "overlap"});
  expect_both_refused([](Call& c) { c.problem.k.stride[1] = 0; }, {"k.stride[1] is 0", "overlap"});
}

TEST(AppendRules, Pointers) {
  expect_both_refused([](Call& c) { c.args.k_new_data = nullptr; }, {"k_new_data is NULL"});
  expect_both_refused([](Call& c) { c.args.v_new_data = nullptr; }, {"v_new_data is NULL"});
  expect_both_refused([](Call& c) { c.args.rotary_cos = nullptr; }, {"rotary_cos is NULL"});
  expect_both_refused([](Call& c) { c.args.rotary_sin = nullptr; }, {"rotary_sin is NULL"});
  expect_both_refused([](Call& c) { c.tensors.q = nullptr; }, {"q is NULL"});
  expect_both_refused([](Call& c) { c.tensors.seqused_k = nullptr; }, {"seqused_k is NULL"});
  expect_both_refused([](Call& c) { c.tensors.page_table = nullptr; }, {"page_table is NULL"});
  expect_both_refused([](Call& c) { c.args.k_new_data = static_cast<const char*>(c.args.k_new_data) + 1; },
                      {"k_new_data is 0x", "multiple of"});
  expect_both_refused([](Call& c) { c.args.q_rotated = c.args.k_cache; }, {"0x", "overlaps", "memory of its own"});
  expect_both_refused([](Call& c) { c.args.k_new_data = c.args.k_cache; }, {"k_new_data", "overlaps"});
  Call alone(right_case());
  alone.args.k_cache = nullptr;
  expect_refused(alone, false, TESSERA_INVALID_ARGUMENT, {"k_cache is NULL"});
}

TEST(AppendRules, AttentionReadsTheSameCacheAndTheTurnedQueries) {
  Call other(right_case());
  const Tensor elsewhere = other.a.c.v.clone();
  other.args.v_cache = elsewhere.data();
  expect_refused(other, true, TESSERA_INVALID_ARGUMENT, {"v_cache is 0x", "expected k and v of the run"});
  Call unturned(right_case());
  unturned.args.q_rotated = nullptr;
  expect_refused(unturned, true, TESSERA_INVALID_ARGUMENT, {"q_rotated is NULL"});
  tessera_status status{};
  EXPECT_EQ(unturned.run(false, &status), TESSERA_OK) << status.message;  // alone q need not be there
}

TEST(AppendRules, Lengths) {
  expect_both_refused([](Call& c) { c.a.c.seqused_k[1] = 18; }, {"seqused_k[1] is 18 and 3 new rows", "seqlen_k = 20"});
  expect_both_refused([](Call& c) { c.a.c.seqused_k[0] = -1; }, {"seqused_k[0] is -1"});
  expect_both_refused([](Call& c) { c.a.c.page_table[5] = 6; }, {"page_table[1, 2] is 6", "num_pages - 1 = 5"});
  expect_both_refused([](Call& c) { c.args.rotary_seqlen = 19; }, {"rotary_seqlen is 19", "at least 20", "sequence 1"});
  const auto packed = [](std::vector<int32_t> cu) {
    return [cu](Call& c) {
      c.a.cu_seqlens_new = cu;
      c.args.cu_seqlens_new = c.a.cu_seqlens_new.data();
      c.args.total_new = 6;
      for (tessera_desc* desc : {&c.args.k_new, &c.args.v_new}) *desc = {TESSERA_BF16, 0, {0, 0, 0, 0}};
    };
  };
  expect_both_refused(packed({1, 3, 6}), {"cu_seqlens_new[0] is 1"});
  expect_both_refused(packed({0, 3, 2}), {"cu_seqlens_new[2] is 2", "at least"});
  expect_both_refused(packed({0, 3, 7}), {"cu_seqlens_new[2] is 7", "total, 6"});
  expect_both_refused(packed({0, 4, 6}), {"cu_seqlens_new[1] is 4", "maximum, 3"});
}

TEST(AppendRules, Problems) {
  expect_both_refused([](Call& c) { c.problem.flags &= ~TESSERA_FLAG_SEQUSED_K; }, {"SEQUSED_K"});
  Call packed(right_case());
  packed.problem.layout_kv = TESSERA_PACKED, packed.problem.total_k = 48;
  packed.problem.k = packed.problem.v = {};
  expect_refused(packed, false, TESSERA_INVALID_ARGUMENT, {"layout_kv is 1", "dense (0) or paged (2)"});
  Call backward(right_case());
  backward.problem.pass = TESSERA_BACKWARD, backward.problem.layout_kv = TESSERA_DENSE;
  backward.problem.k = backward.problem.v = {};
  expect_refused(backward, false, TESSERA_INVALID_ARGUMENT, {"pass is 1"});
  Call heads(right_case());
  heads.problem.heads_kv = 0;
  expect_refused(heads, false, TESSERA_INVALID_ARGUMENT, {"heads_kv is 0"});
  for (const auto& [change, word] : std::vector<std::pair<std::function<void(tessera_problem&)>, const char*>>{
           {[](tessera_problem& p) {
              p.q.dtype = p.k.dtype = p.v.dtype = TESSERA_E4M3, p.o.dtype = TESSERA_BF16;
              p.q.align = p.k.align = p.v.align = 1;
            },
            "q.dtype is e4m3 and rotary_dim is 8"},
           {[](tessera_problem& p) {
              p.k.dtype = TESSERA_INT8, p.v = {}, p.v_order = 1;
              p.page_size = 16;
            },
            "v_order is 1"},
           {[](tessera_problem& p) { p.k.dtype = p.v.dtype = TESSERA_INT8, p.flags |= TESSERA_FLAG_V_MEAN; },
            "V_MEAN"}}) {
    Call unsupported(right_case());
    change(unsupported.problem);
    expect_refused(unsupported, false, TESSERA_UNSUPPORTED, {word});
  }
}

TEST(AppendRules, NoSuchDevice) {
  Call call(right_case());
  call.problem.device = 4096;
  expect_refused(call, false, TESSERA_NO_DEVICE, {"device is 4096, but"});
}

TEST(AppendRules, MetadataAreCheckedWithoutARun) {
  Call call(right_case());
  call.tensors.append = &call.args;
  tessera_plan* plan = nullptr;
  tessera_status status{};
  ASSERT_EQ(tessera_plan_create(&call.problem, &plan, &status), TESSERA_OK) << status.message;
  EXPECT_EQ(tessera_check_metadata(plan, &call.tensors, nullptr, &status), TESSERA_OK) << status.message;
  call.a.c.seqused_k[1] = 18;
  EXPECT_EQ(tessera_check_metadata(plan, &call.tensors, nullptr, &status), TESSERA_INVALID_ARGUMENT);
  call.args.rotary_dim = 3;
  EXPECT_EQ(tessera_check_metadata(plan, &call.tensors, nullptr, &status), TESSERA_INVALID_ARGUMENT);
  tessera_plan_destroy(plan);
}

// Dao-AILab/flash-attention#638: appending to a full cache wrote over the caller's other tensors. Lengths of a CPU call
// are always known, so it is refused; what lies behind the caches is watched by their canaries.
TEST(BugAppend, FullCacheIsRefused) {
  for (const bool paged : {false, true})
    for (const auto& [used, count] : {std::pair{128, 1}, {127, 2}, {0, 129}}) {
      SCOPED_TRACE(::testing::Message() << used << " + " << count << (paged ? " paged" : ""));
      const Shape shape{.seqlen_k = 128, .heads_q = 32, .heads_kv = 4, .head_dim_qk = 128};
      AppendCase a;
      a.c = paged ? Case::paged(TESSERA_F16, shape, 16, 8, {7, 6, 5, 4, 3, 2, 1, 0}) : Case::dense(TESSERA_F16, shape);
      a.c.randomize(93);
      a.c.seqused_k = {used};
      a.make_rows(TESSERA_F16, count, 94);
      for (const bool in_attention : {false, true}) {
        Call call(a);
        expect_refused(call, in_attention, TESSERA_INVALID_ARGUMENT,
                       {"seqused_k[0] is " + std::to_string(used), "128"});
      }
      if (used < 128 && used > 0) {
        a.make_rows(TESSERA_F16, 1, 95);
        const Tensor k = a.c.k.clone(), v = a.c.v.clone();
        tessera_status status{};
        ASSERT_EQ(a.attend(&status), TESSERA_OK) << status.message;
        a.expect_appended(k, v);
      }
    }
}

}  // namespace
}  // namespace tessera::test
