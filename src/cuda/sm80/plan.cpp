// cuda.sm80.forward for the host: which problems it takes, with which tile, and how it is launched.
#include "../device.hpp"
#include "../forward_host.hpp"
#include "../kernels.hpp"
#include "../launch.hpp"
#include "config.hpp"
#include "forward_plan.hpp"

namespace tessera::cuda::sm80 {

using core::DeviceInfo;
using core::Launch;
using core::Plan;
using core::Problem;
using core::Refusal;

namespace {

// Instances by element type and bucket of sm80::kHeadDimBuckets.
const ForwardPair& forward_pair(const Problem& p, int32_t arch) {
  static const ForwardPair* const kF16[] = {&kForwardF16D64, &kForwardF16D96, &kForwardF16D128, &kForwardF16D192,
                                            &kForwardF16D256};
  static const ForwardPair* const kBf16[] = {&kForwardBf16D64, &kForwardBf16D96, &kForwardBf16D128, &kForwardBf16D192,
                                             &kForwardBf16D256};
  const size_t bucket = head_dim_bucket(kHeadDimBuckets, p);
  if (bucket == 0 && arch >= kNarrowArch) {
    return p.q.dtype == TESSERA_BF16 ? kForwardBf16D64Narrow : kForwardF16D64Narrow;
  }
  return *(p.q.dtype == TESSERA_BF16 ? kBf16 : kF16)[bucket];
}

const ForwardInstance& forward_instance(const Problem& p, const DeviceInfo& device) {
  const ForwardPair& pair = forward_pair(p, device.arch);
  return is_plain(p) ? pair.plain : pair.general;
}

Refusal refuse_forward(const Problem& p, const DeviceInfo& device) {
  if (device.is_cpu) return {"runs on CUDA devices only"};
  if (const Refusal refusal = refuse_operands(p, TESSERA_FORWARD)) return refusal;
  return refuse_forward_launch(p, device, forward_instance(p, device));
}

Launch configure_forward(const Problem& p, const DeviceInfo& device) {
  Launch launch = configure_forward_launch(p, device, forward_instance(p, device));
  launch.instructions = is_plain(p) ? "mma.sync, ldmatrix, cp.async" : "mma.sync, ldmatrix, cp.async; general scores";
  return launch;
}

int run_forward(const Plan& plan, const core::RunContext& context) {
  return run_forward_launch(plan, context, forward_instance(plan.problem, *plan.device));
}

int prepare_forward(const Plan& plan, tessera_status* status) {
  return prepare_forward_launch(plan, forward_instance(plan.problem, *plan.device), status);
}

}  // namespace

Refusal refuse_forward_launch(const Problem& p, const DeviceInfo& device, const ForwardInstance& instance) {
  if (device.arch < 80) return {"needs compute capability 8.0 or later", "arch", device.arch};
  if (p.sm_margin != 0) return {"has no sm_margin: its blocks are not persistent", "sm_margin", p.sm_margin};
  if (device.shared_bytes_per_block < instance.shared_bytes) {
    return {"needs more shared memory a block than the device has; bytes needed", "shared_bytes",
            instance.shared_bytes};
  }
  if (const Refusal refusal = refuse_sizes(p, instance.tile_m)) return refusal;
  return refuse_layout(p);
}

Launch configure_forward_launch(const Problem& p, const DeviceInfo& device, const ForwardInstance& instance) {
  Launch launch;
  launch.tile_m = instance.tile_m;
  launch.tile_n = instance.tile_n;
  launch.stages = instance.stages;
  launch.threads = instance.threads;
  launch.shared_bytes = instance.shared_bytes;
  launch.num_splits = static_cast<int32_t>(splits(p));
  if (launch.num_splits > 1) {
    launch.workspace_bytes = partial_o_bytes(p, launch.num_splits) + partial_lse_bytes(p, launch.num_splits);
  }
  launch.variant = heads_together(p, device.l2_bytes, p.batch * p.heads_q, p.group, query_blocks(p, instance.tile_m),
                                  int64_t{device.units} * instance.blocks_per_sm);
  launch.schedule = "one block a query tile, heavy tiles first in groups of heads that fit L2";
  // mma.sync reached 0.37 of the wgmma peak at d 128 on an H200 and about 0.7 of an A100's peak.
  const double share = device.arch == 90 || device.arch == 100 ? 0.35 : 0.65;
  const core::Work work = core::count_work(p);
  const double compute = device.peak_16bit > 0 ? work.flops / (share * device.peak_16bit) : 0;
  const double memory = device.bandwidth > 0 ? work.bytes / (0.85 * device.bandwidth) : 0;
  launch.seconds = (compute > memory ? compute : memory) + 3e-6;
  return launch;
}

int run_forward_launch(const Plan& plan, const core::RunContext& context, const ForwardInstance& instance) {
  const Problem& p = plan.problem;
  ForwardParams params = make_params(p, *context.tensors);
  const auto head_batches = static_cast<uint32_t>(p.batch * p.heads_q);
  const auto group = static_cast<uint32_t>(plan.launch.variant);
  params.schedule = {static_cast<uint32_t>(query_blocks(p, instance.tile_m)), head_batches, group};
  const uint32_t blocks = (instance.whole_head ? 1 : params.schedule.query_blocks) * params.schedule.head_batches;
  if (blocks == 0) return TESSERA_OK;
  const auto stream = static_cast<cudaStream_t>(context.cuda_stream);
  DeviceScope scope(p.device);
  if (scope.error() != cudaSuccess)
    return scope.finish(scope.error(), "forward: making the device current", context.status);
  if (plan.launch.num_splits == 1)
    return scope.finish(instance.launch(params, blocks, stream), plan.entry->name, context.status);
  const ForwardParams partial = make_partial(p, params, plan.launch.num_splits, context.workspace);
  cudaError_t error = instance.launch(partial, blocks * static_cast<uint32_t>(partial.num_splits), stream);
  if (error == cudaSuccess) error = launch_combine(partial, params, p.q.dtype == TESSERA_BF16, stream);
  return scope.finish(error, plan.entry->name, context.status);
}

int prepare_forward_launch(const Plan& plan, const ForwardInstance& instance, tessera_status* status) {
  DeviceScope scope(plan.problem.device);
  if (scope.error() != cudaSuccess) return scope.finish(scope.error(), "forward: making the device current", status);
  cudaError_t error = instance.prepare();
  if (error == cudaSuccess && plan.launch.num_splits > 1) error = prepare_combine(plan.problem.q.dtype == TESSERA_BF16);
  return scope.finish(error, "forward: loading the kernel", status);
}

const core::KernelEntry kForward{"cuda.sm80.forward", refuse_forward, configure_forward,
                                 run_forward,         false,          prepare_forward};

}  // namespace tessera::cuda::sm80
