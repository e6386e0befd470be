// What the forward kernels of Hopper share in planning: heads that share a tile, splits, the order of the tiles, tensor
// maps, the launch.
#include "cut.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>

#include "../device.hpp"
#include "../forward_host.hpp"
#include "../launch.hpp"
#include "fp8_config.hpp"
#include "quantize_math.hpp"
#include "tensor_maps.hpp"

namespace tessera::cuda::sm90 {

using core::DeviceInfo;
using core::Launch;
using core::Plan;
using core::Problem;
using core::Refusal;

namespace {

constexpr int64_t kTicketBytes = 256;
constexpr int32_t kMaxSplits = 32;
// A launch's start and end, and partial states with their merge behind it: on an H200 splitting 4 heads of 512 to 2048
// keys cost 10 to 16 microseconds more than the shorter rows saved.
constexpr double kLaunchSeconds = 3e-6, kCombineSeconds = 14e-6;

// Whether the tensor maps end where the keys of every sequence do.
bool is_bounded(const Problem& p) { return p.layout_kv == TESSERA_DENSE && !p.has(TESSERA_FLAG_SEQUSED_K); }

// Whether nothing about a sequence is looked up in memory.
bool is_whole(const Problem& p) {
  return p.layout_kv == TESSERA_DENSE && !p.has(TESSERA_FLAG_SEQUSED_K) && p.layout_q == TESSERA_DENSE &&
         p.num_splits <= 1 && !p.has(TESSERA_FLAG_SEQUSED_Q) && !p.has(TESSERA_FLAG_LEFTPAD) &&
         !p.has(TESSERA_FLAG_BATCH_IDX);
}

// Query heads of one key/value head share a tile where that makes fewer of them: short queries. Their heads must not
// differ in anything but the rows of q and o.
int32_t pack_of(const Problem& p, int32_t tile_m) {
  if (p.group == 1 || tile_m % p.group != 0 || !is_plain(p)) return 1;
  const int64_t apart = p.group * query_blocks(p, tile_m), together = query_blocks(p, tile_m / p.group);
  return 10 * together <= 9 * apart ? p.group : 1;
}

// Heads whose query tiles are taken together, heaviest first. Without a mask the rule of all kernels; under one, in
// sections of equal size, as many as leave their K and V in 7/10 of L2. H200, d 128, causal, TFLOP/s by MiB together:
// N 1024 4: 393, 16: 429, 32: 435, all 134: 368; N 4096 8: 618, 33: 616, 134: 564.
int32_t heads_of(const Problem& p, const DeviceInfo& device, const Cut& c) {
  const int64_t unit = p.group / c.pack;
  if (!p.banded()) return heads_together(p, device.l2_bytes, c.heads, unit, c.tiles, c.workers);
  const int64_t bytes = core::dtype_bytes(p.k.dtype) * p.seqlen_k * p.head_dims() / unit + 1;
  const int64_t fitting = std::max<int64_t>(unit, 7 * device.l2_bytes / 10 / bytes);
  const int64_t sections = std::max<int64_t>(1, (c.heads + fitting - 1) / fitting);
  return static_cast<int32_t>(std::max<int64_t>(1, (c.heads + sections - 1) / sections));
}

// Rows of one copy of K or V; 0: pages whose size shares no multiple of 8 with the tile, so rows are gathered.
int32_t kv_box_rows(const Problem& p, const Instance& instance) {
  if (p.layout_kv != TESSERA_PAGED) return instance.tile_n;
  const int32_t rows = std::gcd(p.page_size, instance.tile_n);
  // Every copy is issued by a lane of its own.
  return rows % 8 == 0 && instance.tile_n / rows <= 32 ? rows : 0;
}

// V^T of v_order 1, its even and its odd channels apart, as its tiles hold them.
TensorView ordered_view(const Problem& p, const ForwardParams& f, const Instance& instance) {
  const auto [batches_q, rows_q, batches_k, rows_k] = extents(p);
  const int64_t slots =
      p.layout_kv == TESSERA_PACKED ? core::packed_first_slot(p.total_k, p.batch) : core::whole_groups(rows_k);
  return {f.v,
          5,
          {slots, p.head_dim_v / 2, 2, p.heads_kv, batches_k},
          {1, 2 * f.v_stride.row, f.v_stride.row, f.v_stride.head, f.v_stride.batch},
          {kFp8KeySpan, instance.dim_v / 2, 1, 1, 1}};
}

cudaError_t encode_maps(const Problem& p, const Cut& c, Params* out) {
  const ForwardParams& f = out->forward;
  const Instance& instance = *c.instance;
  const auto [batches_q, rows_q, batches_k, rows_k] = extents(p);
  const int32_t columns = instance.span / core::dtype_bytes(p.q.dtype);
  const int32_t box = out->kv_box_rows == 0 ? 8 : out->kv_box_rows;
  const TensorView q{
      f.q,
      5,
      {p.head_dim_qk, c.pack, rows_q, p.heads_q / c.pack, batches_q},
      {1, f.q_stride.head, f.q_stride.row, f.q_stride.head * c.pack, f.q_stride.batch},
      {columns, c.pack, static_cast<int32_t>(c.rows), 1, 1},
  };
  const TensorView k{f.k,
                     4,
                     {p.head_dim_qk, rows_k, p.heads_kv, batches_k},
                     {1, f.k_stride.row, f.k_stride.head, f.k_stride.batch},
                     {columns, box, 1, 1}};
  const TensorView v = p.v_order == 1 ? ordered_view(p, f, instance)
                                      : TensorView{f.v,
                                                   4,
                                                   {p.head_dim_v, rows_k, p.heads_kv, batches_k},
                                                   {1, f.v_stride.row, f.v_stride.head, f.v_stride.batch},
                                                   {columns, box, 1, 1}};
  cudaError_t error = encode_tensor_map(q, p.q.dtype, instance.span, &out->q_map);
  if (error == cudaSuccess) error = encode_tensor_map(k, p.q.dtype, instance.span, &out->k_map);
  const int32_t v_span = p.v_order == 1 ? kFp8KeySpan : instance.span;
  if (error == cudaSuccess) error = encode_tensor_map(v, p.q.dtype, v_span, &out->v_map);
  return error;
}

// An even number that no other launch of this process has, and that memory does not hold by chance.
uint64_t next_run() {
  static std::atomic<uint64_t> count{0};
  const auto salt = reinterpret_cast<uintptr_t>(&count);
  return (0x9e3779b97f4a7c15u * (salt ^ count.fetch_add(1, std::memory_order_relaxed))) << 1 | 0x2000000000000000u;
}

}  // namespace

// Key tiles that each multiprocessor goes through, tile overheads included, over what the kernel does a second.
double estimate_seconds(const Problem& p, const DeviceInfo& device, const Cut& c) {
  const Instance& instance = *c.instance;
  const core::Work work = core::count_work(p);
  const auto items = static_cast<double>(c.items());
  const double peak = core::dtype_bytes(p.q.dtype) == 1 ? device.peak_8bit : device.peak_16bit;
  if (items == 0 || peak <= 0) return kLaunchSeconds;
  const double tile_flops = 2.0 * instance.tile_m * instance.tile_n * (instance.dim_qk + instance.dim_v);
  // Columns and rows of a tile that nothing fills cost as much as the others.
  const double padding = static_cast<double>(instance.dim_qk + instance.dim_v) / static_cast<double>(p.head_dims()) *
                         static_cast<double>(c.tiles * c.rows) / static_cast<double>(p.seqlen_q);
  // Half a key tile is lost at each masked end.
  const double beside = instance.overhead_tiles + (p.banded() ? 0.5 : 0.0);
  const double tiles = work.flops * padding / tile_flops + items * beside;
  const double rounds = items / c.workers;
  const double whole = p.banded() ? std::max(rounds, 1.0) : std::ceil(rounds);
  const double busy = tiles / items * whole;  // key tiles of the busiest multiprocessor
  const double compute = busy * tile_flops * device.units / (instance.share * peak);
  const double memory = device.bandwidth > 0 ? work.bytes / (0.85 * device.bandwidth) : 0;
  return std::max(compute, memory) + (c.splits > 1 ? kLaunchSeconds + kCombineSeconds : kLaunchSeconds);
}

void split_keys(const Problem& p, const DeviceInfo& device, Cut* c) {
  if (p.num_splits > 0) {
    c->splits = p.num_splits;
    return;
  }
  // A sequence's result must not depend on its batch mates, so nor may the splits.
  if (p.has(TESSERA_FLAG_BATCH_INVARIANT)) return;
  double best = estimate_seconds(p, device, *c);
  Cut tried = *c;
  for (tried.splits = 2; tried.splits <= kMaxSplits && tried.items() <= c->workers; ++tried.splits) {
    const double seconds = estimate_seconds(p, device, tried);
    if (seconds >= best) continue;
    best = seconds;
    c->splits = tried.splits;
  }
}

Cut start_cut(const Problem& p, const DeviceInfo& device, const Instance& instance) {
  Cut c{};
  c.instance = &instance;
  c.splits = 1;
  c.workers = std::max(1, device.units - p.sm_margin);
  c.pack = pack_of(p, instance.tile_m);
  c.rows = instance.tile_m / c.pack;
  c.tiles = query_blocks(p, c.rows);
  c.heads = p.batch * (p.heads_q / c.pack);
  return c;
}

// Rows of a tile leave a row's bits as they are, keys of a step do not: where they must not depend on anything but the
// head dims, plain's are taken.
Cut choose_cut(const Problem& p, const DeviceInfo& device, const Bucket& bucket) {
  Cut c = start_cut(p, device, is_plain(p) ? bucket.plain : bucket.general);
  split_keys(p, device, &c);
  if (!is_plain(p) || !is_whole(p)) return c;
  // A block a tile, where that is one for each multiprocessor at most: half the rows come sooner (H200, 4 heads, us of
  // 128 and 64 rows: d 64 N 64 8.9 and 7.6, N 2048 25.8 and 20.2; d 128 9.6 and 8.4, 30.7 and 25.1).
  const Cut narrow = start_cut(p, device, bucket.narrow);
  if (narrow.items() <= narrow.workers) {
    return c.splits > 1 && estimate_seconds(p, device, c) < estimate_seconds(p, device, narrow) ? c : narrow;
  }
  const bool free = !p.has(TESSERA_FLAG_BATCH_INVARIANT);
  const Cut brief = start_cut(p, device, bucket.brief), wide = start_cut(p, device, bucket.wide);
  if (p.seqlen_k >= 512 && bucket.brief_keys != 0 && free) {
    // One tile for each multiprocessor in place of two for some (d 64, 16 heads of 2048 rows: 45.2 and 42.1 us).
    if (!p.banded() && c.items() > c.workers && brief.items() <= brief.workers) return brief;
    // A warpgroup of 64 rows goes through the key tiles that they see, of which steps of 64 keys mask the least.
    const bool is_window =
        p.left >= 0 && p.right >= 0 && p.left < bucket.brief_window && p.right < bucket.brief_window - p.left;
    const bool is_brief = p.banded() && (p.seqlen_k <= bucket.brief_keys || is_window);
    if (is_brief && brief.items() >= 2 * brief.workers) return brief;
  }
  // Tiles of more warpgroups pay where they leave none idle (docs/notes/hopper.md).
  const bool same_keys = bucket.wide.tile_n == bucket.plain.tile_n;
  const bool is_wide = p.seqlen_k >= bucket.wide_keys && (free || same_keys) && wide.items() >= 2 * wide.workers;
  return is_wide ? wide : c;
}

Refusal refuse_launch(const Problem& p, const DeviceInfo& device, const Instance& instance) {
  if (device.arch != 90) return {"needs compute capability 9.0 (Hopper)", "arch", device.arch};
  if (p.sm_margin >= device.units) {
    return {"needs a multiprocessor beside sm_margin", "sm_margin", p.sm_margin};
  }
  if (device.shared_bytes_per_block < instance.shared_bytes) {
    return {"needs more shared memory a block than the device has; bytes needed", "shared_bytes",
            instance.shared_bytes};
  }
  if (const Refusal refusal = refuse_sizes(p, 64)) return refusal;
  if (const Refusal refusal = refuse_layout(p)) return refusal;
  return refuse_map_strides(p);
}

Launch configure_cut(const Problem& p, const DeviceInfo& device, const Cut& c) {
  Launch launch;
  launch.tile_m = c.instance->tile_m;
  launch.tile_n = c.instance->tile_n;
  launch.stages = c.instance->stages;
  launch.threads = c.instance->threads;
  launch.registers = c.instance->consumer_registers;
  launch.shared_bytes = c.instance->shared_bytes;
  launch.num_splits = c.splits;
  if (c.splits > 1) launch.workspace_bytes = partial_o_bytes(p, c.splits) + partial_lse_bytes(p, c.splits);
  if (c.takes_tickets()) launch.workspace_bytes += kTicketBytes;
  launch.variant = heads_of(p, device, c);
  launch.schedule =
      c.takes_tickets() ? "persistent blocks, tickets, heavy tiles first over groups of heads" : "one tile a block";
  launch.seconds = estimate_seconds(p, device, c);
  return launch;
}

int run_cut(const Plan& plan, const core::RunContext& context, const Cut& c, Params* params) {
  const Problem& p = plan.problem;
  if (c.items() == 0) return TESSERA_OK;
  params->forward = make_params(p, *context.tensors);
  const ForwardParams whole = params->forward;
  std::byte* workspace = context.workspace;
  if (c.takes_tickets()) {
    params->tickets = reinterpret_cast<Tickets*>(workspace);
    params->run = next_run();
    workspace += kTicketBytes;
  }
  if (c.splits > 1) params->forward = make_partial(p, whole, c.splits, workspace);
  const auto heads = static_cast<uint32_t>(c.heads), group = static_cast<uint32_t>(plan.launch.variant);
  params->forward.schedule = {static_cast<uint32_t>(c.tiles), heads, group};
  params->pack = c.pack;
  params->packs = p.heads_q / c.pack;
  params->by_pack = Divisor(static_cast<uint32_t>(c.pack));
  params->by_packs = Divisor(static_cast<uint32_t>(params->packs));
  params->by_group = Divisor(static_cast<uint32_t>(p.group));
  params->whole = is_whole(p) && is_plain(p) && c.splits == 1 && (p.v_order == 0 || p.seqlen_k % 16 == 0);
  params->band = core::make_band(p.seqlen_q, p.seqlen_k, p.left, p.right, p.top_left);
  params->tile_rows = static_cast<int32_t>(c.rows);
  // A short piece that is asked for within the one before is waited for (docs/notes/hopper.md). Past d 128 there is one
  // tile of Q, which has to be left first anyway.
  const int32_t few = std::min(1024, c.instance->tile_m * c.instance->tile_n / 16);
  params->ahead = c.takes_tickets() && c.instance->dim_qk <= 128 && p.seqlen_k <= few ? 1 : 0;
  params->kv_box_rows = kv_box_rows(p, *c.instance);
  params->kv_bounded = is_bounded(p);

  DeviceScope scope(p.device);
  if (scope.error() != cudaSuccess)
    return scope.finish(scope.error(), "forward on Hopper: making the device current", context.status);
  cudaError_t error = encode_maps(p, c, params);
  if (error != cudaSuccess) return scope.finish(error, "forward on Hopper: encoding a tensor map", context.status);
  const auto stream = static_cast<cudaStream_t>(context.cuda_stream);
  const auto blocks = static_cast<uint32_t>(std::min<int64_t>(c.items(), c.workers));
  error = c.instance->launch(*params, blocks, stream);
  if (error == cudaSuccess && c.splits > 1) {
    ForwardParams final_params = whole;
    final_params.schedule.head_batches = static_cast<uint32_t>(p.batch * p.heads_q);
    error = launch_combine(params->forward, final_params, p.o.dtype == TESSERA_BF16, stream);
  }
  return scope.finish(error, plan.entry->name, context.status);
}

int prepare_cut(const Plan& plan, const Cut& c, tessera_status* status) {
  const Problem& p = plan.problem;
  DeviceScope scope(p.device);
  if (scope.error() != cudaSuccess)
    return scope.finish(scope.error(), "forward on Hopper: making the device current", status);
  cudaError_t error = load_encoder();
  if (error == cudaSuccess) error = c.instance->prepare();
  if (error == cudaSuccess && plan.launch.num_splits > 1) error = prepare_combine(p.o.dtype == TESSERA_BF16);
  return scope.finish(error, plan.entry->name, status);
}

}  // namespace tessera::cuda::sm90
