// Tiles, workspace and threads of the CPU backward kernel. Tasks claim work from a counter; which thread runs one
// changes no result. Where the (sequence, key head) pairs keep all threads busy a task takes one of them whole and dq
// lies in its workspace; where there are too few, a task takes one stretch of its keys and the stretches' dq are summed
// in a second step, by the same additions.
#include "cpu/backward_plan.hpp"

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

constexpr int64_t kMaxChunk = 256;  // keys; a row of scores has room for them
constexpr int64_t kMinChunk = 32;
constexpr int64_t kMaxRows = 128;       // of a block; more keep P and dS out of L2
constexpr int64_t kTileUnit = 32;       // rows and keys of a tile kernel's step
constexpr int64_t kMaxTileRows = 256;   // of its block
constexpr int64_t kFinishRows = 128;    // positions whose dq is summed at a time
constexpr double kFlopsPerTask = 1e6;   // as forward: about 20 microseconds of one core
constexpr int64_t kTasksPerThread = 4;  // that leave threads little to wait for at the end

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
int64_t ceil_div(int64_t n, int64_t unit) { return (n + unit - 1) / unit; }

int64_t threads_available(const Problem& problem, const DeviceInfo& device) {
  return problem.threads > 0 ? problem.threads : std::max(device.units, 1);
}
int64_t threads_worth(const Problem& problem) {
  return 1 + static_cast<int64_t>(std::min(core::count_work(problem).flops / kFlopsPerTask, 1e6));
}

// No dq of all stretches or all tasks takes more: below the bound every size here fits in 64 bits.
constexpr double kMostWorkspace = 0x1p60;
double most_dq_bytes(const Problem& problem) {
  const double positions = std::max(double(problem.batch) * double(problem.seqlen_q), double(problem.total_q));
  return 2 * (kMostStretches + 2) * positions * problem.heads_q * (double(problem.head_dim_qk) + 16) * 8;
}

// The chunk's K, V, dk and dv in five eighths of L2, the block's rows in a quarter.
void choose_blocks(const DeviceInfo& device, int64_t element, int64_t strip, int64_t scores_row, BackwardTiles* tiles) {
  const int64_t key_bytes = (3 * tiles->dim_qk_padded + 2 * tiles->dim_v_padded) * element;
  tiles->chunk = kMaxChunk;
  while (tiles->chunk > kMinChunk && tiles->chunk * key_bytes > device.l2_bytes * 5 / 8) tiles->chunk /= 2;
  const int64_t row_bytes = (tiles->dim_qk_padded + tiles->dim_v_padded + 2 * scores_row) * element;
  tiles->rows = std::clamp(device.l2_bytes / 4 / row_bytes, 2 * strip, kMaxRows) / strip * strip;
}

// Lays the pieces of a task's workspace one behind the other.
void lay_out(const Problem& problem, int64_t element, int64_t lanes, int64_t scores_row, BackwardTiles* tiles) {
  int64_t at = 0;
  const auto take = [&at](int64_t bytes) {
    const int64_t begin = at;
    at += round_up(bytes, 64);
    return begin;
  };
  const int64_t rows = tiles->rows, chunk = tiles->chunk, group_rows = problem.seqlen_q * problem.group;
  const int64_t dq_bytes = group_rows * tiles->dim_qk_padded * element;
  tiles->q_panels_at = take(rows * tiles->dim_qk_padded * element);
  tiles->d_o_panels_at = take(rows * tiles->dim_v_padded * element);
  tiles->k_columns_at = take(chunk * problem.head_dim_qk * element);
  tiles->v_columns_at = take(chunk * problem.head_dim_v * element);
  tiles->k_panels_at = take(chunk * tiles->dim_qk_padded * element);
  tiles->dk_at = take(chunk * tiles->dim_qk_padded * element);
  tiles->dv_at = take(chunk * tiles->dim_v_padded * element);
  tiles->probs_at = take(rows * scores_row * element);
  tiles->grads_at = take(rows * scores_row * element);
  tiles->bias_at = take(scores_row * element);
  tiles->d_bias_at = take(problem.has(TESSERA_FLAG_D_BIAS) ? rows * scores_row * element : 0);
  tiles->row_address_at = take(std::max(rows, chunk) * int64_t{sizeof(void*)});
  tiles->lse_at = take(round_up(std::max(group_rows, rows), lanes) * element);
  tiles->delta_at = take(round_up(std::max(group_rows, rows), lanes) * element);
  tiles->dq_at = take(tiles->whole ? dq_bytes : 0);
  tiles->stretch_dq_at = take(tiles->whole && tiles->stretches > 1 ? dq_bytes : 0);
  tiles->task_bytes = round_up(at, 256);
}

