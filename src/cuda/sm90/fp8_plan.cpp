// cuda.sm90.forward_fp8 for the host: which problems on e4m3 it takes, and how it is launched.
#include <algorithm>

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
using core::ScaleOperand;

const Instance& instance(const Problem& p) {
  const int32_t dim = std::max(p.head_dim_qk, p.head_dim_v);
  return dim <= kE4m3D64.dim_qk ? kE4m3D64 : dim <= kE4m3D128.dim_qk ? kE4m3D128 : kE4m3D256;
}

// One scale a head: over the keys of a tile probabilities are summed by the tensor cores.
Refusal refuse_scales(const Problem& p) {
  const struct {
    const char *rows, *pages;
    const ScaleOperand& scale;
  } rules[] = {{"k_scale_rows", "k_scale.stride[0]", p.k_scale}, {"v_scale_rows", "v_scale.stride[0]", p.v_scale}};
  for (const auto& rule : rules) {
    if (rule.scale.rows != 0)
      return {"takes one scale of k and of v for all rows of a head", rule.rows, rule.scale.rows};
    if (p.layout_kv == TESSERA_PAGED && p.num_pages > 1 && rule.scale.stride[0] != 0) {
      return {"takes one scale of k and of v for all pages", rule.pages, rule.scale.stride[0]};
    }
  }
  return {};
}

Refusal refuse_features(const Problem& p) {
  if (p.pass != TESSERA_FORWARD) return {"forward pass only"};
  if (p.q.dtype != TESSERA_E4M3) return {"takes e4m3", "q.dtype", p.q.dtype};
  if (p.head_dim_qk > 256 || p.head_dim_qk % 16 != 0)
    return {"takes head_dim_qk 16 to 256 in multiples of 16", "head_dim_qk", p.head_dim_qk};
  if (p.head_dim_v > 256 || p.head_dim_v % 16 != 0)
    return {"takes head_dim_v 16 to 256 in multiples of 16", "head_dim_v", p.head_dim_v};
  // Tiles begin at the first key, which then lies inside of the 16 slots that the order goes through.
  if (p.v_order != 0 && p.has(TESSERA_FLAG_LEFTPAD)) return {"takes no leftpad under v_order 1"};
  if (p.softcap != 0) return {"takes no softcap"};
  if (p.has(TESSERA_FLAG_BIAS)) return {"takes no bias"};
  if (p.has(TESSERA_FLAG_ALIBI)) return {"takes no ALiBi slopes"};
  // Keys and what a tile of rows adds to them are counted in 32 bits.
  constexpr int64_t kKeys = INT32_MAX - 4096;
  if (p.seqlen_k > kKeys) return {"takes at most 2147479551 keys", "seqlen_k", p.seqlen_k};
  return refuse_scales(p);
}

Refusal refuse(const Problem& p, const DeviceInfo& device) {
  if (device.is_cpu) return {"runs on CUDA devices only"};
  if (const Refusal refusal = refuse_features(p)) return refusal;
  return refuse_launch(p, device, instance(p));
}

Cut cut(const Problem& p, const DeviceInfo& device) {
  Cut c = start_cut(p, device, instance(p));
  split_keys(p, device, &c);
  return c;
}

Launch configure(const Problem& p, const DeviceInfo& device) {
  Launch launch = configure_cut(p, device, cut(p, device));
  launch.instructions = p.v_order == 0 ? "wgmma e4m3, float32 sums over tiles of keys since its own keep few bits, "
                                         "tma; v transposed in shared memory"
                                       : "wgmma e4m3, float32 sums over tiles of keys since its own keep few bits, tma";
  return launch;
}

int run(const Plan& plan, const core::RunContext& context) {
  const Problem& p = plan.problem;
  const tessera_tensors& t = *context.tensors;
  const Cut c = cut(p, *plan.device);
  Params params{};
  params.fp8 = {scale_of(t.q_scale, p.q_scale),
                scale_of(t.k_scale, p.k_scale),
                scale_of(t.v_scale, p.v_scale),
                p.has(TESSERA_FLAG_V_MEAN) ? t.v_mean : nullptr,
                p.v_mean_stride,
                p.o.dtype == TESSERA_BF16,
                p.v_order == 1,
                t.q_scale != nullptr && (p.q_scale.rows != 0 || c.pack != 1)};
  return run_cut(plan, context, c, &params);
}

int prepare(const Plan& plan, tessera_status* status) {
  return prepare_cut(plan, cut(plan.problem, *plan.device), status);
}

}  // namespace

const core::KernelEntry kForwardFp8{"cuda.sm90.forward_fp8", refuse, configure, run, false, prepare};

}  // namespace tessera::cuda::sm90
