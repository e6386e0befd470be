// cuda.sm80.decode for the host: which problems it takes, how it splits their keys, and how it is launched.
#include <algorithm>
#include <atomic>
#include <cmath>

#include "../device.hpp"
#include "../forward_host.hpp"
#include "../kernels.hpp"
#include "decode_config.hpp"
#include "launch.hpp"

namespace tessera::cuda::sm80 {
namespace {

using core::DeviceInfo;
using core::Launch;
using core::Plan;
using core::Problem;
using core::Refusal;

// Keys of a split where a sequence's result may not depend on its batch mates.
constexpr int64_t kInvariantSplit = 1024;
// Measured on an H200 (docs/notes/decode.md). A launch; a block's start until its first keys are there, and its end; a
// merge and what each state adds to it.
constexpr double kLaunchSeconds = 2e-6, kBlockSeconds = 1.5e-6, kMergeSeconds = 1.5e-6, kStateSeconds = 2.5e-8;
// For each further block that shares a multiprocessor: it starts behind the others.
constexpr double kSharedSeconds = 3.2e-6;
// A tile of keys of a block that has a multiprocessor to itself: the warps' own instructions, one after another. Pages
// are looked up, which takes longer, yet dense and paged caches are split alike, so that their results are the same
// bits. Bytes are converted; 8 warps share the multiprocessor's units two by two.
constexpr double kTileSeconds = 0.66e-6, kByteTileSeconds = 0.87e-6, kWideByteTileSeconds = 1.35e-6;
// With 8 warps, where all keys have one scale: then a block a multiprocessor is enough.
constexpr double kConstantTileSeconds = 1.0e-6;
// Of the device's bandwidth, what blocks reach together.
constexpr double kBandwidthShare = 0.91;

int64_t rows_of(const Problem& p) { return p.seqlen_q * p.group; }

const DecodeInstance& decode_instance(const Problem& p) {
  static const DecodeBuckets* const kBuckets[][3] = {{&kDecodeF16, &kDecodeF16Int8, &kDecodeF16E4m3},
                                                     {&kDecodeBf16, &kDecodeBf16Int8, &kDecodeBf16E4m3}};
  const size_t cache = p.k.dtype == TESSERA_INT8 ? 1 : (p.k.dtype == TESSERA_E4M3 ? 2 : 0);
  const DecodeBuckets& buckets = *kBuckets[p.q.dtype == TESSERA_BF16][cache];
  const DecodePair& pair = buckets.of[head_dim_bucket(kDecodeBuckets, p)];
  return rows_of(p) <= pair.few.tile_rows ? pair.few : pair.many;
}

bool is_quantised(const Problem& p) { return p.k.dtype != p.q.dtype; }

// Whether all keys that a block reads have one scale, and all values.
bool has_constant_scales(const Problem& p) {
  const auto is_constant = [&](const core::ScaleOperand& scale) {
    return (scale.rows == 0 || scale.stride[1] == 0) && (p.page_size == 0 || scale.stride[0] == 0);
  };
  return is_constant(p.k_scale) && is_constant(p.v_scale);
}

// How a problem is cut into blocks.
struct Cut {
  const DecodeInstance* instance;
  int32_t row_tiles;
  int64_t block_rows, row_blocks, units, slots;  // slots: blocks that the device holds at a time
  int64_t splits, split_keys;
};

int64_t splits_at_most(const Problem& p) { return std::max<int64_t>(1, (p.seqlen_k + 63) / 64); }

// Keys that a block's rows see of the longest sequence.
int64_t seen_keys(const Problem& p) {
  if (p.left < 0 || p.left >= p.seqlen_k) return p.seqlen_k;
  const int64_t right = p.right < 0 ? p.seqlen_k : p.right;
  return std::min(p.seqlen_k, p.left + 1 + std::min(right, p.seqlen_k) + p.seqlen_q);
}

// Waves of blocks that share the device's bandwidth, each block bounded by its own instructions.
double estimate_seconds(const Problem& p, const DeviceInfo& device, const Cut& c, int64_t splits) {
  if (device.bandwidth <= 0 || c.units == 0) return kLaunchSeconds;
  const int64_t keys = c.split_keys > 0 ? c.split_keys : core::split_size(std::max<int64_t>(1, p.seqlen_k), splits);
  const int element = core::dtype_bytes(p.k.dtype);
  const double row_bytes = static_cast<double>(p.head_dims()) * element;
  const int64_t seen = seen_keys(p), working = std::min(splits, (seen + keys - 1) / keys);
  const double bytes = row_bytes * static_cast<double>(std::min(seen, keys));
  const double wide_tile = has_constant_scales(p) ? kConstantTileSeconds : kWideByteTileSeconds;
  const double byte_tile = c.instance->warps > 4 ? wide_tile : kByteTileSeconds;
  const double tile = element == 1 ? byte_tile : kTileSeconds;
  const double rate = row_bytes * c.instance->tile_n / tile, bandwidth = kBandwidthShare * device.bandwidth;
  // Where `sharing` blocks could just take all of the bandwidth, they do not: none asks ahead of its own turn.
  const auto wave = [&](double sharing) {
    return bytes / rate * std::pow(1 + std::pow(rate * sharing / bandwidth, 8), 0.125);
  };
  const auto blocks = static_cast<double>(c.units * working), slots = static_cast<double>(c.slots);
  const double waves = std::floor(blocks / slots), rest = blocks - waves * slots;
  double seconds = kLaunchSeconds + waves * wave(slots);
  if (rest > 0) seconds += wave(rest);
  // Blocks of later waves start while others read.
  seconds += kBlockSeconds + kSharedSeconds * std::ceil(std::min(blocks, slots) / device.units - 1);
  if (splits > 1) seconds += kMergeSeconds + kStateSeconds * static_cast<double>(splits);
  return seconds;
}

void choose_splits(const Problem& p, const DeviceInfo& device, Cut* c) {
  const int64_t most = splits_at_most(p);
  c->splits = 1;
  if (p.num_splits > 0) {
    c->splits = std::min<int64_t>(p.num_splits, most);
    return;
  }
  if (p.has(TESSERA_FLAG_BATCH_INVARIANT)) {
    c->splits = std::max<int64_t>(1, (p.seqlen_k + kInvariantSplit - 1) / kInvariantSplit);
    c->split_keys = c->splits > 1 ? kInvariantSplit : 0;
    return;
  }
  if (c->units == 0) return;
  // More blocks than four waves cost their starts and gain no balance.
  const int64_t hidden = std::max<int64_t>(1, p.seqlen_k / std::max<int64_t>(1, seen_keys(p)));
  const int64_t tried = std::min({most, int64_t{1024}, (4 * c->slots + c->units - 1) / c->units * hidden});
  double best = estimate_seconds(p, device, *c, 1);
  for (int64_t splits = 2; splits <= tried; ++splits) {
    const double seconds = estimate_seconds(p, device, *c, splits);
    if (seconds >= best) continue;
    best = seconds;
    c->splits = splits;
  }
}

// Everything but the splits.
Cut cut_rows(const Problem& p, const DeviceInfo& device) {
  constexpr int64_t kReserved = 1024;  // bytes a block that the device keeps of an SM's shared memory
  Cut c{};
  c.instance = &decode_instance(p);
  const int64_t rows = rows_of(p), tiles = (rows + c.instance->tile_rows - 1) / c.instance->tile_rows;
  c.row_tiles = static_cast<int32_t>(tiles <= 1 ? 1 : (tiles <= 2 ? 2 : std::min(4, c.instance->warps)));
  c.block_rows = int64_t{c.instance->tile_rows} * c.row_tiles;
  c.row_blocks = (rows + c.block_rows - 1) / c.block_rows;
  c.units = p.batch * p.heads_kv * c.row_blocks;
  const int64_t fit = (device.shared_bytes_per_block + kReserved) / (c.instance->shared_bytes + kReserved);
  c.slots = device.units * std::clamp<int64_t>(fit, 1, c.instance->blocks_per_sm);
  return c;
}

Cut cut(const Problem& p, const DeviceInfo& device) {
  Cut c = cut_rows(p, device);
  choose_splits(p, device, &c);
  return c;
}

// The cut that the plan's launch was made from.
Cut cut_of(const Plan& plan) {
  const Problem& p = plan.problem;
  Cut c = cut_rows(p, *plan.device);
  c.splits = plan.launch.num_splits;
  c.split_keys = c.splits > 1 && p.num_splits == 0 && p.has(TESSERA_FLAG_BATCH_INVARIANT) ? kInvariantSplit : 0;
  return c;
}

// Rows of a unit that its states are kept of.
int64_t state_rows(const Problem& p, const Cut& c) { return std::min(c.block_rows, rows_of(p)); }

// Bytes of the workspace's parts, each a multiple of 256.
struct Parts {
  int64_t states, statistics, arrivals;
};
Parts parts_of(const Problem& p, const Cut& c) {
  if (c.splits == 1) return {0, 0, 0};
  const int64_t rows = c.units * c.splits * state_rows(p, c);
  return {align_256(rows * c.instance->head_dim * 4), align_256(rows * 8), align_256(c.units * 8)};
}

// Whether lengths or places of sequences lie in memory.
bool looks_up(const ForwardParams& f) {
  return f.cu_seqlens_q != nullptr || f.cu_seqlens_k != nullptr || f.seqused_q != nullptr || f.seqused_k != nullptr ||
         f.leftpad != nullptr || f.batch_idx != nullptr;
}

// Whether that is seqused_k alone.
bool looks_up_used(const ForwardParams& f) {
  return f.seqused_k != nullptr && f.cu_seqlens_q == nullptr && f.cu_seqlens_k == nullptr && f.seqused_q == nullptr &&
         f.leftpad == nullptr && f.batch_idx == nullptr && f.cu_seqlens_new == nullptr;
}

// What other rows do better.
Refusal refuse_rows(const Problem& p) {
  if (rows_of(p) > kMaxDecodeRows) return {"takes up to 64 rows", "seqlen_q * group", rows_of(p)};
  if (p.seqlen_q > 1 && p.seqlen_k < kLeastKeys * p.seqlen_q)
    return {"takes several queries over 4 keys each", "seqlen_k", p.seqlen_k};
  return {};
}

// No other row takes caches of bytes, so the number of rows is not bounded.
Refusal refuse_bytes(const Problem& p) {
  if (p.head_dim_qk % 16 != 0)
    return {"takes head_dim_qk of int8 and e4m3 in multiples of 16", "head_dim_qk", p.head_dim_qk};
  if (p.head_dim_v % 16 != 0)
    return {"takes head_dim_v of int8 and e4m3 in multiples of 16", "head_dim_v", p.head_dim_v};
  return {};
}

Refusal refuse_decode(const Problem& p, const DeviceInfo& device) {
  if (device.is_cpu) return {"runs on CUDA devices only"};
  if (const Refusal refusal = refuse_operands(p, TESSERA_FORWARD, true)) return refusal;
  if (device.arch < 80) return {"needs compute capability 8.0 or later", "arch", device.arch};
  if (const Refusal refusal = refuse_layout(p)) return refusal;
  if (p.seqlen_q > kMaxInt / p.group) return {"takes at most 2147483647 rows", "seqlen_q", p.seqlen_q};
  if (const Refusal refusal = is_quantised(p) ? refuse_bytes(p) : refuse_rows(p)) return refusal;
  if (p.sm_margin != 0) return {"has no sm_margin: its blocks are not persistent", "sm_margin", p.sm_margin};
  const DecodeInstance& instance = decode_instance(p);
  if (device.shared_bytes_per_block < instance.shared_bytes) {
    return {"needs more shared memory a block than the device has; bytes needed", "shared_bytes",
            instance.shared_bytes};
  }
  if (const Refusal refusal = refuse_sizes(p, 16)) return refusal;
  const Cut c = cut(p, device);
  if (c.splits > (1 << 15)) return {"takes at most 32768 splits", "splits", c.splits};
  if (c.units > 0 && c.splits > kMaxInt / c.units) return {"takes at most 2147483647 blocks", "batch", p.batch};
  return {};
}

Launch configure_decode(const Problem& p, const DeviceInfo& device) {
  const Cut c = cut(p, device);
  const Parts parts = parts_of(p, c);
  Launch launch;
  launch.tile_m = static_cast<int32_t>(c.block_rows);
  launch.tile_n = c.instance->tile_n;
  launch.stages = c.instance->stages;
  launch.threads = c.instance->threads;
  launch.shared_bytes = c.instance->shared_bytes;
  launch.num_splits = static_cast<int32_t>(c.splits);
  launch.workspace_bytes = parts.states + parts.statistics + parts.arrivals;
  launch.schedule = c.splits == 1 ? "queries and heads of a group packed, keys read once"
                    : c.split_keys > 0
                        ? "packed rows, splits of 1024 keys, merged by the last block of a head"
                        : "packed rows, keys split to fill the device, merged by the last block of a head";
  launch.instructions = is_plain(p) ? "mma.sync, ldmatrix, cp.async" : "mma.sync, ldmatrix, cp.async; general scores";
  launch.seconds = estimate_seconds(p, device, c, c.splits);
  return launch;
}

// Unlike any other launch's of this process, and not in memory by chance; the low 16 bits count arrivals.
unsigned long long next_run() {
  static std::atomic<unsigned long long> count{1};
  const auto salt = reinterpret_cast<uintptr_t>(&count);
  return (0x9e3779b97f4a7c15ull * (salt ^ count.fetch_add(1, std::memory_order_relaxed)) | 1) << 16;
}

int run_decode(const Plan& plan, const core::RunContext& context) {
  const Problem& p = plan.problem;
  const Cut c = cut_of(plan);
  if (c.units == 0) return TESSERA_OK;
  DecodeParams params{};
  params.f = make_params(p, *context.tensors);
  if (is_quantised(p)) {
    params.k_scale = scale_of(context.tensors->k_scale, p.k_scale);
    params.v_scale = scale_of(context.tensors->v_scale, p.v_scale);
    params.constant_scales = has_constant_scales(p);
  }
  params.row_tiles = c.row_tiles;
  params.row_blocks = Divisor(static_cast<uint32_t>(c.row_blocks));
  params.heads_kv = Divisor(static_cast<uint32_t>(p.heads_kv));
  params.group = Divisor(static_cast<uint32_t>(p.group));
  params.page_size = Divisor(static_cast<uint32_t>(p.page_size));
  params.split_count = Divisor(static_cast<uint32_t>(c.splits));
  params.splits = static_cast<int32_t>(c.splits);
  params.split_keys = static_cast<int32_t>(c.split_keys);
  params.state_rows = static_cast<int32_t>(state_rows(p, c));
  params.general = !is_plain(p);
  const bool overlaps = plan.device->arch >= 90;  // the launch before may still run
  params.looks_up = looks_up(params.f);
  params.guesses = overlaps && looks_up_used(params.f);
  params.whole = !params.looks_up && params.f.page_size == 0 && !p.banded();
  if (c.splits > 1) {
    const Parts parts = parts_of(p, c);
    std::byte* at = context.workspace;
    params.states = reinterpret_cast<float*>(at);
    params.statistics = reinterpret_cast<float2*>(at + parts.states);
    params.arrivals = reinterpret_cast<unsigned long long*>(at + parts.states + parts.statistics);
    params.run = next_run();
  }
  DeviceScope scope(p.device);
  if (scope.error() != cudaSuccess)
    return scope.finish(scope.error(), "cuda.sm80.decode: making the device current", context.status);
  const auto blocks = static_cast<uint32_t>(c.units * c.splits);
  const cudaError_t error =
      c.instance->launch(params, blocks, overlaps, static_cast<cudaStream_t>(context.cuda_stream));
  return scope.finish(error, "cuda.sm80.decode: launch", context.status);
}

int prepare_decode(const Plan& plan, tessera_status* status) {
  DeviceScope scope(plan.problem.device);
  if (scope.error() != cudaSuccess)
    return scope.finish(scope.error(), "cuda.sm80.decode: making the device current", status);
  return scope.finish(decode_instance(plan.problem).prepare(), "cuda.sm80.decode: loading the kernel", status);
}

}  // namespace

const core::KernelEntry kDecode{"cuda.sm80.decode", refuse_decode, configure_decode, run_decode, false, prepare_decode};

}  // namespace tessera::cuda::sm80