// The same of a tile kernel. Each block of rows is packed anew for each chunk, so both are twice as large.
void choose_tile_blocks(const Problem& problem, const DeviceInfo& device, BackwardTiles* tiles) {
  const int64_t word = 2 * tile_parts(problem), dims = tiles->dim_qk_padded + tiles->dim_v_padded,
                key_bytes = (dims + tiles->dim_qk_padded) * word + dims * 4;
  tiles->chunk = 2 * kMaxChunk;
  while (tiles->chunk > kMinChunk && tiles->chunk * key_bytes > device.l2_bytes * 5 / 8) tiles->chunk /= 2;
  const int64_t row_bytes = (2 * dims + tiles->chunk) * word;
  tiles->rows = kMaxTileRows;
  while (tiles->rows > kTileUnit && tiles->rows * row_bytes > device.l2_bytes / 4) tiles->rows /= 2;
}

void lay_out_tiles(const Problem& problem, BackwardTiles* tiles) {
  int64_t at = 0;
  const auto take = [&at](int64_t bytes) {
    const int64_t begin = at;
    at += round_up(bytes, 64);
    return begin;
  };
  const int64_t word = 2 * tile_parts(problem), rows = tiles->rows, chunk = tiles->chunk,
                all_rows = round_up(problem.seqlen_q * problem.group, kTileUnit),
                dq_bytes = all_rows * tiles->dim_qk_padded * 4;
  tiles->sums_at = take(2 * kTileUnit * kTileUnit * 4);                                       // S and dP
  tiles->bias_at = take(problem.has(TESSERA_FLAG_BIAS) ? 2 * kTileUnit * kTileUnit * 4 : 0);  // as S lies, as it came
  tiles->q_panels_at = take(rows * tiles->dim_qk_padded * word);
  tiles->d_o_panels_at = take(rows * tiles->dim_v_padded * word);
  tiles->q_pairs_at = take(rows * tiles->dim_qk_padded * word);
  tiles->d_o_pairs_at = take(rows * tiles->dim_v_padded * word);
  tiles->k_columns_at = take(chunk * tiles->dim_qk_padded * word);
  tiles->v_columns_at = take(chunk * tiles->dim_v_padded * word);
  tiles->k_panels_at = take(chunk * tiles->dim_qk_padded * word);
  tiles->dk_at = take(chunk * tiles->dim_qk_padded * 4);
  tiles->dv_at = take(chunk * tiles->dim_v_padded * 4);
  tiles->probs_at = take(rows * kTileUnit * word);
  tiles->grads_at = take(rows * kTileUnit * word);
  tiles->grad_pairs_at = take(rows * chunk * word);
  tiles->row_address_at = take(chunk * int64_t{sizeof(void*)});
  tiles->lse_at = take(all_rows * 4);
  tiles->delta_at = take(all_rows * 4);
  tiles->dq_at = take(tiles->whole ? dq_bytes : 0);
  tiles->stretch_dq_at = take(tiles->whole && tiles->stretches > 1 ? dq_bytes : 0);
  tiles->task_bytes = round_up(at, 256);
}

