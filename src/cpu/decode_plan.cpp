// Splits, workspace and threads of the CPU decode kernel. Splits are claimed from a counter; which thread runs one
// changes no result, and neither does their number, since split bounds follow from the sequence alone.
#include "cpu/decode_plan.hpp"

#include <algorithm>
#include <atomic>

#include "cpu/thread_pool.hpp"
#include "status.hpp"

namespace tessera::cpu {
namespace {

using core::DeviceInfo;
using core::Launch;
using core::Problem;
using core::Refusal;

// FLOPs that are worth waking one more thread: about 20 microseconds of one core at decode's rate.
constexpr double kFlopsPerTask = 2e5;

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

int64_t splits_of(const Problem& problem, int64_t keys) {
  const int64_t size =
      problem.num_splits > 0 ? core::split_size(std::max<int64_t>(keys, 1), problem.num_splits) : kDecodeSplit;
  return std::max<int64_t>(1, (keys + size - 1) / size);
}

DecodeTiles make_tiles(const Problem& problem) {
  DecodeTiles tiles{};
  const int64_t all = problem.seqlen_q * problem.group;
  tiles.rows = std::min(all, kDecodeStrip);
  tiles.strips = (all + kDecodeStrip - 1) / kDecodeStrip;
  tiles.splits = splits_of(problem, problem.seqlen_k);
  tiles.head_dim_qk_padded = round_up(problem.head_dim_qk, 16);
  tiles.head_dim_v_padded = round_up(problem.head_dim_v, 16);
  const int64_t rows = round_up(tiles.rows, 4);
  int64_t at = 0;
  const auto take = [&at](int64_t bytes) {
    const int64_t begin = at;
    at += round_up(bytes, 64);
    return begin;
  };
  tiles.q_at = take(rows * tiles.head_dim_qk_padded * 4);
  tiles.scores_at = take(rows * kDecodeStride * 4);
  tiles.bias_at = take(kDecodeBlock * 4);
  tiles.scale_at = take(kDecodeBlock * 4);
  tiles.address_at = take(4 * kDecodeBlock * int64_t{sizeof(void*)});
  tiles.task_bytes = round_up(at, 256);
  tiles.partial_bytes =
      round_up(tiles.rows * int64_t{sizeof(PartialHeader)}, 64) + tiles.rows * tiles.head_dim_v_padded * 4;
  return tiles;
}

// Item number -> item: heads innermost, so that threads read the same stretch of the cache.
DecodeItem make_item(const DecodeCall& call, int64_t number) {
  const Problem& problem = *call.problem;
  DecodeItem item;
  item.head_kv = static_cast<int32_t>(number % problem.heads_kv);
  number /= problem.heads_kv;
  item.row_begin = number % call.tiles.strips * kDecodeStrip;
  item.batch = number / call.tiles.strips;
  item.sequence = core::locate_sequence(problem, *call.tensors, item.batch);
  item.row_end = std::min(item.row_begin + kDecodeStrip, item.sequence.rows_q * problem.group);
  item.splits = splits_of(problem, item.sequence.seqlen_k);
  return item;
}

bool is_cache_dtype(int32_t dtype) {
  return dtype == TESSERA_F32 || dtype == TESSERA_F16 || dtype == TESSERA_BF16 || dtype == TESSERA_INT8;
}

}  // namespace

Refusal refuse_decode(const Problem& problem) {
  if (problem.pass != TESSERA_FORWARD) return {"runs the forward pass only", "pass", problem.pass};
  const int32_t dtype = problem.q.dtype;
  if (dtype != TESSERA_F32 && dtype != TESSERA_F16 && dtype != TESSERA_BF16)
    return {"takes q in f32, f16 or bf16", "q.dtype", dtype};
  if (!is_cache_dtype(problem.k.dtype)) return {"takes k in f32, f16, bf16 or int8", "k.dtype", problem.k.dtype};
  if (problem.v.dtype != problem.k.dtype) return {"takes v in k's dtype", "v.dtype", problem.v.dtype};
  if (problem.o.dtype != dtype && problem.o.dtype != TESSERA_F32)
    return {"writes o in q's dtype or f32", "o.dtype", problem.o.dtype};
  if (problem.has(TESSERA_FLAG_V_MEAN)) return {"takes no v_mean", nullptr, 0};
  if (problem.head_dim_qk > 576) return {"head_dim_qk above 576", "head_dim_qk", problem.head_dim_qk};
  if (problem.head_dim_v > 512) return {"head_dim_v above 512", "head_dim_v", problem.head_dim_v};
  // Quantised caches have no other row: they stay here whatever the number of queries.
  const int64_t rows = problem.seqlen_q * problem.group;
  if (problem.k.dtype == dtype && rows > kMaxDecodeRows)
    return {"seqlen_q * group above 128", "seqlen_q * group", rows};
  return {};
}

Launch configure_decode(const Problem& problem, const DeviceInfo& device, double efficiency) {
  const DecodeTiles tiles = make_tiles(problem);
  const core::Work work = core::count_work(problem);
  const int64_t items = problem.batch * problem.heads_kv * tiles.strips;
  const int64_t available = problem.threads > 0 ? problem.threads : std::max(device.units, 1);
  const int64_t worth = 1 + static_cast<int64_t>(std::min(work.flops / kFlopsPerTask, 1e6));
  Launch launch;
  launch.tile_m = static_cast<int32_t>(tiles.rows);
  launch.tile_n = static_cast<int32_t>(kDecodeBlock);
  launch.num_splits = static_cast<int32_t>(tiles.splits);
  launch.threads = static_cast<int32_t>(std::max<int64_t>(1, std::min({available, items * tiles.splits, worth})));
  launch.workspace_bytes =
      round_up(launch.threads * tiles.task_bytes + items * tiles.splits * tiles.partial_bytes, 256);
  launch.schedule =
      problem.num_splits > 0 ? "splits as asked, merged in order" : "splits of 1024 keys, merged in order";
  const double share = std::min(1.0, double(launch.threads) / std::max(device.units, 1));
  launch.seconds = std::max(work.bytes / std::max(device.bandwidth * efficiency * share, 1.0),
                            work.flops / std::max(device.peak_f32 * 0.3 * share, 1.0));
  return launch;
}

int run_decode(const core::Plan& plan, const core::RunContext& context, const DecodeKernel& kernel) {
  const Problem& problem = plan.problem;
  const DecodeCall call = {&problem, context.tensors, make_tiles(problem)};
  const int64_t items = problem.batch * problem.heads_kv * call.tiles.strips;
  const int64_t splits = call.tiles.splits, threads = plan.launch.threads, heads = problem.heads_kv;
  std::byte* partials = context.workspace + threads * call.tiles.task_bytes;
  const auto partial_at = [&](int64_t item) { return partials + item * splits * call.tiles.partial_bytes; };
  std::atomic<int64_t> next{0}, merged{0};
  auto attend = [&](int64_t task) {
    for (int64_t unit; (unit = next.fetch_add(1, std::memory_order_relaxed)) < items * splits;) {
      const int64_t number = unit / (splits * heads) * heads + unit % heads, split = unit / heads % splits;
      const DecodeItem item = make_item(call, number);
      if (split >= item.splits || item.row_begin >= item.row_end) continue;
      std::byte* partial = partial_at(number) + split * call.tiles.partial_bytes;
      kernel.attend(call, item, split, context.workspace + task * call.tiles.task_bytes, partial);
      if (splits == 1) kernel.finish(call, item, partial);
    }
  };
  parallel_tasks(*context.executor, threads, attend);
  if (splits > 1) {
    auto finish = [&](int64_t) {
      for (int64_t number; (number = merged.fetch_add(1, std::memory_order_relaxed)) < items;) {
        kernel.finish(call, make_item(call, number), partial_at(number));
      }
    };
    parallel_tasks(*context.executor, std::min(threads, items), finish);
  }
  return core::succeed(context.status);
}

}  // namespace tessera::cpu
