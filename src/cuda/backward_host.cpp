// The shared host side of the CUDA backward kernels.
#include "backward_host.hpp"

#include <algorithm>

#include "tile/backward_scheduler.cuh"

namespace tessera::cuda {

using core::Problem;
using core::Refusal;

namespace {

// Query rows of a key/value head from which on its key tiles have steps enough to convert beside them: measured at 512,
// 4 % slower, and at 1024, 1 to 4 % faster.
constexpr int64_t kConvertedRows = 1024;

int64_t scratch_rows(const Problem& p) {
  return count_scratch_rows(p.layout_q == TESSERA_PACKED, p.batch, p.seqlen_q, p.total_q);
}
int64_t row_tiles(const Problem& p) {
  return (p.seqlen_q + kScratchRows - 1) / kScratchRows * (kScratchRows / kRowTile);
}

}  // namespace

Refusal refuse_backward(const Problem& p) {
  if (const Refusal refusal = refuse_operands(p, TESSERA_BACKWARD)) return refusal;
  if (p.d_o.dtype != p.q.dtype) return {"takes d_o in q's dtype", "d_o.dtype", p.d_o.dtype};
  if (p.num_splits > 1)
    return {"takes no splits: those of a forward pass do not change its gradient", "num_splits", p.num_splits};
  if (p.sm_margin != 0)
    return {"has no sm_margin: not all of its kernels' blocks are persistent", "sm_margin", p.sm_margin};
  // A block of the kernels before and after takes kRowTile rows, one of the main kernel at least 32 keys.
  if (const Refusal refusal = refuse_sizes(p, kRowTile)) return refusal;
  const int64_t pairs = p.batch * p.heads_q;
  if (pairs > 0 && ((p.seqlen_k + 31) / 32 > kMaxInt / pairs || row_tiles(p) > kMaxInt / pairs)) {
    return {"takes at most 2147483647 blocks of rows", "batch", p.batch};
  }
  // Rows of the scratch arrays, with room for a factor of head dim and size.
  if (scratch_rows(p) > (int64_t{1} << 48) / p.heads_q)
    return {"needs a workspace past 2^58 bytes for these queries", "seqlen_q", p.seqlen_q};
  return refuse_layout(p);
}

BackwardWorkspace lay_out_workspace(const Problem& p, int32_t dq_dim, bool persistent, bool zeroes) {
  BackwardWorkspace at{};
  const auto take = [&at](int64_t bytes) {
    const int64_t begin = at.bytes;
    at.bytes += align_256(bytes);
    return begin;
  };
  const int64_t rows = p.heads_q * scratch_rows(p);
  at.lse = take(rows * 4);
  at.minus_delta = take(rows * 4);
  at.dq_sum = take(rows * dq_dim * 4);
  at.sink_sums = take(p.has(TESSERA_FLAG_D_SINKS) ? p.heads_q * p.batch * row_tiles(p) * 4 : 0);
  const bool ordered = p.has(TESSERA_FLAG_DETERMINISTIC);
  at.turns = take(ordered ? rows / kTurnRows * 4 : 0);
  at.ticket = take(ordered || persistent ? 4 : 0);
  at.progress = take(zeroes ? p.batch * p.heads_kv * int64_t{sizeof(HeadProgress)} : 0);
  return at;
}

// The parameters of all launches of one run, without the schedule.
static BackwardParams make_backward_params(const Problem& p, const tessera_tensors& t, std::byte* workspace,
                                           int32_t dq_dim, bool persistent, bool zeroes) {
  BackwardParams out{};
  out.f = make_params(p, t);
  out.f.lse = static_cast<float*>(t.lse);  // an input here, whatever the flags ask for
  out.d_o = t.d_o;
  out.d_lse = p.has(TESSERA_FLAG_D_LSE) ? static_cast<const float*>(t.d_lse) : nullptr;
  out.dq = t.dq;
  out.dk = t.dk;
  out.dv = t.dv;
  out.d_bias = p.has(TESSERA_FLAG_D_BIAS) ? t.d_bias : nullptr;
  out.d_sinks = p.has(TESSERA_FLAG_D_SINKS) ? t.d_sinks : nullptr;
  const auto [batches_q, rows_q, batches_k, rows_k] = extents(p);
  out.d_o_stride = strides(p.d_o, batches_q, rows_q, p.heads_q);
  out.dq_stride = strides(p.dq, batches_q, rows_q, p.heads_q);
  out.dk_stride = strides(p.dk, batches_k, rows_k, p.heads_kv);
  out.dv_stride = strides(p.dv, batches_k, rows_k, p.heads_kv);
  for (int i = 0; i < 4; ++i) out.d_bias_stride[i] = p.d_bias.stride[i];
  out.d_bias_dtype = p.has(TESSERA_FLAG_D_BIAS) ? p.d_bias.dtype : 0;
  out.dq_is_float = p.dq.dtype == TESSERA_F32;
  out.dk_is_float = p.dk.dtype == TESSERA_F32;
  out.dv_is_float = p.dv.dtype == TESSERA_F32;
  const BackwardWorkspace at = lay_out_workspace(p, dq_dim, persistent, zeroes);
  out.lse = reinterpret_cast<float*>(workspace + at.lse);
  out.minus_delta = reinterpret_cast<float*>(workspace + at.minus_delta);
  out.dq_sum = reinterpret_cast<float*>(workspace + at.dq_sum);
  out.sink_sums = reinterpret_cast<float*>(workspace + at.sink_sums);
  const bool ordered = p.has(TESSERA_FLAG_DETERMINISTIC);
  if (ordered) out.turns = reinterpret_cast<int32_t*>(workspace + at.turns);
  if (ordered || persistent) out.ticket = reinterpret_cast<uint32_t*>(workspace + at.ticket);
  if (zeroes) out.progress = reinterpret_cast<HeadProgress*>(workspace + at.progress);
  out.scratch_rows = scratch_rows(p);
  out.batch = static_cast<int32_t>(p.batch);
  out.heads_kv = p.heads_kv;
  out.row_tiles = static_cast<int32_t>(row_tiles(p));
  return out;
}

BackwardRows::BackwardRows(const Problem& p, const tessera_tensors& tensors, std::byte* workspace,
                           const DqSums& dq_sums, int32_t tile_n, const HeadOrder& order, int32_t workers, bool zeroes)
    : params(make_backward_params(p, tensors, workspace, dq_sums.dim, workers > 0, zeroes)),
      sums(dq_sums),
      bf16(p.q.dtype == TESSERA_BF16) {
  const auto head_batches = static_cast<uint32_t>(p.batch * p.heads_kv);
  const auto descending = static_cast<uint32_t>(order.descending);
  const auto key_tiles = static_cast<uint32_t>((p.seqlen_k + tile_n - 1) / tile_n);
  params.f.schedule = {key_tiles, head_batches - descending, static_cast<uint32_t>(order.together)};
  params.descending = {key_tiles, descending, static_cast<uint32_t>(order.descending_together)};
  key_blocks = key_tiles * head_batches;
  // Two groups of heads ahead, so that no block waits, nor finds a head that others are at. Of packed sequences a head
  // has no fixed number of key tiles, and a head of which no query sees a key (an empty sequence's) has no block that
  // sees to its zeros. Persistent blocks were up to 4 % slower with it in a fixed order, and gained nothing by
  // conversion.
  const uint32_t ascending_group = descending < head_batches ? order.together : 0;
  const uint32_t heads_ahead = 2 * std::max<uint32_t>(ascending_group, descending > 0 ? order.descending_together : 0);
  const bool persistent = workers > 0;
  const bool some_unseen = p.seqlen_k == 0 || p.has(TESSERA_FLAG_SEQUSED_Q) || p.has(TESSERA_FLAG_SEQUSED_K);
  if (p.layout_q == TESSERA_PACKED || p.layout_kv == TESSERA_PACKED || some_unseen || head_batches <= heads_ahead ||
      (persistent && params.turns != nullptr)) {
    params.progress = nullptr;
  }
  params.heads_ahead = static_cast<int32_t>(heads_ahead);
  params.converts = params.progress != nullptr && !persistent && params.turns == nullptr && !params.dq_is_float &&
                    p.group * p.seqlen_q >= kConvertedRows;
  row_blocks = static_cast<uint32_t>(p.batch * p.heads_q) * static_cast<uint32_t>(params.row_tiles);
  if (row_blocks == 0) {
    params.turns = nullptr;
    params.ticket = nullptr;
    params.progress = nullptr;
    params.converts = false;
  } else if (workers > 0) {
    key_blocks = std::min(key_blocks, static_cast<uint32_t>(workers));
  }
}

cudaError_t BackwardRows::begin(cudaStream_t stream) const {
  return row_blocks > 0 ? launch_preprocess(params, bf16, sums, row_blocks, stream) : cudaSuccess;
}

cudaError_t BackwardRows::finish(cudaStream_t stream) const {
  cudaError_t error = row_blocks > 0 ? launch_postprocess(params, bf16, sums, row_blocks, stream) : cudaSuccess;
  if (error == cudaSuccess && params.d_sinks != nullptr) error = launch_sum_sinks(params, stream);
  return error;
}

const char* backward_schedule(const Problem& p, bool persistent, bool descends) {
  if (descends) {
    return persistent ? "persistent blocks, tickets, first keys and last queries first; dq is added in the order of "
                        "the tickets"
                      : "one block a key tile, first keys and last queries first; dq is added in the order in which "
                        "blocks start";
  }
  if (p.has(TESSERA_FLAG_DETERMINISTIC)) {
    return persistent ? "persistent blocks, tickets, last keys first; dq is added in the order of the tickets"
                      : "one block a key tile, last keys first; dq is added in the order in which blocks start";
  }
  return persistent ? "persistent blocks, tickets, heavy tiles first in groups of heads that fit L2; dq is added in "
                      "any order, so it may differ between runs by rounding"
                    : "one block a key tile, heavy tiles first in groups of heads that fit L2; dq is added in any "
                      "order, so it may differ between runs by rounding";
}

double estimate_backward(const Problem& p, const core::DeviceInfo& device, int32_t tile_n, const BackwardRates& rates) {
  if (device.peak_16bit <= 0 || device.bandwidth <= 0 || device.units <= 0) return 0;
  const core::Work work = core::count_work(p);
  const double share = p.has(TESSERA_FLAG_DETERMINISTIC) ? rates.ordered_share : rates.share;
  // A gradient of the bias recomputes the scores: two products more.
  const double flops = work.flops * (p.has(TESSERA_FLAG_D_BIAS) ? 1.4 : 1.0);
  double key_tiles = double((p.seqlen_k + tile_n - 1) / tile_n) * double(p.batch) * p.heads_kv;
  if (p.layout_kv == TESSERA_PACKED)  // half a tile a sequence is not filled
    key_tiles = std::min(key_tiles, (double(p.total_k) / tile_n + 0.5 * double(p.batch)) * p.heads_kv);
  const double compute = flops / (share * device.peak_16bit) + key_tiles / device.units * rates.block_seconds;
  // Before and after the main kernel: o and d_o, dq, and the float32 sums of dq, zeroed and read once.
  const double rows = p.layout_q == TESSERA_PACKED ? double(p.total_q) : double(p.batch) * double(p.seqlen_q);
  const double around = rows * p.heads_q * (4.0 * p.head_dim_v + 10.0 * p.head_dim_qk);
  const double bandwidth = 0.85 * device.bandwidth;
  const double memory = work.bytes / bandwidth;
  return (compute > memory ? compute : memory) + around / bandwidth + 9e-6;
}

int32_t heads_together_backward(const Problem& p, const core::DeviceInfo& device, int32_t tile_n) {
  const int64_t heads = p.batch * p.heads_kv;
  if (heads == 0) return 1;
  const int64_t dim = p.head_dim_qk > p.head_dim_v ? p.head_dim_qk : p.head_dim_v;
  const int64_t bytes = p.group * p.seqlen_q * (2 * p.head_dims() + 4 * dim) + 1;
  // Read from both halves of an L2, data lies in it twice. In a fixed order few tiles of one head at a time wait less.
  const bool ordered = p.has(TESSERA_FLAG_DETERMINISTIC);
  int64_t together = device.l2_bytes / (ordered ? 2 : 4) / bytes;
  // Under a causal band a head's first tiles weigh most. With less than a wave of blocks together the last head's start
  // when the others are nearly done.
  if (p.banded() && !ordered)
    together = std::max(together, device.units / std::max<int64_t>((p.seqlen_k + tile_n - 1) / tile_n, 1));
  return static_cast<int32_t>(clamp_to(together, 1, heads));
}

HeadOrder order_heads_backward(const Problem& p, const core::DeviceInfo& device, int32_t tile_n) {
  HeadOrder order{heads_together_backward(p, device, tile_n)};
  const int64_t heads = p.batch * p.heads_kv, tiles = (p.seqlen_k + tile_n - 1) / tile_n;
  if (!p.has(TESSERA_FLAG_DETERMINISTIC) || heads * tiles <= device.units) return order;
  if (!p.banded()) {
    // Each key tile of a head follows the one before by a step or two: with few heads the last ones wait long. All go
    // through the query tiles at one pace, so that L2 need not hold whole heads.
    order.together = static_cast<int32_t>(clamp_to(std::max<int64_t>(order.together, 8), 1, heads));
  }
  // count_key_tiles() knows one order. Under a window key tiles weigh alike.
  if (p.right < 0 || p.left >= 0 || p.layout_kv == TESSERA_PACKED) return order;
  const int64_t two_waves = clamp_to(2 * int64_t{device.units} / tiles, 1, heads);
  if (p.group > 1) {
    const int64_t groups = (heads + two_waves - 1) / two_waves;
    order.descending = static_cast<int32_t>(heads);
    order.descending_together = static_cast<int32_t>((heads + groups - 1) / groups);
  } else if (heads > 1) {
    order.descending = order.descending_together = static_cast<int32_t>(std::min(two_waves, heads / 2));
  }
  return order;
}

}  // namespace tessera::cuda