BackwardTiles choose_tiles(const Problem& problem, const DeviceInfo& device, const BackwardKernel& kernel) {
  const bool wide = problem.q.dtype == TESSERA_F64;
  const int64_t element = wide ? 8 : 4, strip = wide ? kernel.rows_f64 : kernel.rows_f32,
                lanes = wide ? kernel.lanes_f64 : kernel.lanes_f32;
  BackwardTiles tiles{};
  tiles.dim_qk_padded = round_up(problem.head_dim_qk, kernel.tiles ? kTileUnit : lanes);
  tiles.dim_v_padded = round_up(problem.head_dim_v, kernel.tiles ? kTileUnit : lanes);
  if (kernel.tiles) {
    choose_tile_blocks(problem, device, &tiles);
  } else {
    choose_blocks(device, element, strip, kernel.scores_row, &tiles);
  }
  tiles.stretches = count_stretches(problem, tiles.chunk, problem.seqlen_k);
  const int64_t threads = std::min(threads_available(problem, device), threads_worth(problem));
  tiles.whole = tiles.stretches == 1 || threads == 1 || problem.batch * problem.heads_kv >= kTasksPerThread * threads;
  if (kernel.tiles) {
    lay_out_tiles(problem, &tiles);
  } else {
    lay_out(problem, element, lanes, kernel.scores_row, &tiles);
  }
  const int64_t total_q = problem.layout_q == TESSERA_PACKED ? problem.total_q : problem.batch * problem.seqlen_q,
                rows = kernel.tiles ? tile_partial_rows(problem) : total_q * problem.group;
  tiles.d_sinks_bytes =
      problem.has(TESSERA_FLAG_D_SINKS) ? round_up(problem.batch * problem.heads_q * int64_t{sizeof(double)}, 256) : 0;
  tiles.partial_bytes =
      tiles.whole ? 0 : round_up(tiles.stretches * problem.heads_kv * rows * tiles.dim_qk_padded * element, 256);
  return tiles;
}

int64_t count_tasks(const Problem& problem, const BackwardTiles& tiles) {
  return problem.batch * problem.heads_kv * (tiles.whole ? 1 : tiles.stretches);
}

// Extents of a d_bias task's rectangle, and how many there are: all of a dim that broadcasts, else one sequence, one
// head, a block of rows, a chunk of keys.
struct BiasCounts {
  int64_t step[4], count[4], extent[4];
  int64_t total() const { return count[0] * count[1] * count[2] * count[3]; }
};
BiasCounts count_bias_tasks(const Problem& problem, const BackwardTiles& tiles) {
  BiasCounts counts = {
      {1, 1, tiles.rows, tiles.chunk}, {}, {problem.batch, problem.heads_q, problem.seqlen_q, problem.seqlen_k}};
  for (int d = 0; d < 4; ++d) {
    if (problem.d_bias.stride[d] == 0) counts.step[d] = std::max<int64_t>(counts.extent[d], 1);
    counts.count[d] = problem.has(TESSERA_FLAG_D_BIAS) ? ceil_div(counts.extent[d], counts.step[d]) : 0;
  }
  return counts;
}

BiasTask make_bias_task(const BiasCounts& counts, int64_t number) {
  int64_t begin[4], end[4];
  for (int d = 3; d >= 0; --d) {
    begin[d] = number % counts.count[d] * counts.step[d];
    end[d] = std::min(begin[d] + counts.step[d], counts.extent[d]);
    number /= counts.count[d];
  }
  return {begin[0],
          end[0],
          begin[2],
          end[2],
          begin[3],
          end[3],
          static_cast<int32_t>(begin[1]),
          static_cast<int32_t>(end[1])};
}

// Hands numbers [0, total) to at most `threads` tasks; body(task, number).
template <class Body>
void claim_all(const tessera_executor& executor, int64_t threads, int64_t total, const Body& body) {
  std::atomic<int64_t> next{0};
  auto task = [&](int64_t index) {
    for (int64_t number; (number = next.fetch_add(1, std::memory_order_relaxed)) < total;) body(index, number);
  };
  parallel_tasks(executor, std::min(threads, total), task);
}

void run_tasks(const BackwardCall& call, const core::RunContext& context, int64_t threads,
               const BackwardKernel::Functions& functions) {
  const Problem& problem = *call.problem;
  const BackwardTiles& tiles = call.tiles;
  // Stretches outermost: under a causal band the first ones are the long ones.
  const int64_t pairs = problem.batch * problem.heads_kv;
  claim_all(*context.executor, threads, count_tasks(problem, tiles), [&](int64_t index, int64_t number) {
    const int64_t pair = number % pairs, stretch = number / pairs;
    BackwardTask task;
    task.batch = pair / problem.heads_kv;
    task.kv_head = static_cast<int32_t>(pair % problem.heads_kv);
    task.sequence = core::locate_sequence(problem, *call.tensors, task.batch);
    const int64_t own = count_stretches(problem, tiles.chunk, task.sequence.seqlen_k);
    task.stretch_begin = stretch;
    task.stretch_end = tiles.whole ? own : stretch + 1;
    if (stretch < own) functions.task(call, task, context.workspace + index * tiles.task_bytes);
  });
  if (tiles.whole) return;
  const int64_t blocks = ceil_div(problem.seqlen_q, kFinishRows);
  claim_all(*context.executor, threads, pairs * blocks, [&](int64_t, int64_t number) {
    FinishTask task;
    task.begin = number % blocks * kFinishRows;
    task.end = task.begin + kFinishRows;
    task.batch = number / blocks / problem.heads_kv;
    task.kv_head = static_cast<int32_t>(number / blocks % problem.heads_kv);
    task.sequence = core::locate_sequence(problem, *call.tensors, task.batch);
    functions.finish(call, task);
  });
}

