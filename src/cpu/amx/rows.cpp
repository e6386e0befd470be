// The rows of the tile kernels, cpu.amx.* and cpu.amx_emulated.*: what they refuse, how forward cuts its work, and
// their run. Decode shares its plan with the vector rows.
#include "cpu/amx/rows.hpp"

#include <algorithm>
#include <atomic>

#include "cpu/amx/kernel.hpp"
#include "cpu/backward_plan.hpp"
#include "cpu/decode_plan.hpp"
#include "cpu/plan_rules.hpp"
#include "cpu/thread_pool.hpp"
#include "status.hpp"

namespace tessera::cpu::amx {
namespace {

using core::DeviceInfo;
using core::Launch;
using core::Problem;
using core::Refusal;

// Below this a unit of 32 rows is mostly padding, and the vector rows are faster.
constexpr int64_t kLeastQueries = 16;

Refusal refuse_problem(const Problem& problem) {
  if (problem.pass != TESSERA_FORWARD) return {"forward only"};
  if (problem.q.dtype == TESSERA_F64 || problem.q.dtype == TESSERA_E4M3) return {"bf16, f16 and f32 only"};
  if (problem.num_splits > 1) return {"splits are for the vector rows", "splits", problem.num_splits};
  return refuse_operands(problem);
}

Refusal refuse_machine(const Problem& problem, const DeviceInfo& device) {
  if (!device.has_amx_bf16 || device.isa < core::Isa::amx || device.isa == core::Isa::neon)
    return {"this CPU has no AMX, the system does not permit it, or TESSERA_ISA caps it"};
  if (problem.isa != TESSERA_ISA_AUTO && problem.isa != TESSERA_ISA_AMX)
    return {"isa= caps the instruction set below amx"};
  return {};
}

// Three parts and the exponentials outweigh the products there: 58 ms for 48 at d 16, 1.0 at d 32 (docs/notes/cpu.md).
constexpr int64_t kLeastF32Dims = 80;

// Below this a vector row is as fast on bf16 (docs/notes/cpu.md). int8 keys cost the vectors twice as much.
constexpr int64_t kLeastBf16Rows = 8;

// f16 and f32 caches would need each element as two or three bf16: the vector rows widen them in fewer instructions.
Refusal refuse_cache(const Problem& problem) {
  if (problem.k.dtype != TESSERA_BF16 && problem.k.dtype != TESSERA_INT8)
    return {"takes k in bf16 or int8, as its tiles do", "k.dtype", problem.k.dtype};
  return {};
}

int64_t units_of(const Problem& problem) { return (problem.seqlen_q + kUnit - 1) / kUnit * problem.group; }

// Units an item: as many as share the packed K and V within three quarters of L2, fewer when threads would go without
// work.
int64_t units_per_item(const Problem& problem, const DeviceInfo& device, int64_t threads) {
  const int64_t fixed = make_shape(problem, 0).task_bytes, each = make_shape(problem, 1).unit_bytes;
  const int64_t fit = (device.l2_bytes * 3 / 4 - fixed) / each;
  const int64_t all = units_of(problem) * problem.batch * problem.heads_kv;
  const int64_t fair = (all + 4 * threads - 1) / (4 * threads);  // four items a thread even out causal work
  const int64_t most = std::max<int64_t>(1, std::min({fit, fair, kMaxUnits}));
  const int64_t own = std::max<int64_t>(1, units_of(problem)), items = (own + most - 1) / most;
  return (own + items - 1) / items;  // of equal size: one of a few units would pack as much as the others
}

Launch configure_with(const Problem& problem, const DeviceInfo& device, const char* instructions, double efficiency) {
  const int64_t threads = problem.threads > 0 ? problem.threads : device.units;
  const int64_t units = units_per_item(problem, device, threads);
  const int64_t items = (units_of(problem) + units - 1) / units * problem.batch * problem.heads_kv;
  Launch launch;
  launch.tile_m = static_cast<int32_t>(kUnit);
  launch.tile_n = static_cast<int32_t>(kStep);
  launch.threads = static_cast<int32_t>(std::max<int64_t>(1, std::min(threads, items)));
  launch.workspace_bytes = launch.threads * make_shape(problem, units).task_bytes;
  launch.variant = static_cast<int32_t>(units);
  constexpr const char* kSchedules[] = {
      "32-row units share packed chunks of 256 keys",
      "32-row units share packed chunks of 256 keys; f16 as two bf16 parts, four products for scores, three for values",
      "32-row units share packed chunks of 256 keys; f32 as three bf16 parts, six products for one"};
  constexpr double kShares[] = {1, 0.5, 0.4};  // measured, of bf16's rate
  const int64_t parts = make_shape(problem, units).parts;
  launch.schedule = kSchedules[parts - 1];
  launch.instructions = instructions;
  const double share = efficiency * kShares[parts - 1];
  launch.seconds =
      core::count_work(problem).flops / (device.peak_16bit * share * launch.threads / std::max(1, device.units));
  return launch;
}

int run_with(const Kernel& kernel, const core::Plan& plan, const core::RunContext& context) {
  const Problem& problem = plan.problem;
  const int64_t units = plan.launch.variant;
  const Shape shape = make_shape(problem, units);
  const int64_t blocks = (units_of(problem) + units - 1) / units;
  const int64_t items = blocks * problem.batch * problem.heads_kv;
  std::atomic<int64_t> next{0};
  auto task = [&](int64_t index) {
    std::byte* memory = context.workspace + index * shape.task_bytes;
    kernel.begin();
    for (int64_t item; (item = next.fetch_add(1, std::memory_order_relaxed)) < items;) {
      // Last rows first: under a causal mask they are the longest.
      const int64_t block = blocks - 1 - item / (problem.batch * problem.heads_kv);
      const int64_t pair = item % (problem.batch * problem.heads_kv);
      Item work{&problem,
                context.tensors,
                &shape,
                core::locate_sequence(problem, *context.tensors, pair / problem.heads_kv),
                pair / problem.heads_kv,
                block * units,
                0,
                static_cast<int32_t>(pair % problem.heads_kv)};
      const int64_t own = (work.sequence.rows_q + kUnit - 1) / kUnit * problem.group;
      work.unit_end = std::min(own, work.unit_begin + units);
      if (work.unit_begin < work.unit_end) kernel.item(work, memory);
    }
    kernel.end();
  };
  parallel_tasks(*context.executor, std::min<int64_t>(plan.launch.threads, items), task);
  return TESSERA_OK;
}

}  // namespace

Refusal refuse_native(const Problem& problem, const DeviceInfo& device) {
  const Refusal refusal = refuse_machine(problem, device);
  if (refusal) return refusal;
  if (problem.seqlen_q < kLeastQueries)
    return {"fewer than 16 queries leave its tiles empty", "seqlen_q", problem.seqlen_q};
  return refuse_problem(problem);
}

Refusal refuse_emulated(const Problem& problem, const DeviceInfo&) { return refuse_problem(problem); }

Launch configure_native(const Problem& problem, const DeviceInfo& device) {
  return configure_with(problem, device, "amx-bf16, avx512", 0.22);
}
Launch configure_emulated(const Problem& problem, const DeviceInfo& device) {
  return configure_with(problem, device, "amx-bf16 emulated", 0.001);
}

int run_emulated(const core::Plan& plan, const core::RunContext& context) { return run_with(kEmulated, plan, context); }

Refusal refuse_decode_native(const Problem& problem, const DeviceInfo& device) {
  Refusal refusal = refuse_machine(problem, device);
  if (!refusal && problem.k.dtype == TESSERA_INT8 && !device.has_amx_int8) refusal = {"this CPU has no AMX-INT8"};
  if (!refusal) refusal = refuse_decode_emulated(problem, device);
  const int64_t rows = problem.seqlen_q * problem.group;
  if (!refusal && problem.k.dtype == TESSERA_BF16 && rows < kLeastBf16Rows)
    return {"fewer than 8 rows of a key head leave its tiles empty", "seqlen_q * group", rows};
  return refusal;
}
Refusal refuse_decode_emulated(const Problem& problem, const DeviceInfo&) {
  const Refusal refusal = refuse_decode(problem);
  return refusal ? refusal : refuse_cache(problem);
}
int run_decode_emulated(const core::Plan& plan, const core::RunContext& context) {
  return run_decode(plan, context, kDecodeAmxEmulated);
}
Launch configure_decode_emulated(const Problem& problem, const DeviceInfo& device) {
  Launch launch = configure_decode(problem, device, kDecodeAmxEmulated, 0.01);
  launch.instructions = "amx-bf16, amx-int8 emulated";
  return launch;
}
// Both builds lay out the task's memory alike.
Launch configure_decode_native(const Problem& problem, const DeviceInfo& device) {
  Launch launch = configure_decode(problem, device, kDecodeAmxEmulated, 0.8);
  launch.instructions = "amx-bf16, amx-int8, avx512";
  return launch;
}

Refusal refuse_backward_native(const Problem& problem, const DeviceInfo& device) {
  Refusal refusal = refuse_machine(problem, device);
  if (!refusal) refusal = refuse_backward_emulated(problem, device);
  if (refusal) return refusal;
  const int64_t rows = problem.seqlen_q * problem.group, dims = int64_t{problem.head_dim_qk} + problem.head_dim_v;
  if (rows < kUnit) return {"fewer than 32 rows of a key head leave its tiles empty", "seqlen_q * group", rows};
  if (problem.q.dtype == TESSERA_F32 && dims < kLeastF32Dims)
    return {"head dims of f32 that add up to less than 80", "head_dim_qk + head_dim_v", dims};
  return {};
}
Refusal refuse_backward_emulated(const Problem& problem, const DeviceInfo&) {
  if (const Refusal refusal = refuse_backward(problem)) return refusal;
  if (problem.q.dtype == TESSERA_F64) return {"takes f32, f16 and bf16", "q.dtype", problem.q.dtype};
  if (problem.has(TESSERA_FLAG_D_BIAS)) return {"leaves the gradient of a bias to the vector rows"};
  // Each sequence's rows fill whole units, which a workspace of very many short ones may not hold.
  if (double(problem.batch) * problem.heads_kv * kUnit * 2 * (kMostStretches + 2) * 4 * 608 > 0x1p60)
    return {"needs a workspace past 2^60 bytes for these sequences", "batch", problem.batch};
  return {};
}
Launch configure_backward_emulated(const Problem& problem, const DeviceInfo& device) {
  Launch launch = configure_backward(problem, device, kBackwardAmxEmulated, 0.001);
  launch.instructions = "amx-bf16 emulated";
  return launch;
}
// Both builds lay out the task's memory alike.
Launch configure_backward_native(const Problem& problem, const DeviceInfo& device) {
  // Shares of the FMA peak that the products' FLOPs would take.
  const double share = problem.q.dtype == TESSERA_F32 ? 0.85 : problem.q.dtype == TESSERA_F16 ? 1.5 : 3.2;
  Launch launch = configure_backward(problem, device, kBackwardAmxEmulated, share);
  launch.instructions = "amx-bf16, avx512";
  return launch;
}
int run_backward_emulated(const core::Plan& plan, const core::RunContext& context) {
  return run_backward(plan, context, kBackwardAmxEmulated);
}

#if defined(__x86_64__)
int run_backward_native(const core::Plan& plan, const core::RunContext& context) {
  return run_backward(plan, context, kBackwardAmx);
}
int run_decode_native(const core::Plan& plan, const core::RunContext& context) {
  return run_decode(plan, context, kDecodeAmx);
}
int run_native(const core::Plan& plan, const core::RunContext& context) { return run_with(kNative, plan, context); }
#else
int run_backward_native(const core::Plan&, const core::RunContext& context) {
  return core::fail(context.status, TESSERA_INTERNAL, "cpu.amx.backward needs an x86-64 CPU");
}
int run_decode_native(const core::Plan&, const core::RunContext& context) {
  return core::fail(context.status, TESSERA_INTERNAL, "cpu.amx.decode needs an x86-64 CPU");
}
int run_native(const core::Plan&, const core::RunContext& context) {
  return core::fail(context.status, TESSERA_INTERNAL, "cpu.amx.forward needs an x86-64 CPU");
}
#endif

}  // namespace tessera::cpu::amx
