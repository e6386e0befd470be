// cuda.sm90.backward for the host: which problems it takes, with which tile, and how it is launched.
#include "../backward_host.hpp"
#include "../device.hpp"
#include "../kernels.hpp"
#include "backward_launch.hpp"
#include "tensor_maps.hpp"

namespace tessera::cuda::sm90 {
namespace {

using core::DeviceInfo;
using core::Launch;
using core::Plan;
using core::Problem;
using core::Refusal;

const BackwardInstance& instance(const Problem& p) {
  static constexpr int32_t kBuckets[] = {64, 128, 192, 256};
  static const BackwardBucket* const kF16[] = {&kBackwardF16D64, &kBackwardF16D128, &kBackwardF16D192,
                                               &kBackwardF16D256};
  static const BackwardBucket* const kBf16[] = {&kBackwardBf16D64, &kBackwardBf16D128, &kBackwardBf16D192,
                                                &kBackwardBf16D256};
  const BackwardBucket& bucket = *(p.q.dtype == TESSERA_BF16 ? kBf16 : kF16)[head_dim_bucket(kBuckets, p)];
  return p.softcap > 0 ? bucket.capped : bucket.plain;
}

// The fragments of dq are transposed: the head dim is their rows.
DqSums dq_sums(const Problem& p) { return {instance(p).dim, true}; }

Refusal refuse(const Problem& p, const DeviceInfo& device) {
  if (device.is_cpu) return {"runs on CUDA devices only"};
  if (const Refusal refusal = refuse_backward(p)) return refusal;
  if (device.arch != 90) return {"needs compute capability 9.0 (Hopper)", "arch", device.arch};
  if (p.has(TESSERA_FLAG_BIAS)) return {"takes no bias and no mask array"};
  if (p.has(TESSERA_FLAG_ALIBI)) return {"takes no ALiBi"};
  if (device.shared_bytes_per_block < instance(p).shared_bytes) {
    return {"needs more shared memory a block than the device has; bytes needed", "shared_bytes",
            instance(p).shared_bytes};
  }
  return refuse_map_strides(p);
}

// On an H200, docs/notes/backward.md.
BackwardRates rates(const BackwardInstance& kernel) {
  if (kernel.dim == 64 && kernel.persistent) return {0.56, 0.53, 2.5e-6};
  if (kernel.dim == 64) return {0.495, 0.465, 7.5e-6};
  if (kernel.dim == 128 && kernel.persistent) return {0.645, 0.605, 6e-6};  // the second by the ratio of the next row
  if (kernel.dim == 128) return {0.575, 0.54, 11.5e-6};
  return {0.465, 0.43, 12.5e-6};
}

Launch configure(const Problem& p, const DeviceInfo& device) {
  const BackwardInstance& kernel = instance(p);
  Launch launch;
  launch.tile_m = kernel.tile_m;
  launch.tile_n = kernel.tile_n;
  launch.stages = kernel.stages;
  launch.threads = kernel.threads;
  launch.registers = kernel.consumer_registers;
  launch.shared_bytes = kernel.shared_bytes;
  launch.workspace_bytes = lay_out_workspace(p, kernel.dim, kernel.persistent, true).bytes;
  const HeadOrder order = order_heads_backward(p, device, kernel.tile_n);
  const bool descends = order.descending > 0 && order.descending == p.batch * p.heads_kv;
  launch.variant = descends ? order.descending_together : order.together;
  launch.schedule = backward_schedule(p, kernel.persistent, descends);
  launch.instructions = p.softcap > 0 ? "wgmma, tma; softcap" : "wgmma, tma";
  launch.seconds = estimate_backward(p, device, kernel.tile_n, rates(kernel));
  return launch;
}

cudaError_t encode_maps(const Problem& p, const BackwardInstance& kernel, BackwardLaunchParams* out) {
  const auto [batches_q, rows_q, batches_k, rows_k] = extents(p);
  const BackwardParams& b = out->backward;
  const struct {
    const void* data;
    const Strides& stride;
    int64_t dim, rows, heads, batches;
    int32_t box_rows;
    CUtensorMap* map;
  } operands[] = {
      {b.f.q, b.f.q_stride, p.head_dim_qk, rows_q, p.heads_q, batches_q, kernel.tile_m, &out->q_map},
      {b.d_o, b.d_o_stride, p.head_dim_v, rows_q, p.heads_q, batches_q, kernel.tile_m, &out->d_o_map},
      {b.f.k, b.f.k_stride, p.head_dim_qk, rows_k, p.heads_kv, batches_k, kernel.tile_n, &out->k_map},
      {b.f.v, b.f.v_stride, p.head_dim_v, rows_k, p.heads_kv, batches_k, kernel.tile_n, &out->v_map},
  };
  for (const auto& one : operands) {
    const TensorView view{one.data,
                          4,
                          {one.dim, one.rows, one.heads, one.batches},
                          {1, one.stride.row, one.stride.head, one.stride.batch},
                          {64, one.box_rows, 1, 1}};
    const cudaError_t error = encode_tensor_map(view, p.q.dtype, 128, one.map);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

int run(const Plan& plan, const core::RunContext& context) {
  const Problem& p = plan.problem;
  const BackwardInstance& kernel = instance(p);
  const auto stream = static_cast<cudaStream_t>(context.cuda_stream);
  DeviceScope scope(p.device);
  if (scope.error() != cudaSuccess)
    return scope.finish(scope.error(), "cuda.sm90.backward: making the device current", context.status);
  const HeadOrder order = order_heads_backward(p, *plan.device, kernel.tile_n);
  const BackwardRows rows(p, *context.tensors, context.workspace, dq_sums(p), kernel.tile_n, order,
                          kernel.persistent ? plan.device->units : 0, true);
  cudaError_t error = rows.begin(stream);
  if (error == cudaSuccess && rows.key_blocks > 0) {
    BackwardLaunchParams params{};
    params.backward = rows.params;
    error = encode_maps(p, kernel, &params);
    if (error != cudaSuccess) return scope.finish(error, "cuda.sm90.backward: encoding a tensor map", context.status);
    error = kernel.launch(params, rows.key_blocks, stream);
  }
  if (error == cudaSuccess) error = rows.finish(stream);
  return scope.finish(error, "cuda.sm90.backward: launch", context.status);
}

int prepare(const Plan& plan, tessera_status* status) {
  const Problem& p = plan.problem;
  DeviceScope scope(p.device);
  if (scope.error() != cudaSuccess)
    return scope.finish(scope.error(), "cuda.sm90.backward: making the device current", status);
  cudaError_t error = load_encoder();
  if (error == cudaSuccess) error = instance(p).prepare();
  if (error == cudaSuccess) error = prepare_backward_rows(p.q.dtype == TESSERA_BF16, dq_sums(p));
  return scope.finish(error, "cuda.sm90.backward: loading the kernel", status);
}

}  // namespace

const core::KernelEntry kBackward{"cuda.sm90.backward", refuse, configure, run, false, prepare};

}  // namespace tessera::cuda::sm90
