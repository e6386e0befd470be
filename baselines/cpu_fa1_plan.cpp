// cpu.fa1: what it takes, its tiles, workspace and tasks. Which task takes a head changes no result.
#include <atomic>

#include "cpu/plan_rules.hpp"
#include "cpu/thread_pool.hpp"
#include "cpu_fa1.hpp"
#include "isa_cap.hpp"
#include "status.hpp"

namespace tessera::baselines {
namespace {

using core::DeviceInfo;
using core::Launch;
using core::Plan;
using core::Problem;
using core::Refusal;

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

struct Build {
  const CpuFa1Kernel* kernel;
  const char* instructions;
};
Build build_for(core::Isa isa) {
#if defined(__x86_64__)
  if (isa == core::Isa::avx512 || isa == core::Isa::amx) return {&kCpuFa1Avx512, "avx512"};
  if (isa == core::Isa::avx2) return {&kCpuFa1Avx2, "avx2+fma, f16c"};
#elif defined(__aarch64__)
  if (isa == core::Isa::neon) return {&kCpuFa1Neon, "neon"};
#endif
  return {&kCpuFa1Portable, "portable vectors"};
}

int64_t tasks_of(const Problem& p, const DeviceInfo& device) {
  const int64_t threads = p.threads > 0 ? p.threads : std::max(device.units, 1);
  return std::max<int64_t>(1, std::min(threads, p.batch * p.heads_q));
}

int64_t element_bytes(const Problem& p) { return p.q.dtype == TESSERA_F64 ? 8 : 4; }

CpuFa1Tiles choose_tiles(const Problem& p, const CpuFa1Kernel& kernel, int32_t kib, int64_t tasks) {
  const bool wide = p.q.dtype == TESSERA_F64;
  const int64_t element = element_bytes(p), strip = wide ? kernel.rows_f64 : kernel.rows_f32,
                lanes = wide ? kernel.lanes_f64 : kernel.lanes_f32;
  const Fa1Tile paper = fa1_tile(kib, std::max(p.head_dim_qk, p.head_dim_v), static_cast<int32_t>(element));
  CpuFa1Tiles tiles{};
  // Whole strips and vectors: below the paper's sizes, but for one strip of rows and one vector of keys at least.
  tiles.rows = std::max<int64_t>(paper.rows / strip, 1) * strip;
  tiles.keys = std::min<int64_t>(std::max<int64_t>(paper.keys / lanes, 1) * lanes, kernel.most_keys);
  tiles.head_dim_v_padded = round_up(p.head_dim_v, lanes);
  int64_t at = 0;
  const auto take = [&at](int64_t bytes) {
    const int64_t begin = at;
    at += round_up(bytes, 256);
    return begin;
  };
  const int64_t rows = p.batch * p.heads_q * p.seqlen_q;
  tiles.o_at = take(rows * tiles.head_dim_v_padded * element);
  tiles.max_at = take(rows * element);
  tiles.sum_at = take(rows * int64_t{sizeof(double)});
  tiles.scratch_at = at;
  at = 0;
  tiles.q_at = take(tiles.rows * p.head_dim_qk * element);
  tiles.k_at = take(tiles.keys * p.head_dim_qk * element);
  tiles.v_at = take(tiles.keys * tiles.head_dim_v_padded * element);
  tiles.scores_at = take(strip * kernel.scores_row * element);
  tiles.address_at = take(std::max(tiles.keys, tiles.rows) * int64_t{sizeof(void*)});
  tiles.task_bytes = at;
  tiles.bytes = tiles.scratch_at + tasks * tiles.task_bytes;
  return tiles;
}

template <int kRow>
Refusal refuse(const Problem& p, const DeviceInfo& device) {
  if (!device.is_cpu) return {"runs on the CPU only"};
  if (const Refusal refusal = cpu::refuse_operands(p)) return refusal;
  if (const Refusal refusal = refuse_fa1(p)) return refusal;
  if (p.o.dtype != p.q.dtype && (p.o.dtype != TESSERA_F32 || p.q.dtype == TESSERA_F64))
    return {"writes o in q's dtype, or in f32 for 16-bit inputs", "o.dtype", p.o.dtype};
  return {};
}

template <int kRow>
Launch configure(const Problem& p, const DeviceInfo& device) {
  const Build build = build_for(capped_isa(p, device));
  const int64_t tasks = tasks_of(p, device);
  const CpuFa1Tiles tiles = choose_tiles(p, *build.kernel, kFa1Budgets[kRow].kib, tasks);
  Launch launch;
  launch.tile_m = static_cast<int32_t>(tiles.rows);
  launch.tile_n = static_cast<int32_t>(tiles.keys);
  launch.threads = static_cast<int32_t>(tasks);
  launch.workspace_bytes = tiles.bytes;
  launch.schedule = kFa1Budgets[kRow].schedule;
  launch.instructions = build.instructions;
  launch.schedule_bytes = fa1_bytes(p, tiles.keys, element_bytes(p) * (tiles.head_dim_v_padded + 1) + 8);
  // The products reach about half of the FMA peak; what is rewritten comes from a cache while it fits one.
  launch.seconds = cpu::estimate_seconds(p, device, core::count_work(p).flops, 0, launch.threads, 0.5);
  return launch;
}

template <int kRow>
int run(const Plan& plan, const core::RunContext& context) {
  const Problem& p = plan.problem;
  const CpuFa1Kernel& kernel = *build_for(capped_isa(p, *plan.device)).kernel;
  const int64_t heads = p.seqlen_q > 0 ? p.batch * p.heads_q : 0;
  const CpuFa1Call call{&p, context.tensors, choose_tiles(p, kernel, kFa1Budgets[kRow].kib, plan.launch.threads),
                        context.workspace};
  const auto run_head = p.q.dtype == TESSERA_F64 ? kernel.head_f64 : kernel.head_f32;
  std::atomic<int64_t> next{0};
  const auto task = [&](int64_t index) {
    std::byte* scratch = call.workspace + call.tiles.scratch_at + index * call.tiles.task_bytes;
    for (int64_t head = next++; head < heads; head = next++) run_head(call, head, scratch);
  };
  cpu::parallel_tasks(*context.executor, heads == 0 ? 0 : plan.launch.threads, task);
  return core::succeed(context.status);
}

template <int kRow>
constexpr core::KernelEntry entry() {
  return {kFa1Budgets[kRow].cpu_row, refuse<kRow>, configure<kRow>, run<kRow>, true};
}

}  // namespace

const core::KernelEntry kCpuFa1[kFa1Rows] = {entry<0>(), entry<1>(), entry<2>(), entry<3>()};

}  // namespace tessera::baselines
