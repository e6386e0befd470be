// cuda.fa1 for the host: what it takes, with which tile, its workspace and its launch.
#include "cuda/device.hpp"
#include "cuda/forward_host.hpp"
#include "cuda_fa1.hpp"
#include "status.hpp"

namespace tessera::baselines {
namespace {

using core::DeviceInfo;
using core::Plan;
using core::Problem;
using core::Refusal;

constexpr int32_t kWidest = kFa1HeadDims[std::size(kFa1HeadDims) - 1];

const Fa1Instance& instance_of(const Problem& p, int row) {
  const int32_t dim = std::max(p.head_dim_qk, p.head_dim_v);
  return (p.q.dtype == TESSERA_BF16 ? kFa1Bf16 : kFa1F16).of[dim > kFa1HeadDims[0] ? 1 : 0][row];
}

int64_t rows_of_state(const Problem& p) { return p.batch * p.heads_q * p.seqlen_q; }
int64_t state_bytes(const Problem& p) { return 4 * int64_t{p.head_dim_v} + int64_t{sizeof(float2)}; }

// O, then the statistics; nothing where a row is met once.
struct Workspace {
  int64_t statistics, bytes;
};
Workspace lay_out(const Problem& p, const Fa1Instance& instance) {
  if (p.seqlen_k <= instance.tile_n) return {0, 0};
  const int64_t o = cuda::align_256(4 * rows_of_state(p) * p.head_dim_v);
  return {o, o + cuda::align_256(int64_t{sizeof(float2)} * rows_of_state(p))};
}

template <int kRow>
Refusal refuse(const Problem& p, const DeviceInfo& device) {
  if (device.is_cpu) return {"runs on CUDA devices only"};
  if (const Refusal refusal = cuda::refuse_operands(p, TESSERA_FORWARD)) return refusal;
  if (const Refusal refusal = refuse_fa1(p)) return refusal;
  if (!cuda::is_plain(p)) return {"takes a scale above 0, over 1e-30 and below 1e30"};
  if (p.head_dim_qk > kWidest) return {"takes head dims up to 128", "head_dim_qk", p.head_dim_qk};
  if (p.head_dim_v > kWidest) return {"takes head dims up to 128", "head_dim_v", p.head_dim_v};
  if (device.arch < 80) return {"needs compute capability 8.0 or later", "arch", device.arch};
  const Fa1Instance& instance = instance_of(p, kRow);
  if (device.shared_bytes_per_block < instance.shared_bytes) {
    return {"needs more shared memory a block than the device has; bytes needed", "shared_bytes",
            instance.shared_bytes};
  }
  if (const Refusal refusal = cuda::refuse_sizes(p, instance.tile_m)) return refusal;
  return cuda::refuse_layout(p);
}

template <int kRow>
core::Launch configure(const Problem& p, const DeviceInfo& device) {
  const Fa1Instance& instance = instance_of(p, kRow);
  core::Launch launch;
  launch.tile_m = instance.tile_m;
  launch.tile_n = instance.tile_n;
  launch.stages = 1;
  launch.threads = instance.threads;
  launch.shared_bytes = instance.shared_bytes;
  launch.workspace_bytes = lay_out(p, instance).bytes;
  launch.schedule = kFa1Budgets[kRow].schedule;
  launch.instructions = "mma.sync, ldmatrix, cp.async";
  launch.schedule_bytes = fa1_bytes(p, instance.tile_n, state_bytes(p));
  // As cuda.sm80.forward's estimate; blocks beyond the multiprocessors wait, missing ones leave some idle.
  const double share = device.arch == 90 || device.arch == 100 ? 0.35 : 0.65;
  const double busy = std::min(1.0, static_cast<double>(p.batch * p.heads_q) / std::max(device.units, 1));
  const double compute = device.peak_16bit > 0 ? core::count_work(p).flops / (share * busy * device.peak_16bit) : 0;
  const double memory = device.bandwidth > 0 ? launch.schedule_bytes / (0.85 * device.bandwidth) : 0;
  launch.seconds = std::max(compute, memory) + 3e-6;
  return launch;
}

template <int kRow>
int run(const Plan& plan, const core::RunContext& context) {
  const Problem& p = plan.problem;
  if (rows_of_state(p) == 0) return core::succeed(context.status);
  const Fa1Instance& instance = instance_of(p, kRow);
  const Fa1Params params{cuda::make_params(p, *context.tensors), reinterpret_cast<float*>(context.workspace),
                         reinterpret_cast<float2*>(context.workspace + lay_out(p, instance).statistics)};
  cuda::DeviceScope scope(p.device);
  cudaError_t error = scope.error();
  if (error == cudaSuccess) {
    error = instance.launch(params, static_cast<uint32_t>(p.batch * p.heads_q),
                            static_cast<cudaStream_t>(context.cuda_stream));
  }
  return scope.finish(error, "cuda.fa1: launch", context.status);
}

template <int kRow>
int prepare(const Plan& plan, tessera_status* status) {
  cuda::DeviceScope scope(plan.problem.device);
  cudaError_t error = scope.error();
  if (error == cudaSuccess) error = instance_of(plan.problem, kRow).prepare();
  return scope.finish(error, "cuda.fa1: loading the kernel", status);
}

template <int kRow>
constexpr core::KernelEntry entry() {
  return {kFa1Budgets[kRow].cuda_row, refuse<kRow>, configure<kRow>, run<kRow>, true, prepare<kRow>};
}

}  // namespace

const core::KernelEntry kCudaFa1[kFa1Rows] = {entry<0>(), entry<1>(), entry<2>(), entry<3>()};

}  // namespace tessera::baselines
