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

// Of any sequence. Split sizes follow from a sequence's own length, so a shorter one may have more splits than the
// longest: of 7 splits asked for, 600 keys make 5 of 128, and 321 keys make 6 of 64.
int64_t most_splits(const Problem& problem) {
  if (problem.num_splits <= 0) return splits_of(problem, problem.seqlen_k);
  return std::clamp<int64_t>((problem.seqlen_k + 63) / 64, 1, problem.num_splits);
}

// A tile is 16 rows of 64 bytes. Of q they hold 16 columns: 16 rows of bf16, or 4 rows in three digits of 8 bits.
void take_tile_memory(const Problem& problem, DecodeTiles* tiles, const auto& take) {
  constexpr int64_t kTileBytes = 16 * 64;
  const bool digits = problem.k.dtype == TESSERA_INT8;
  const int64_t bytes = core::dtype_bytes(problem.k.dtype);
  const auto tiles_of = [](int64_t n, int64_t of) { return (n + of - 1) / of; };
  tiles->tile_q_bytes = tiles_of(tiles->rows, digits ? 4 : 16) * tiles_of(problem.head_dim_qk * bytes, 64) * kTileBytes;
  tiles->tile_q_at = take(tiles->heads * tiles->tile_q_bytes);
  tiles->tile_steps_at = take(tiles->heads * kDecodeStrip * 4);
  tiles->tile_k_at = take(kDecodeBlock * 64);
  tiles->tile_p_at = take(2 * kTileBytes);
  tiles->tile_v_at = take(tiles_of(problem.head_dim_v * bytes, 64) * kDecodeBlock * 64);
  tiles->tile_product_at = take(4 * kTileBytes);
}

DecodeTiles make_tiles(const Problem& problem, int64_t heads, bool with_tiles) {
  DecodeTiles tiles{};
  tiles.heads = heads;
  const int64_t all = problem.seqlen_q * problem.group;
  tiles.rows = std::min(all, kDecodeStrip);
  tiles.strips = (all + kDecodeStrip - 1) / kDecodeStrip;
  tiles.splits = most_splits(problem);
  tiles.head_dim_qk_padded = round_up(problem.head_dim_qk, 16);
  tiles.head_dim_v_padded = round_up(problem.head_dim_v, 16);
  const int64_t rows = round_up(tiles.rows, 4);
  int64_t at = 0;
  const auto take = [&at](int64_t bytes) {
    const int64_t begin = at;
    at += round_up(bytes, 64);
    return begin;
  };
  tiles.rows_at = take(heads * tiles.rows * int64_t{sizeof(DecodeRowState)});
  tiles.q_at = take(heads * rows * tiles.head_dim_qk_padded * 4);
  tiles.scores_at = take(rows * kDecodeStride * 4);
  tiles.bias_at = take(kDecodeBlock * 4);
  tiles.scale_at = take(kDecodeBlock * 4);
  tiles.address_at = take(8 * kDecodeBlock * int64_t{sizeof(void*)});
  if (with_tiles) take_tile_memory(problem, &tiles, take);
  tiles.task_bytes = round_up(at, 256);
  tiles.partial_o_at = round_up(tiles.rows * int64_t{sizeof(PartialHeader)}, 64);
  tiles.partial_bytes = tiles.partial_o_at + tiles.rows * tiles.head_dim_v_padded * 4;
  return tiles;
}

// An eighth of an L1 of 48 KiB holds the rows on their way beside those in use; 32 KiB are too few. Where heads lie
// side by side, rows fall into few of L1's sets: more than 32 push one another out.
int64_t near_rows(const Problem& problem, const DeviceInfo& device) {
  constexpr int64_t kLeastL1 = 48 << 10, kFewest = 8, kMost = 32;
  const int64_t row = std::max(problem.head_dim_qk, problem.head_dim_v) * core::dtype_bytes(problem.k.dtype);
  if (device.l1_bytes < kLeastL1) return 0;
  return std::clamp(device.l1_bytes / 8 / row, kFewest, kMost);
}

int64_t magnitude(int64_t n) { return n < 0 ? -n : n; }

