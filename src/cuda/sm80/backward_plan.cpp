// cuda.sm80.backward for the host: which problems it takes, with which tile, and how it is launched.
#include "../backward_host.hpp"
#include "../device.hpp"
#include "../kernels.hpp"
#include "config.hpp"
#include "launch.hpp"

namespace tessera::cuda::sm80 {
namespace {

using core::DeviceInfo;
using core::Launch;
using core::Plan;
using core::Problem;
using core::Refusal;

size_t bucket(const Problem& p) { return head_dim_bucket(kHeadDimBuckets, p); }
DqSums dq_sums(const Problem& p) { return {kHeadDimBuckets[bucket(p)], false}; }

// Kernels by size, element type and bucket of kHeadDimBuckets; null: another size's serve.
const BackwardKernels& kernels(const Problem& p, const DeviceInfo& device) {
  static const BackwardKernels* const kLarge[2][5] = {
      {&kBackwardF16D64, &kBackwardF16D96, &kBackwardF16D128, &kBackwardF16D192, &kBackwardF16D256},
      {&kBackwardBf16D64, &kBackwardBf16D96, &kBackwardBf16D128, &kBackwardBf16D192, &kBackwardBf16D256}};
  static const BackwardKernels* const kSmall[2][5] = {
      {nullptr, nullptr, &kBackwardF16D128Small, &kBackwardF16D192Small, &kBackwardF16D256Small},
      {nullptr, nullptr, &kBackwardBf16D128Small, &kBackwardBf16D192Small, &kBackwardBf16D256Small}};
  const bool bf16 = p.q.dtype == TESSERA_BF16;
  const size_t index = bucket(p);
  const BackwardKernels& wide = bf16 ? kBackwardBf16D256Wide : kBackwardF16D256Wide;
  if (kHeadDimBuckets[index] == 256 && device.shared_bytes_per_block >= wide.plain.shared_bytes) return wide;
  const BackwardKernels& large = *kLarge[bf16][index];
  const bool fits = device.shared_bytes_per_block >= large.plain.shared_bytes;
  return fits || kSmall[bf16][index] == nullptr ? large : *kSmall[bf16][index];
}

const BackwardInstance& instance(const Problem& p, const DeviceInfo& device) {
  return is_plain(p) ? kernels(p, device).plain : kernels(p, device).general;
}

int64_t key_tiles(const Problem& p, int64_t tile_n) { return (p.seqlen_k + tile_n - 1) / tile_n; }

// One block of d_bias for each tile of what does not broadcast. As a double: four sizes may pass any integer.
double bias_blocks(const Problem& p, const DeviceInfo& device) {
  const BackwardInstance& kernel = kernels(p, device).d_bias;
  const int64_t tiles[4] = {p.batch, p.heads_q, query_blocks(p, kernel.tile_m), key_tiles(p, kernel.tile_n)};
  double blocks = 1;
  for (int d = 0; d < 4; ++d) blocks *= p.d_bias.stride[d] != 0 || tiles[d] == 0 ? double(tiles[d]) : 1.0;
  return blocks;
}

Refusal refuse(const Problem& p, const DeviceInfo& device) {
  if (device.is_cpu) return {"runs on CUDA devices only"};
  if (const Refusal refusal = refuse_backward(p)) return refusal;
  if (device.arch < 80) return {"needs compute capability 8.0 or later", "arch", device.arch};
  if (device.shared_bytes_per_block < instance(p, device).shared_bytes) {
    return {"needs more shared memory a block than the device has; bytes needed", "shared_bytes",
            instance(p, device).shared_bytes};
  }
  if (p.has(TESSERA_FLAG_D_BIAS) && bias_blocks(p, device) > double(kMaxInt))
    return {"takes at most 2147483647 blocks of d_bias", "seqlen_q", p.seqlen_q};
  return {};
}

// On an H200, docs/notes/backward.md, where mma.sync has about 0.62 of the matrix units' rate; elsewhere a guess.
BackwardRates rates(int32_t dim, int32_t arch) {
  if (arch != 90 && arch != 100) return {0.5, 0.42, 0};
  if (dim == 64) return {0.33, 0.31, 2.5e-6};
  if (dim <= 128) return {0.315, 0.3, 5e-6};
  return {0.245, 0.23, 9.5e-6};
}

Launch configure(const Problem& p, const DeviceInfo& device) {
  const BackwardInstance& kernel = instance(p, device);
  Launch launch;
  launch.tile_m = kernel.tile_m;
  launch.tile_n = kernel.tile_n;
  launch.stages = kernel.stages;
  launch.threads = kernel.threads;
  launch.shared_bytes = kernel.shared_bytes;
  launch.workspace_bytes = lay_out_workspace(p, dq_sums(p).dim, false, false).bytes;
  launch.variant = heads_together_backward(p, device, kernel.tile_n);
  launch.schedule = backward_schedule(p, false);
  launch.instructions = is_plain(p) ? "mma.sync, ldmatrix, cp.async" : "mma.sync, ldmatrix, cp.async; general scores";
  launch.seconds = estimate_backward(p, device, kernel.tile_n, rates(dq_sums(p).dim, device.arch));
  return launch;
}

cudaError_t launch_all(const Plan& plan, const core::RunContext& context) {
  const Problem& p = plan.problem;
  const BackwardInstance& kernel = instance(p, *plan.device);
  const auto stream = static_cast<cudaStream_t>(context.cuda_stream);
  const BackwardRows rows(p, *context.tensors, context.workspace, dq_sums(p), kernel.tile_n, {plan.launch.variant}, 0,
                          false);
  cudaError_t error = rows.begin(stream);
  if (error == cudaSuccess && rows.key_blocks > 0) error = kernel.launch(rows.params, rows.key_blocks, stream);
  if (error == cudaSuccess && rows.params.d_bias != nullptr) {
    const auto count = static_cast<uint32_t>(bias_blocks(p, *plan.device));
    if (count > 0) error = kernels(p, *plan.device).d_bias.launch(rows.params, count, stream);
  }
  return error == cudaSuccess ? rows.finish(stream) : error;
}

int run(const Plan& plan, const core::RunContext& context) {
  DeviceScope scope(plan.problem.device);
  if (scope.error() != cudaSuccess)
    return scope.finish(scope.error(), "cuda.sm80.backward: making the device current", context.status);
  return scope.finish(launch_all(plan, context), "cuda.sm80.backward: launch", context.status);
}

int prepare(const Plan& plan, tessera_status* status) {
  const Problem& p = plan.problem;
  DeviceScope scope(p.device);
  if (scope.error() != cudaSuccess)
    return scope.finish(scope.error(), "cuda.sm80.backward: making the device current", status);
  cudaError_t error = instance(p, *plan.device).prepare();
  if (error == cudaSuccess && p.has(TESSERA_FLAG_D_BIAS)) error = kernels(p, *plan.device).d_bias.prepare();
  if (error == cudaSuccess) error = prepare_backward_rows(p.q.dtype == TESSERA_BF16, dq_sums(p));
  return scope.finish(error, "cuda.sm80.backward: loading the kernel", status);
}

}  // namespace

const core::KernelEntry kBackward{"cuda.sm80.backward", refuse, configure, run, false, prepare};

}  // namespace tessera::cuda::sm80
