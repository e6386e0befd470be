// cuda.sm90.forward with a step taken back: the same cut and launch, other instances.
#include <algorithm>
#include <iterator>

#include "../forward_host.hpp"
#include "../sm90/cut.hpp"
#include "rows.hpp"

namespace tessera::cuda::sm90 {
namespace {

using core::DeviceInfo;
using core::Launch;
using core::Plan;
using core::Problem;
using core::Refusal;

struct Ablation {
  const char* name;
  const AblatedBuckets* buckets;  // null: the full kernel's
  bool one_tile;                  // as many blocks as pieces of work, no tickets
  const char* instructions;
};

constexpr Ablation kRows[] = {
    {"cuda.sm90.forward.no_pingpong", &kNoTurns, false, "wgmma, tma; ablation: warpgroups take no turns"},
    {"cuda.sm90.forward.no_overlap", &kNoOverlap, false,
     "wgmma, tma; ablation: a warpgroup's softmax waits for all of its products"},
    {"cuda.sm90.forward.no_pingpong_no_overlap", &kNoTurnsNoOverlap, false,
     "wgmma, tma; ablation: neither turns nor a softmax beside products of its warpgroup"},
    {"cuda.sm90.forward.other_rescale", &kOtherRescale, false,
     "wgmma, tma; ablation: accumulators rescaled at every step (128), when a maximum grows by 2^8 (64)"},
    {"cuda.sm90.forward.no_producer", &kNoProducer, false,
     "wgmma, tma; ablation: a warp of the consumers copies, a tile ahead"},
    {"cuda.sm90.forward.one_tile", nullptr, true, "wgmma, tma; ablation: blocks are not persistent"},
};
static_assert(std::size(kRows) == kAblations);

const Bucket& full_bucket(const Problem& p) { return p.head_dim_qk == 64 ? kBf16D64 : kBf16D128; }
const Bucket& bucket(const Problem& p, const Ablation& row) {
  if (row.buckets == nullptr) return full_bucket(p);
  return p.head_dim_qk == 64 ? row.buckets->d64 : row.buckets->d128;
}

Cut cut(const Problem& p, const DeviceInfo& device, const Ablation& row) {
  Cut c = choose_cut(p, device, bucket(p, row));
  c.splits = 1;  // one thing is taken back at a time, and some of these kernels take whole rows of keys only
  if (row.one_tile) c.workers = static_cast<int32_t>(std::min<int64_t>(c.items(), kMaxInt));
  return c;
}

template <size_t kRow>
Refusal refuse(const Problem& p, const DeviceInfo& device) {
  if (device.is_cpu) return {"runs on CUDA devices only"};
  if (const Refusal refusal = refuse_ablation(p)) return refusal;
  const Ablation& row = kRows[kRow];
  const Bucket& full = full_bucket(p);
  if (row.buckets != nullptr && choose_cut(p, device, full).instance == &full.brief) {
    return {"cuda.sm90.forward has a tile of its own here, which no ablation takes", "seqlen_k", p.seqlen_k};
  }
  return refuse_launch(p, device, bucket(p, row).plain);
}

template <size_t kRow>
Launch configure(const Problem& p, const DeviceInfo& device) {
  Launch launch = configure_cut(p, device, cut(p, device, kRows[kRow]));
  launch.instructions = kRows[kRow].instructions;
  launch.seconds = 0;  // what it takes is what it is there to be measured for
  return launch;
}

template <size_t kRow>
int run(const Plan& plan, const core::RunContext& context) {
  Params params{};
  return run_cut(plan, context, cut(plan.problem, *plan.device, kRows[kRow]), &params);
}

template <size_t kRow>
int prepare(const Plan& plan, tessera_status* status) {
  return prepare_cut(plan, cut(plan.problem, *plan.device, kRows[kRow]), status);
}

template <size_t kRow>
constexpr core::KernelEntry entry() {
  return {kRows[kRow].name, refuse<kRow>, configure<kRow>, run<kRow>, true, prepare<kRow>};
}

}  // namespace

const core::KernelEntry kAblatedForward[kAblations] = {entry<0>(), entry<1>(), entry<2>(),
                                                       entry<3>(), entry<4>(), entry<5>()};

}  // namespace tessera::cuda::sm90
