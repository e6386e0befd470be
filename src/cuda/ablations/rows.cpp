// The list of the ablations, and what they refuse alike.
#include <algorithm>
#include <array>

#include "../forward_host.hpp"
#include "rows.hpp"

namespace tessera::cuda {

core::KernelList ablations() {
  static const auto kRows = [] {
    std::array<core::KernelEntry, sm90::kAblations + sm80::kAblations> rows{};
    std::copy_n(sm80::kAblatedForward, sm80::kAblations,
                std::copy_n(sm90::kAblatedForward, sm90::kAblations, rows.begin()));
    return rows;
  }();
  return kRows;
}

core::Refusal refuse_ablation(const core::Problem& p) {
  if (const core::Refusal refusal = refuse_operands(p, TESSERA_FORWARD)) return refusal;
  if (p.q.dtype != TESSERA_BF16) return {"an ablation: takes bf16 only", "q.dtype", p.q.dtype};
  if (p.o.dtype != TESSERA_BF16) return {"an ablation: writes o in bf16 only", "o.dtype", p.o.dtype};
  if (p.head_dim_qk != 64 && p.head_dim_qk != 128)
    return {"an ablation: takes head_dim_qk 64 and 128 only", "head_dim_qk", p.head_dim_qk};
  if (p.head_dim_v != p.head_dim_qk)
    return {"an ablation: takes head_dim_v equal to head_dim_qk only", "head_dim_v", p.head_dim_v};
  if (p.layout_q != TESSERA_DENSE || p.layout_kv != TESSERA_DENSE) return {"an ablation: takes dense layouts only"};
  if (p.banded() && !(p.left < 0 && p.right == 0)) return {"an ablation: takes full and causal masks only"};
  const struct {
    uint64_t flag;
    const char* text;
  } flags[] = {{TESSERA_FLAG_SEQUSED_Q | TESSERA_FLAG_SEQUSED_K, "an ablation: takes no used lengths"},
               {TESSERA_FLAG_LEFTPAD, "an ablation: takes no left padding"},
               {TESSERA_FLAG_BATCH_IDX, "an ablation: takes no cache rows"},
               {TESSERA_FLAG_SINKS, "an ablation: takes no sinks"},
               {TESSERA_FLAG_BIAS, "an ablation: takes no bias"},
               {TESSERA_FLAG_ALIBI, "an ablation: takes no ALiBi slopes"}};
  for (const auto& one : flags) {
    if (p.has(one.flag)) return {one.text};
  }
  if (p.softcap != 0) return {"an ablation: takes no softcap"};
  if (!is_plain(p)) return {"an ablation: takes a scale between 1e-30 and 1e30 only"};
  if (p.num_splits > 1) return {"an ablation: splits no keys", "num_splits", p.num_splits};
  if (p.sm_margin != 0) return {"an ablation: has no sm_margin", "sm_margin", p.sm_margin};
  return {};
}

}  // namespace tessera::cuda