void sum_sinks(const BackwardCall& call) {
  const Problem& problem = *call.problem;
  for (int32_t head = 0; head < problem.heads_q; ++head) {
    double sum = 0;
    for (int64_t b = 0; b < problem.batch; ++b) sum += call.d_sinks[b * problem.heads_q + head];
    call.tensors->d_sinks[head] = static_cast<float>(sum);
  }
}

}  // namespace

Refusal refuse_backward(const Problem& problem) {
  if (problem.pass != TESSERA_BACKWARD) return {"runs the backward pass only", "pass", problem.pass};
  if (const Refusal refusal = refuse_operands(problem)) return refusal;
  if (most_dq_bytes(problem) > kMostWorkspace)
    return {"needs a workspace past 2^60 bytes for these queries", "seqlen_q", problem.seqlen_q};
  if (problem.num_splits > 1)
    return {"takes no splits: those of a forward pass do not change its gradient", "num_splits", problem.num_splits};
  return {};
}

Launch configure_backward(const Problem& problem, const DeviceInfo& device, const BackwardKernel& kernel,
                          double efficiency) {
  const BackwardTiles tiles = choose_tiles(problem, device, kernel);
  const core::Work work = core::count_work(problem);
  Launch launch;
  launch.tile_m = static_cast<int32_t>(tiles.rows);
  launch.tile_n = static_cast<int32_t>(tiles.chunk);
  const int64_t tasks = std::max(count_tasks(problem, tiles), count_bias_tasks(problem, tiles).total());
  launch.threads = static_cast<int32_t>(
      std::max<int64_t>(1, std::min({threads_available(problem, device), threads_worth(problem), tasks})));
  launch.workspace_bytes = launch.threads * tiles.task_bytes + tiles.d_sinks_bytes + tiles.partial_bytes;
  // A gradient of the bias recomputes the scores: two products more.
  const double flops = work.flops * (problem.has(TESSERA_FLAG_D_BIAS) ? 1.4 : 1.0);
  launch.seconds = estimate_seconds(problem, device, flops, work.bytes, launch.threads, efficiency);
  launch.schedule = tiles.whole ? "a task for each (sequence, key head)"
                                : "a task for each stretch of keys, dq of the stretches summed in order";
  return launch;
}

int run_backward(const Plan& plan, const core::RunContext& context, const BackwardKernel& kernel) {
  const Problem& problem = plan.problem;
  const int64_t threads = plan.launch.threads;
  BackwardCall call = {&problem, context.tensors, choose_tiles(problem, *plan.device, kernel), nullptr, nullptr};
  std::byte* shared = context.workspace + threads * call.tiles.task_bytes;
  call.d_sinks = reinterpret_cast<double*>(shared);
  call.partials = call.tiles.whole ? nullptr : shared + call.tiles.d_sinks_bytes;
  const BackwardKernel::Functions& functions = problem.q.dtype == TESSERA_F64 ? kernel.f64 : kernel.f32;
  run_tasks(call, context, threads, functions);
  const BiasCounts bias = count_bias_tasks(problem, call.tiles);
  claim_all(*context.executor, threads, bias.total(), [&](int64_t index, int64_t number) {
    functions.bias(call, make_bias_task(bias, number), context.workspace + index * call.tiles.task_bytes);
  });
  if (problem.has(TESSERA_FLAG_D_SINKS)) sum_sinks(call);
  return core::succeed(context.status);
}

}  // namespace tessera::cpu
