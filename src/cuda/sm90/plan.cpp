// cuda.sm90.forward for the host: which problems it takes, with which tile and schedule, and how it is launched.
#include "../forward_host.hpp"
#include "../kernels.hpp"
#include "cut.hpp"

namespace tessera::cuda::sm90 {
namespace {

using core::DeviceInfo;
using core::Launch;
using core::Plan;
using core::Problem;
using core::Refusal;

const Bucket& bucket(const Problem& p) {
  static const Bucket* const kF16[] = {&kF16D64, &kF16D96, &kF16D128, &kF16D192V128, &kF16D192, &kF16D256};
  static const Bucket* const kBf16[] = {&kBf16D64, &kBf16D96, &kBf16D128, &kBf16D192V128, &kBf16D192, &kBf16D256};
  const auto& buckets = p.q.dtype == TESSERA_BF16 ? kBf16 : kF16;
  size_t i = 0;
  while (buckets[i]->plain.dim_qk < p.head_dim_qk || buckets[i]->plain.dim_v < p.head_dim_v) ++i;
  return *buckets[i];
}

Cut cut(const Problem& p, const DeviceInfo& device) { return choose_cut(p, device, bucket(p)); }

Refusal refuse_forward(const Problem& p, const DeviceInfo& device) {
  if (device.is_cpu) return {"runs on CUDA devices only"};
  if (const Refusal refusal = refuse_operands(p, TESSERA_FORWARD)) return refusal;
  return refuse_launch(p, device, bucket(p).plain);
}

Launch configure_forward(const Problem& p, const DeviceInfo& device) {
  Launch launch = configure_cut(p, device, cut(p, device));
  launch.instructions = is_plain(p) ? "wgmma, tma" : "wgmma, tma; general scores";
  return launch;
}

int run_forward(const Plan& plan, const core::RunContext& context) {
  const Cut c = cut(plan.problem, *plan.device);
  Params params{};
  return run_cut(plan, context, c, &params);
}

int prepare_forward(const Plan& plan, tessera_status* status) {
  return prepare_cut(plan, cut(plan.problem, *plan.device), status);
}

}  // namespace

const core::KernelEntry kForward{"cuda.sm90.forward", refuse_forward, configure_forward,
                                 run_forward,         false,          prepare_forward};

}  // namespace tessera::cuda::sm90
