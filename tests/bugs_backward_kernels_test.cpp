// Public bug situations about gradients without an answer by hand: the library's backward rows against the float64
// reference.
#include "support.hpp"

namespace tessera::test {
namespace {

void compare_gradients(Case& c) { check_against_judge(c, Rows::library); }

// Dao-AILab/flash-attention#2896: columns that pad the head dim were never written, then read back.
TESSERA_SITUATION(BugBackwardKernels, UnevenHeadDims) {
  for (const int32_t head_dim : {40, 59, 72, 88, 104, 111}) {
    if (!offered_dim(head_dim)) continue;
    for (const bool packed : {false, true}) {
      const Shape shape{.seqlen_q = 128, .seqlen_k = 128, .heads_q = 2, .head_dim_qk = head_dim};
      Case c = packed ? Case::packed(TESSERA_BF16, {0, 128}, {0, 128}, shape) : Case::dense(TESSERA_BF16, shape);
      c.randomize(191);
      c.to_backward(192);
      compare_gradients(c);
    }
  }
}

// Dao-AILab/flash-attention#355, #2541; ROCm/aotriton#236: one operand's strides used for another.
TESSERA_SITUATION(BugBackwardKernels, GradientsWithTheirOwnLayout) {
  Case c = Case::dense(TESSERA_F16,
                       {.batch = 2, .seqlen_q = 32, .seqlen_k = 32, .heads_q = 4, .heads_kv = 1, .head_dim_qk = 128});
  c.randomize(193);
  c.set_causal();
  c.to_backward(194);
  const Tensor d_o = c.d_o;
  c.d_o = Tensor(TESSERA_F16, d_o.dims(), stored_as(d_o.dims(), 0, 2, 1));
  c.d_o.copy_values(d_o);
  compare_gradients(c);
  constexpr int64_t kRow = 4 * 256;
  Case fused = Case::dense(TESSERA_F16, {.seqlen_q = 130, .seqlen_k = 130, .heads_q = 4, .head_dim_qk = 256});
  fused.randomize(195);
  fused.to_backward(196);
  for (int64_t part = 0; part < 3; ++part) {
    Tensor& gradient = part == 0 ? fused.dq : part == 1 ? fused.dk : fused.dv;
    gradient =
        Tensor(TESSERA_F16, gradient.dims(), {.stride = {130 * 3 * kRow, 3 * kRow, 256, 1}, .offset = part * kRow});
  }
  compare_gradients(fused);
}

// Dao-AILab/flash-attention#470, commits bba578d4, a4f148b6: small head sizes and lengths beside a tile's.
TESSERA_SITUATION(BugBackwardKernels, SmallHeadDimsAndTileEdges) {
  for (const int32_t head_dim : {1, 2, 3, 4, 5, 6, 7, 8, 16, 24, 64, 192}) {
    if (!offered_dim(head_dim)) continue;
    for (const int64_t seqlen : {1, 63, 64, 65, 127, 129, 193}) {
      Case c = Case::dense(TESSERA_F16,
                           {.seqlen_q = seqlen, .seqlen_k = 194 - seqlen, .heads_q = 2, .head_dim_qk = head_dim});
      c.randomize(197);
      if (seqlen % 2 == 1) c.set_causal();
      c.to_backward(198);
      compare_gradients(c);
    }
  }
}

// Dao-AILab/flash-attention#2244, #2549, #2510: gradients that changed between runs.
TESSERA_SITUATION(BugBackwardKernels, RepeatedRunsGiveTheSameBits) {
  for (const bool window : {false, true}) {
    Case c = Case::dense(TESSERA_BF16, {.seqlen_q = 320, .seqlen_k = 128, .heads_q = 6, .heads_kv = 2});
    c.randomize(199);
    c.problem.right = 0;
    if (window) c.problem.left = 60;
    c.to_backward(200);
    c.set_flag(TESSERA_FLAG_DETERMINISTIC);
    compare_gradients(c);
    on_every_accepting_row(
        c,
        [&] {
          for (int repeat = 0; repeat < 30; ++repeat) {
            Case again = c.twin();
            again.problem.threads = 1 + repeat % 8;
            run_on(again, c.kernel);
            EXPECT_TRUE(again.dq.same_bits(c.dq) && again.dk.same_bits(c.dk) && again.dv.same_bits(c.dv));
          }
        },
        Rows::library);
  }
}

}  // namespace
}  // namespace tessera::test
