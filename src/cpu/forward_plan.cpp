// Blocks, workspace and threads of the CPU forward kernel. A task claims blocks from a counter until none is left, so
// the threads end together whatever the lengths; which thread runs a block changes no result.
#include "cpu/forward_plan.hpp"

#include <algorithm>
#include <atomic>

#include "cpu/plan_rules.hpp"
#include "cpu/thread_pool.hpp"
#include "status.hpp"

namespace tessera::cpu {
namespace {

using core::DeviceInfo;
using core::Launch;
using core::Plan;
using core::Problem;
using core::Refusal;

constexpr int64_t kMaxChunk = 256;  // keys; longer scores rows would leave L1
constexpr int64_t kMinChunk = 32;
// Packing a chunk costs as much as the products of 20 to 50 rows (strided K and V that come from L3): 3 to 7 %.
constexpr int64_t kMaxRows = 768;
// FLOPs that are worth waking one more thread: about 20 microseconds of one core.
constexpr double kFlopsPerTask = 1e6;

bool is_quantized(int32_t dtype) { return dtype == TESSERA_E4M3 || dtype == TESSERA_INT8; }
int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
int64_t ceil_div(int64_t n, int64_t unit) { return (n + unit - 1) / unit; }

int32_t threads_available(const Problem& problem, const DeviceInfo& device) {
  return problem.threads > 0 ? problem.threads : std::max(device.units, 1);
}

// The counts that number a call's blocks; the lengths of one sequence only empty some of them.
struct BlockCounts {
  int64_t positions, head_groups, total;
};

BlockCounts count_blocks(const Problem& problem, const ForwardTiles& tiles) {
  const int64_t positions = ceil_div(problem.seqlen_q, tiles.positions);
  const int64_t head_groups = ceil_div(problem.group, tiles.heads);
  return {positions, head_groups, problem.batch * problem.heads_kv * head_groups * positions};
}

// Block rows: as many as keep Q and O in five eighths of L2, beside the packed chunk in a quarter; fewer where that
// leaves threads idle, which changes no result.
void choose_rows(const Problem& problem, const DeviceInfo& device, int64_t strip, int64_t row_bytes,
                 ForwardTiles* tiles) {
  const int64_t budget = std::clamp(device.l2_bytes * 5 / 8 / row_bytes, 2 * strip, kMaxRows);
  tiles->heads = std::clamp<int64_t>(budget / strip, 1, std::max(problem.group, 1));
  tiles->positions = std::max(budget / tiles->heads / strip, int64_t{1}) * strip;
  tiles->positions = std::min(tiles->positions, std::max(round_up(problem.seqlen_q, strip), strip));
  const int64_t wanted = 4 * int64_t{threads_available(problem, device)};
  while (tiles->positions * tiles->heads > 8 * strip && tiles->positions > strip &&
         count_blocks(problem, *tiles).total < wanted) {
    tiles->positions = std::max(tiles->positions / 2 / strip, int64_t{1}) * strip;
  }
}

int64_t choose_chunk(const DeviceInfo& device, int64_t key_bytes) {
  int64_t chunk = kMaxChunk;
  while (chunk > kMinChunk && chunk * key_bytes > device.l2_bytes / 4) chunk /= 2;
  return chunk;
}

ForwardTiles choose_tiles(const Problem& problem, const DeviceInfo& device, const ForwardKernel& kernel) {
  const bool wide = problem.q.dtype == TESSERA_F64;
  const int64_t element = wide ? 8 : 4, strip = wide ? kernel.rows_f64 : kernel.rows_f32,
                lanes = wide ? kernel.lanes_f64 : kernel.lanes_f32;
  ForwardTiles tiles{};
  tiles.head_dim_v_padded = round_up(problem.head_dim_v, lanes);
  const int64_t row_bytes = (problem.head_dim_qk + tiles.head_dim_v_padded) * element;
  tiles.chunk = choose_chunk(device, row_bytes);
  choose_rows(problem, device, strip, row_bytes, &tiles);
  const int64_t rows = round_up(tiles.positions * tiles.heads, strip);
  int64_t at = 0;
  const auto take = [&at](int64_t bytes) {
    const int64_t begin = at;
    at += round_up(bytes, 64);
    return begin;
  };
  tiles.q_at = take(rows * problem.head_dim_qk * element);
  tiles.o_at = take(rows * tiles.head_dim_v_padded * element);
  tiles.total_at = take(problem.num_splits > 1 ? rows * tiles.head_dim_v_padded * element : 0);
  tiles.k_at = take(tiles.chunk * problem.head_dim_qk * element);
  tiles.v_at = take(tiles.chunk * tiles.head_dim_v_padded * element);
  tiles.scores_at = take(strip * kernel.scores_row * element);
  tiles.bias_at = take(kernel.scores_row * element);
  tiles.rows_at = take(rows * kernel.row_state_bytes);
  tiles.row_address_at = take(2 * kMaxChunk * int64_t{sizeof(void*)});
  tiles.scale_at = take(is_quantized(problem.k.dtype) ? 2 * kMaxChunk * element : 0);
  tiles.task_bytes = round_up(at, 256);
  return tiles;
}

// Block number -> block. Position blocks run from the last to the first: under a causal band the long ones come first.
ForwardBlock make_block(const Problem& problem, const tessera_tensors& tensors, const ForwardTiles& tiles,
                        const BlockCounts& counts, int64_t number) {
  const int64_t position = counts.positions - 1 - number % counts.positions;
  number /= counts.positions;
  const int64_t head_group = number % counts.head_groups;
  number /= counts.head_groups;
  const int64_t kv_head = number % problem.heads_kv;
  ForwardBlock block;
  block.batch = number / problem.heads_kv;
  block.sequence = core::locate_sequence(problem, tensors, block.batch);
  block.row_begin = position * tiles.positions;
  block.row_end = block.row_begin + tiles.positions;
  const int64_t head = kv_head * problem.group;
  block.head_begin = static_cast<int32_t>(head + head_group * tiles.heads);
  block.head_end = static_cast<int32_t>(head + std::min<int64_t>((head_group + 1) * tiles.heads, problem.group));
  return block;
}

}  // namespace

Refusal refuse_forward(const Problem& problem) {
  if (problem.pass != TESSERA_FORWARD) return {"runs the forward pass only", "pass", problem.pass};
  const int32_t dtype = problem.q.dtype;
  if (dtype != TESSERA_E4M3 && !is_quantized(problem.k.dtype)) {
    if (const Refusal refusal = refuse_types(problem)) return refusal;
  }
  if (const Refusal refusal = refuse_head_dims(problem)) return refusal;
  if (problem.o.dtype != dtype && problem.o.dtype != TESSERA_F32 && dtype != TESSERA_E4M3)
    return {"writes o in q's dtype or f32", "o.dtype", problem.o.dtype};
  if (problem.o.dtype == TESSERA_F32 && dtype == TESSERA_F64)
    return {"writes o of f64 inputs in f64", "o.dtype", problem.o.dtype};
  return {};
}

Launch configure_forward(const Problem& problem, const DeviceInfo& device, const ForwardKernel& kernel,
                         double efficiency) {
  const ForwardTiles tiles = choose_tiles(problem, device, kernel);
  const BlockCounts counts = count_blocks(problem, tiles);
  const core::Work work = core::count_work(problem);
  Launch launch;
  launch.tile_m = static_cast<int32_t>(tiles.positions * tiles.heads);
  launch.tile_n = static_cast<int32_t>(tiles.chunk);
  launch.num_splits = std::max(problem.num_splits, 1);
  const int64_t worth = 1 + static_cast<int64_t>(std::min(work.flops / kFlopsPerTask, 1e6));
  const int64_t tasks = std::min({int64_t{threads_available(problem, device)}, counts.total, worth});
  launch.threads = static_cast<int32_t>(std::max<int64_t>(tasks, 1));
  launch.workspace_bytes = launch.threads * tiles.task_bytes;
  launch.seconds = estimate_seconds(problem, device, work.flops, work.bytes, launch.threads, efficiency);
  launch.schedule = "blocks of query rows claimed by threads, longest first";
  return launch;
}

int run_forward(const Plan& plan, const core::RunContext& context, const ForwardKernel& kernel) {
  const Problem& problem = plan.problem;
  const ForwardCall call = {&problem, context.tensors, choose_tiles(problem, *plan.device, kernel)};
  const BlockCounts counts = count_blocks(problem, call.tiles);
  const auto run_block = problem.q.dtype == TESSERA_F64 ? kernel.block_f64 : kernel.block_f32;
  std::atomic<int64_t> next{0};
  auto task = [&](int64_t index) {
    std::byte* workspace = context.workspace + index * call.tiles.task_bytes;
    for (int64_t number = next.fetch_add(1, std::memory_order_relaxed); number < counts.total;
         number = next.fetch_add(1, std::memory_order_relaxed)) {
      run_block(call, make_block(problem, *context.tensors, call.tiles, counts, number), workspace);
    }
  };
  parallel_tasks(*context.executor, plan.launch.threads, task);
  return core::succeed(context.status);
}

}  // namespace tessera::cpu