// The kv heads that walk the keys together. Several where a key's heads lie closer together than a head's keys, so that
// memory is read in its order; as few as leave every thread several units; and so few that two blocks of their keys and
// values, one at work and one on its way, fill half of L2 at most.
int64_t heads_of_unit(const Problem& problem, const DeviceInfo& device, int64_t threads) {
  constexpr int64_t kUnitsPerThread = 4;
  if (magnitude(problem.k.head_stride) >= magnitude(problem.k.row_stride)) return 1;
  const int64_t row_bytes = problem.head_dims() * core::dtype_bytes(problem.k.dtype) * kDecodeBlock * 2;
  const int64_t fit = std::max<int64_t>(1, device.l2_bytes / 2 / row_bytes);
  const int64_t strips = (problem.seqlen_q * problem.group + kDecodeStrip - 1) / kDecodeStrip;
  const int64_t all = problem.batch * strips * problem.heads_kv * splits_of(problem, problem.seqlen_k);
  return std::clamp<int64_t>(all / (threads * kUnitsPerThread), 1, std::min<int64_t>(fit, problem.heads_kv));
}

int64_t units_of_strip(const Problem& problem, int64_t heads) { return (problem.heads_kv + heads - 1) / heads; }

// Unit number -> unit of `heads` kv heads.
DecodeUnit make_unit(const DecodeCall& call, int64_t number, int64_t heads) {
  const Problem& problem = *call.problem;
  const int64_t units = units_of_strip(problem, heads);
  DecodeUnit unit;
  unit.head_begin = static_cast<int32_t>(number % units * heads);
  unit.head_end = static_cast<int32_t>(std::min<int64_t>(unit.head_begin + heads, problem.heads_kv));
  number /= units;
  unit.row_begin = number % call.tiles.strips * kDecodeStrip;
  unit.batch = number / call.tiles.strips;
  unit.sequence = core::locate_sequence(problem, *call.tensors, unit.batch);
  unit.row_end = std::min(unit.row_begin + kDecodeStrip, unit.sequence.rows_q * problem.group);
  unit.splits = splits_of(problem, unit.sequence.seqlen_k);
  return unit;
}

// The next piece of [0, total): half of an even share of what is left, so that a thread walks long stretches of the
// cache and all threads end together.
core::Range claim(std::atomic<int64_t>* next, int64_t total, int64_t threads) {
  int64_t begin = next->load(std::memory_order_relaxed), end = 0;
  do {
    if (begin >= total) return {total, total};
    end = begin + std::max<int64_t>(1, (total - begin) / (2 * threads));
  } while (!next->compare_exchange_weak(begin, end, std::memory_order_relaxed));
  return {begin, end};
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
  if (problem.v_order != 0) return {"reads v in the order of its rows only", "v_order", problem.v_order};
  if (problem.head_dim_qk > 576) return {"head_dim_qk above 576", "head_dim_qk", problem.head_dim_qk};
  if (problem.head_dim_v > 512) return {"head_dim_v above 512", "head_dim_v", problem.head_dim_v};
  // Quantised caches have no other row: they stay here whatever the number of queries.
  const int64_t rows = problem.seqlen_q * problem.group;
  if (problem.k.dtype == dtype && rows > kMaxDecodeRows)
    return {"seqlen_q * group above 128", "seqlen_q * group", rows};
  // The splits' partial states, in double because the product itself may not fit 64 bits.
  const int64_t strips = (rows + kDecodeStrip - 1) / kDecodeStrip;
  const double state_bytes = double(kDecodeStrip) * double(4 * round_up(problem.head_dim_v, 16) + 64);
  const double states =
      double(problem.batch) * double(problem.heads_kv) * double(strips) * double(most_splits(problem));
  if (states * state_bytes > 0x1p58)
    return {"needs a workspace past 2^58 bytes for these sequences", "batch", problem.batch};
  return {};
}

