// cuda.sm80.forward with a step taken back: the same launch, other instances.
#include <iterator>

#include "../sm80/config.hpp"
#include "../sm80/forward_plan.hpp"
#include "rows.hpp"

namespace tessera::cuda::sm80 {
namespace {

using core::DeviceInfo;
using core::Launch;
using core::Plan;
using core::Problem;
using core::Refusal;

struct Ablation {
  const char* name;
  const AblatedInstances* instances;
  const char *schedule, *instructions;
};

constexpr const char *kSchedule = "one block a query tile, heavy tiles first in groups of heads that fit L2",
                     *kInstructions = "mma.sync, ldmatrix, cp.async";
constexpr Ablation kRows[] = {
    {"cuda.sm80.forward.one_block_a_head", &kWholeHead,
     "ablation: one block goes over all query tiles of a (batch, head)", kInstructions},
    {"cuda.sm80.forward.normalised", &kNormalised, kSchedule,
     "mma.sync, ldmatrix, cp.async; ablation: accumulators divided at every step"},
    {"cuda.sm80.forward.keys_over_warps", &kKeyWarps, kSchedule,
     "mma.sync, ldmatrix, cp.async; ablation: warps share rows, split keys and exchange through shared memory"},
};
static_assert(std::size(kRows) == kAblations);

const ForwardInstance& instance(const Problem& p, const Ablation& row) {
  return p.head_dim_qk == 64 ? row.instances->d64 : row.instances->d128;
}

template <size_t kRow>
Refusal refuse(const Problem& p, const DeviceInfo& device) {
  if (device.is_cpu) return {"runs on CUDA devices only"};
  if (const Refusal refusal = refuse_ablation(p)) return refusal;
  if (device.arch >= kNarrowArch)
    return {"an ablation: has the tiles of compute capabilities before 12.0", "arch", device.arch};
  return refuse_forward_launch(p, device, instance(p, kRows[kRow]));
}

template <size_t kRow>
Launch configure(const Problem& p, const DeviceInfo& device) {
  Launch launch = configure_forward_launch(p, device, instance(p, kRows[kRow]));
  launch.schedule = kRows[kRow].schedule;
  launch.instructions = kRows[kRow].instructions;
  launch.seconds = 0;  // what it takes is what it is there to be measured for
  return launch;
}

template <size_t kRow>
int run(const Plan& plan, const core::RunContext& context) {
  return run_forward_launch(plan, context, instance(plan.problem, kRows[kRow]));
}

template <size_t kRow>
int prepare(const Plan& plan, tessera_status* status) {
  return prepare_forward_launch(plan, instance(plan.problem, kRows[kRow]), status);
}

template <size_t kRow>
constexpr core::KernelEntry entry() {
  return {kRows[kRow].name, refuse<kRow>, configure<kRow>, run<kRow>, true, prepare<kRow>};
}

}  // namespace

const core::KernelEntry kAblatedForward[kAblations] = {entry<0>(), entry<1>(), entry<2>()};

}  // namespace tessera::cuda::sm80
