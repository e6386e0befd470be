// The ordered list of CUDA kernels: which problems each takes, with which tile, and how it is launched.
#include <cstddef>
#include <span>

#include "device.hpp"
#include "kernel_entry.hpp"
#include "launch.hpp"
#include "sm80/config.hpp"
#include "tile/scheduler.cuh"

namespace tessera::cuda {
namespace {

using core::DeviceInfo;
using core::Launch;
using core::Operand;
using core::Plan;
using core::Problem;
using core::Refusal;

constexpr int64_t kMaxInt = 0x7fffffff;

// Instances by element type and bucket of sm80::kHeadDimBuckets.
const ForwardPair& forward_pair(const Problem& p, int32_t arch) {
  using namespace sm80;
  static const ForwardPair* const kF16[] = {&kForwardF16D64, &kForwardF16D96, &kForwardF16D128, &kForwardF16D192,
                                            &kForwardF16D256};
  static const ForwardPair* const kBf16[] = {&kForwardBf16D64, &kForwardBf16D96, &kForwardBf16D128, &kForwardBf16D192,
                                             &kForwardBf16D256};
  const int32_t dim = p.head_dim_qk > p.head_dim_v ? p.head_dim_qk : p.head_dim_v;
  size_t bucket = 0;
  while (kHeadDimBuckets[bucket] < dim) ++bucket;
  if (bucket == 0 && arch >= kNarrowArch) {
    return p.q.dtype == TESSERA_BF16 ? kForwardBf16D64Narrow : kForwardF16D64Narrow;
  }
  return *(p.q.dtype == TESSERA_BF16 ? kBf16 : kF16)[bucket];
}

// Plain scores are q k^T times a positive scale that float32 holds without loss of range.
bool is_plain(const Problem& p) {
  return p.softcap == 0 && !p.has(TESSERA_FLAG_BIAS) && !p.has(TESSERA_FLAG_ALIBI) && p.scale > 1e-30 && p.scale < 1e30;
}

const ForwardInstance& forward_instance(const Problem& p, const DeviceInfo& device) {
  const ForwardPair& pair = forward_pair(p, device.arch);
  return is_plain(p) ? pair.plain : pair.general;
}

struct StrideRule {
  const char* argument;
  int64_t stride, count;
};

// Rows must start at multiples of 16 bytes: every stride that is used, and the address.
Refusal refuse_rows(std::span<const StrideRule> rules, int64_t unit) {
  for (const StrideRule& rule : rules) {
    if (rule.count > 1 && rule.stride % unit != 0) {
      return {"needs rows that start at multiples of 16 bytes, so strides in multiples of 16 bytes", rule.argument,
              rule.stride};
    }
  }
  return {};
}

Refusal refuse_layout(const Problem& p) {
  const struct {
    const char* name;
    int32_t align;
  } operands[] = {{"q.align", p.q.align}, {"k.align", p.k.align}, {"v.align", p.v.align}, {"o.align", p.o.align}};
  for (const auto& operand : operands) {
    if (operand.align % 16 != 0) return {"needs operands at multiples of 16 bytes", operand.name, operand.align};
  }
  const int64_t batches_q = p.layout_q == TESSERA_PACKED ? 1 : p.batch;
  const int64_t rows_q = p.layout_q == TESSERA_PACKED ? p.total_q : p.seqlen_q;
  const bool paged = p.layout_kv == TESSERA_PAGED, packed = p.layout_kv == TESSERA_PACKED;
  const int64_t batches_k = paged ? p.num_pages : packed ? 1 : p.batch_kv;
  const int64_t rows_k = paged ? p.page_size : packed ? p.total_k : p.seqlen_k;
  const StrideRule inputs[] = {
      {"q.batch stride", p.q.batch_stride, batches_q}, {"q.row stride", p.q.row_stride, rows_q},
      {"q.head stride", p.q.head_stride, p.heads_q},   {"k.batch stride", p.k.batch_stride, batches_k},
      {"k.row stride", p.k.row_stride, rows_k},        {"k.head stride", p.k.head_stride, p.heads_kv},
      {"v.batch stride", p.v.batch_stride, batches_k}, {"v.row stride", p.v.row_stride, rows_k},
      {"v.head stride", p.v.head_stride, p.heads_kv},
  };
  if (const Refusal refusal = refuse_rows(inputs, 8)) return refusal;
  const StrideRule outputs[] = {{"o.batch stride", p.o.batch_stride, batches_q},
                                {"o.row stride", p.o.row_stride, rows_q},
                                {"o.head stride", p.o.head_stride, p.heads_q}};
  return refuse_rows(outputs, p.o.dtype == TESSERA_F32 ? 4 : 8);
}

int64_t query_blocks(const Problem& p, int64_t tile_m) { return (p.seqlen_q + tile_m - 1) / tile_m; }
int64_t splits(const Problem& p) { return p.num_splits > 1 ? p.num_splits : 1; }

Refusal refuse_sizes(const Problem& p, const ForwardInstance& instance) {
  if (p.seqlen_q > kMaxInt) return {"takes at most 2147483647 queries a sequence", "seqlen_q", p.seqlen_q};
  if (p.seqlen_k > kMaxInt) return {"takes at most 2147483647 keys a sequence", "seqlen_k", p.seqlen_k};
  if (p.batch_kv > kMaxInt) return {"takes at most 2147483647 cache rows", "batch_kv", p.batch_kv};
  if (p.num_pages > kMaxInt) return {"takes at most 2147483647 pages", "num_pages", p.num_pages};
  if (p.max_pages > kMaxInt || (p.page_size > 0 && p.max_pages > kMaxInt / p.page_size)) {
    return {"takes at most 2147483647 keys in a row of the page table", "max_pages", p.max_pages};
  }
  if (p.batch > kMaxInt / p.heads_q) return {"takes at most 2147483647 pairs of batch and head", "batch", p.batch};
  const int64_t head_batches = p.batch * p.heads_q, rows = (p.seqlen_q + 7) / 8;
  if (p.batch > 0 &&
      (query_blocks(p, instance.tile_m) * splits(p) > kMaxInt / head_batches || rows > kMaxInt / head_batches)) {
    return {"takes at most 2147483647 blocks of queries", "batch", p.batch};
  }
  return {};
}

Refusal refuse_forward(const Problem& p, const DeviceInfo& device) {
  if (device.is_cpu) return {"runs on CUDA devices only"};
  if (p.pass != TESSERA_FORWARD) return {"computes the forward pass only"};
  if (p.q.dtype != TESSERA_F16 && p.q.dtype != TESSERA_BF16) return {"takes f16 and bf16", "q.dtype", p.q.dtype};
  if (p.k.dtype != p.q.dtype) return {"takes k of q's dtype", "k.dtype", p.k.dtype};
  if (p.v.dtype != p.q.dtype) return {"takes v of q's dtype", "v.dtype", p.v.dtype};
  if (p.o.dtype != p.q.dtype && p.o.dtype != TESSERA_F32) return {"writes o in q's dtype or f32", "o.dtype", p.o.dtype};
  if (device.arch < 80) return {"needs compute capability 8.0 or later", "arch", device.arch};
  if (p.head_dim_qk > 256 || p.head_dim_qk % 8 != 0)
    return {"takes head_dim_qk 8 to 256 in multiples of 8", "head_dim_qk", p.head_dim_qk};
  if (p.head_dim_v > 256 || p.head_dim_v % 8 != 0)
    return {"takes head_dim_v 8 to 256 in multiples of 8", "head_dim_v", p.head_dim_v};
  if (p.v_order != 0) return {"reads v in the order of its rows only", "v_order", p.v_order};
  if (p.has(TESSERA_FLAG_V_MEAN)) return {"takes no v_mean"};
  if (p.sm_margin != 0) return {"has no sm_margin: its blocks are not persistent", "sm_margin", p.sm_margin};
  const ForwardInstance& instance = forward_instance(p, device);
  if (device.shared_bytes_per_block < instance.shared_bytes) {
    return {"needs more shared memory a block than the device has; bytes needed", "shared_bytes",
            instance.shared_bytes};
  }
  if (const Refusal refusal = refuse_sizes(p, instance)) return refusal;
  return refuse_layout(p);
}

int64_t query_rows(const Problem& p) { return p.layout_q == TESSERA_PACKED ? p.total_q : p.batch * p.seqlen_q; }
int64_t align_256(int64_t bytes) { return (bytes + 255) / 256 * 256; }
int64_t partial_o_bytes(const Problem& p) {
  return align_256(splits(p) * query_rows(p) * p.heads_q * p.head_dim_v * 4);
}
int64_t partial_lse_bytes(const Problem& p) { return align_256(splits(p) * query_rows(p) * p.heads_q * 4); }

// Head-batches that the grid takes together: as many as leave K and V in half of L2 (the other half is for what streams
// by). Where all query blocks cost the same there is nothing to balance, and one wave of blocks at a time keeps every
// K and V row that is read close in time to its other readers.
int32_t head_group(const Problem& p, const DeviceInfo& device, const ForwardInstance& instance) {
  const int64_t head_batches = p.batch * p.heads_q;
  if (head_batches == 0 || p.seqlen_q == 0) return 1;
  const int64_t bytes = 2 * p.seqlen_k * (p.head_dim_qk + p.head_dim_v) / p.group + 1;
  int64_t fitting = device.l2_bytes / 2 / bytes;
  if (!p.banded()) {
    const int64_t wave = int64_t{device.units} * instance.blocks_per_sm / query_blocks(p, instance.tile_m);
    fitting = wave < fitting ? wave : fitting;
  }
  const int64_t whole = fitting / p.group * p.group;
  return static_cast<int32_t>(clamp_to(whole, p.group < head_batches ? p.group : head_batches, head_batches));
}

Launch configure_forward(const Problem& p, const DeviceInfo& device) {
  const ForwardInstance& instance = forward_instance(p, device);
  Launch launch;
  launch.tile_m = instance.tile_m;
  launch.tile_n = instance.tile_n;
  launch.stages = instance.stages;
  launch.threads = instance.threads;
  launch.shared_bytes = instance.shared_bytes;
  launch.num_splits = static_cast<int32_t>(splits(p));
  if (launch.num_splits > 1) launch.workspace_bytes = partial_o_bytes(p) + partial_lse_bytes(p);
  launch.variant = head_group(p, device, instance);
  launch.schedule = "one block a query tile, heavy tiles first in groups of heads that fit L2";
  launch.instructions = is_plain(p) ? "mma.sync, ldmatrix, cp.async" : "mma.sync, ldmatrix, cp.async; general scores";
  // mma.sync reached 0.37 of the wgmma peak at d 128 on an H200 and about 0.7 of an A100's peak.
  const double share = device.arch == 90 || device.arch == 100 ? 0.35 : 0.65;
  const core::Work work = core::count_work(p);
  const double compute = device.peak_16bit > 0 ? work.flops / (share * device.peak_16bit) : 0;
  const double memory = device.bandwidth > 0 ? work.bytes / (0.85 * device.bandwidth) : 0;
  launch.seconds = (compute > memory ? compute : memory) + 3e-6;
  return launch;
}

Strides strides(const Operand& operand, int64_t batches, int64_t rows, int64_t heads) {
  return {batches > 1 ? operand.batch_stride : 0, rows > 1 ? operand.row_stride : 0,
          heads > 1 ? operand.head_stride : 0};
}

void fill_pointers(const tessera_tensors& t, const Problem& p, ForwardParams* out) {
  out->q = t.q;
  out->k = t.k;
  out->v = t.v;
  out->o = t.o;
  out->lse = p.has(TESSERA_FLAG_LSE) ? static_cast<float*>(t.lse) : nullptr;
  out->cu_seqlens_q = p.layout_q == TESSERA_PACKED ? t.cu_seqlens_q : nullptr;
  out->cu_seqlens_k = p.layout_kv == TESSERA_PACKED ? t.cu_seqlens_k : nullptr;
  out->seqused_q = p.has(TESSERA_FLAG_SEQUSED_Q) ? t.seqused_q : nullptr;
  out->seqused_k = p.has(TESSERA_FLAG_SEQUSED_K) ? t.seqused_k : nullptr;
  out->page_table = t.page_table;
  out->leftpad = p.has(TESSERA_FLAG_LEFTPAD) ? t.leftpad : nullptr;
  out->batch_idx = p.has(TESSERA_FLAG_BATCH_IDX) ? t.batch_idx : nullptr;
  out->alibi_slopes = p.has(TESSERA_FLAG_ALIBI) ? t.alibi_slopes : nullptr;
  out->sinks = p.has(TESSERA_FLAG_SINKS) ? t.sinks : nullptr;
  out->bias = p.has(TESSERA_FLAG_BIAS) ? t.bias : nullptr;
}

ForwardParams make_params(const Plan& plan, const tessera_tensors& tensors) {
  const Problem& p = plan.problem;
  ForwardParams out{};
  fill_pointers(tensors, p, &out);
  const bool packed_q = p.layout_q == TESSERA_PACKED, packed_k = p.layout_kv == TESSERA_PACKED,
             paged = p.layout_kv == TESSERA_PAGED;
  const int64_t rows_q = packed_q ? p.total_q : p.seqlen_q;
  const int64_t rows_k = paged ? p.page_size : packed_k ? p.total_k : p.seqlen_k;
  const int64_t batches_k = paged ? p.num_pages : packed_k ? 1 : p.batch_kv;
  out.q_stride = strides(p.q, packed_q ? 1 : p.batch, rows_q, p.heads_q);
  out.o_stride = strides(p.o, packed_q ? 1 : p.batch, rows_q, p.heads_q);
  out.k_stride = strides(p.k, batches_k, rows_k, p.heads_kv);
  out.v_stride = strides(p.v, batches_k, rows_k, p.heads_kv);
  for (int i = 0; i < 4; ++i) out.bias_stride[i] = p.bias.stride[i];
  out.page_table_stride = p.page_table_stride;
  out.alibi_stride = p.alibi_stride;
  out.total_q = p.total_q;
  out.total_k = p.total_k;
  out.left = p.left;
  out.right = p.right;
  out.seqlen_q = static_cast<int32_t>(p.seqlen_q);
  out.seqlen_k = static_cast<int32_t>(p.seqlen_k);
  out.batch_kv = static_cast<int32_t>(p.batch_kv);
  out.heads_q = p.heads_q;
  out.group = p.group;
  out.head_dim_qk = p.head_dim_qk;
  out.head_dim_v = p.head_dim_v;
  out.num_pages = static_cast<int32_t>(p.num_pages);
  out.max_pages = static_cast<int32_t>(p.max_pages);
  out.page_size = paged ? p.page_size : 0;
  out.bias_dtype = p.has(TESSERA_FLAG_BIAS) ? p.bias.dtype : 0;
  out.num_splits = 1;
  out.scale = static_cast<float>(p.scale);
  out.scale_log2 = static_cast<float>(p.scale * core::kLog2E);
  out.softcap = static_cast<float>(p.softcap);
  out.top_left = p.top_left;
  out.o_is_float = p.o.dtype == TESSERA_F32;
  const auto head_batches = static_cast<uint32_t>(p.batch * p.heads_q);
  const auto group = static_cast<uint32_t>(plan.launch.variant);
  out.schedule = {static_cast<uint32_t>(query_blocks(p, plan.launch.tile_m)), head_batches, group,
                  head_batches % group};
  return out;
}

// The same launch writing partial states: float32, contiguous, without sinks.
ForwardParams make_partial(const Problem& p, const ForwardParams& params, int32_t num_splits, std::byte* workspace) {
  ForwardParams out = params;
  const bool packed_q = p.layout_q == TESSERA_PACKED;
  out.o = workspace;
  out.lse = reinterpret_cast<float*>(workspace + partial_o_bytes(p));
  out.o_is_float = true;
  out.sinks = nullptr;
  out.num_splits = num_splits;
  const int64_t row = int64_t{p.heads_q} * p.head_dim_v;
  out.o_stride = {packed_q ? 0 : p.seqlen_q * row, row, p.head_dim_v};
  out.o_split_stride = query_rows(p) * row;
  out.lse_split_stride = query_rows(p) * p.heads_q;
  return out;
}

int run_forward(const Plan& plan, const core::RunContext& context) {
  const Problem& p = plan.problem;
  const ForwardInstance& instance = forward_instance(p, *plan.device);
  const ForwardParams params = make_params(plan, *context.tensors);
  const uint32_t blocks = params.schedule.query_blocks * params.schedule.head_batches;
  if (blocks == 0) return TESSERA_OK;
  const auto stream = static_cast<cudaStream_t>(context.cuda_stream);
  DeviceScope scope(p.device);
  if (scope.error() != cudaSuccess)
    return scope.finish(scope.error(), "cuda.sm80.forward: making the device current", context.status);
  if (plan.launch.num_splits == 1) {
    return scope.finish(instance.launch(params, blocks, stream), "cuda.sm80.forward: launch", context.status);
  }
  const ForwardParams partial = make_partial(p, params, plan.launch.num_splits, context.workspace);
  cudaError_t error = instance.launch(partial, blocks * static_cast<uint32_t>(partial.num_splits), stream);
  if (error == cudaSuccess) error = launch_combine(partial, params, p.q.dtype == TESSERA_BF16, stream);
  return scope.finish(error, "cuda.sm80.forward: launch", context.status);
}

int prepare_forward(const Plan& plan, tessera_status* status) {
  DeviceScope scope(plan.problem.device);
  if (scope.error() != cudaSuccess)
    return scope.finish(scope.error(), "cuda.sm80.forward: making the device current", status);
  cudaError_t error = forward_instance(plan.problem, *plan.device).prepare();
  if (error == cudaSuccess && plan.launch.num_splits > 1) error = prepare_combine(plan.problem.q.dtype == TESSERA_BF16);
  return scope.finish(error, "cuda.sm80.forward: loading the kernel", status);
}

constexpr core::KernelEntry kKernels[] = {
    {"cuda.sm80.forward", refuse_forward, configure_forward, run_forward, false, prepare_forward},
};

}  // namespace
}  // namespace tessera::cuda

namespace tessera::core {

KernelList cuda_kernels() { return cuda::kKernels; }

}  // namespace tessera::core