Launch configure_decode(const Problem& problem, const DeviceInfo& device, const DecodeKernel& kernel,
                        double efficiency) {
  const core::Work work = core::count_work(problem);
  const int64_t available = problem.threads > 0 ? problem.threads : std::max(device.units, 1);
  const int64_t worth = 1 + static_cast<int64_t>(std::min(work.flops / kFlopsPerTask, 1e6));
  const int64_t heads = heads_of_unit(problem, device, std::min(available, worth));
  const DecodeTiles tiles = make_tiles(problem, heads, kernel.tiles);
  const int64_t units = problem.batch * tiles.strips * units_of_strip(problem, heads) * tiles.splits;
  const int64_t states = problem.batch * tiles.strips * problem.heads_kv * tiles.splits;
  Launch launch;
  launch.tile_m = static_cast<int32_t>(tiles.rows);
  launch.tile_n = static_cast<int32_t>(kDecodeBlock);
  launch.num_splits = static_cast<int32_t>(tiles.splits);
  launch.variant = static_cast<int32_t>(heads);
  launch.ahead = static_cast<int32_t>(near_rows(problem, device));
  launch.threads = static_cast<int32_t>(std::max<int64_t>(1, std::min({available, units, worth})));
  launch.workspace_bytes = round_up(launch.threads * tiles.task_bytes + states * tiles.partial_bytes, 256);
  launch.schedule =
      problem.num_splits > 0 ? "splits as asked, merged in order" : "splits of 1024 keys, merged in order";
  const double share = std::min(1.0, double(launch.threads) / std::max(device.units, 1));
  launch.seconds = std::max(work.bytes / std::max(device.bandwidth * efficiency * share, 1.0),
                            work.flops / std::max(device.peak_f32 * 0.3 * share, 1.0));
  return launch;
}

int run_decode(const core::Plan& plan, const core::RunContext& context, const DecodeKernel& kernel) {
  const Problem& problem = plan.problem;
  DecodeCall call = {&problem, context.tensors, make_tiles(problem, plan.launch.variant, kernel.tiles)};
  call.tiles.near_rows = plan.launch.ahead;
  const DecodeTiles& tiles = call.tiles;
  const int64_t splits = tiles.splits, threads = plan.launch.threads;
  const int64_t per_strip = units_of_strip(problem, tiles.heads), strips = problem.batch * tiles.strips;
  const int64_t head_bytes = splits * tiles.partial_bytes;
  std::byte* partials = context.workspace + threads * tiles.task_bytes;
  const auto partial_at = [&](int64_t strip, int64_t head) {
    return partials + (strip * problem.heads_kv + head) * head_bytes;
  };
  const int64_t total = strips * per_strip * splits;
  std::atomic<int64_t> next{0}, merged{0};
  auto attend = [&](int64_t task) {
    for (core::Range mine; !(mine = claim(&next, total, threads)).empty();) {
      for (int64_t n = mine.begin; n < mine.end; ++n) {
        const int64_t strip = n / splits / per_strip, split = n % splits;
        const DecodeUnit unit = make_unit(call, n / splits, tiles.heads);
        if (split >= unit.splits || unit.row_begin >= unit.row_end) continue;
        kernel.attend(call, unit, split, n + 1 < mine.end && split + 1 < unit.splits,
                      context.workspace + task * tiles.task_bytes,
                      partial_at(strip, unit.head_begin) + split * tiles.partial_bytes, head_bytes);
        for (DecodeUnit one = unit; splits == 1 && one.head_begin < unit.head_end; ++one.head_begin)
          kernel.finish(call, one, partial_at(strip, one.head_begin));
      }
    }
  };
  parallel_tasks(*context.executor, threads, attend);
  if (splits == 1) return core::succeed(context.status);
  const int64_t heads = strips * problem.heads_kv;
  auto finish = [&](int64_t) {
    for (int64_t n; (n = merged.fetch_add(1, std::memory_order_relaxed)) < heads;)
      kernel.finish(call, make_unit(call, n, 1), partial_at(n / problem.heads_kv, n % problem.heads_kv));
  };
  parallel_tasks(*context.executor, std::min(threads, heads), finish);
  return core::succeed(context.status);
}

}  // namespace tessera::cpu
