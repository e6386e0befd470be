// tessera_quantize on operands of a CUDA device: what its kernels do not take, and their parameters.
// src/quantize_rules.cpp has checked the arguments.
#include "quantize.hpp"

#include "device.hpp"
#include "device_info.hpp"
#include "launch.hpp"

namespace tessera::core {
namespace {

constexpr int32_t kMostOrderedDim = 256;  // order 1 keeps 132 bytes a channel in the 48 KB of shared memory
constexpr int32_t kMostRotatedDim = 512;  // bits of QuantizeParams.negated

bool is_aligned(const void* pointer, const cuda::Strides& strides, int64_t element, int64_t access) {
  return reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(access) == 0 &&
         ((strides.batch | strides.row | strides.head) * element) % access == 0;
}

// A launch stores what the one before it has read for its scales: groups of whole cells whose x is a third of the L2
// cache, which meanwhile takes in the next group and y too. A cell that is larger is a group.
cuda::QuantizeCut cut_of(const Quantize& quantize, const DeviceInfo& device) {
  const tessera_quantize_args& args = *quantize.args;
  cuda::QuantizeCut cut{};
  cut.own_scales = args.scale_data != nullptr && quantize.tiles_own_cells();
  cut.overlaps = device.arch >= 90;
  cut.multiprocessors = device.units, cut.shared_bytes = device.shared_bytes_per_block;
  const int64_t batch = std::max<int64_t>(args.batch, 1), heads = args.heads;
  const int64_t rows = quantize.packed() ? args.total / batch : args.seqlen;
  const int64_t head_bytes = std::max<int64_t>(rows, 1) * args.head_dim * dtype_bytes(quantize.x.dtype);
  const int64_t fit = std::max<int64_t>(device.l2_bytes / 3 / head_bytes, 1);
  const bool by_batch = quantize.scale_stride[0] != 0, by_head = quantize.scale_stride[2] != 0;
  int64_t batches = batch, own_heads = heads;
  if (by_batch && (fit >= heads || !by_head))
    batches = std::clamp<int64_t>(fit / heads, 1, batch);
  else if (by_head)
    batches = by_batch ? 1 : batch, own_heads = std::clamp<int64_t>(fit / batches, 1, heads);
  cut.batches = static_cast<int32_t>(batches), cut.heads = static_cast<int32_t>(own_heads);
  return cut;
}

}  // namespace

int check_quantize_cuda(const Quantize& quantize, tessera_status* status) {
  const tessera_quantize_args& args = *quantize.args;
  if (quantize.ordered() && args.head_dim > kMostOrderedDim) {
    return fail(status, TESSERA_UNSUPPORTED, "head_dim is %d and order is 1; CUDA devices order at most %d channels",
                args.head_dim, kMostOrderedDim);
  }
  if (args.hadamard == 1 && args.head_dim > kMostRotatedDim) {
    return fail(status, TESSERA_UNSUPPORTED,
                "head_dim is %d and hadamard is 1; CUDA devices rotate at most %d channels", args.head_dim,
                kMostRotatedDim);
  }
  const int64_t chunks = (int64_t{args.head_dim} + cuda::kQuantizeMeanChannels - 1) / cuda::kQuantizeMeanChannels;
  int64_t blocks = 0;
  if (__builtin_mul_overflow(args.batch * args.heads, std::max(quantize.tiles(), chunks), &blocks) ||
      blocks > INT32_MAX || args.head_dim > (1 << 20)) {
    return fail(status, TESSERA_UNSUPPORTED,
                "batch %lld, heads %d, seqlen %lld and head_dim %d; CUDA devices take at most 2147483647 blocks of 128 "
                "rows, or of 64 channels of a head, and 1048576 channels",
                static_cast<long long>(args.batch), args.heads, static_cast<long long>(args.seqlen), args.head_dim);
  }
  return TESSERA_OK;
}

int run_quantize_cuda(const Quantize& quantize, void* stream, tessera_status* status) {
  const tessera_quantize_args& args = *quantize.args;
  cuda::QuantizeParams params{};
  params.x = args.x_data, params.y = args.y_data;
  params.scale = args.scale_data, params.mean = args.subtract_mean == 1 ? args.mean : nullptr;
  params.cu_seqlens = args.cu_seqlens;
  params.x_stride = {quantize.x.batch_stride, quantize.x.row_stride, quantize.x.head_stride};
  params.y_stride = {quantize.y.batch_stride, quantize.y.row_stride, quantize.y.head_stride};
  std::copy_n(quantize.scale_stride, 3, params.scale_stride);
  std::copy_n(quantize.cells, 3, params.cells);
  params.seqlen = args.seqlen, params.total = args.total;
  params.limit = quantize.limit(), params.rotation_unit = rotation_unit(quantize.rotation);
  params.batch = static_cast<int32_t>(args.batch), params.heads = args.heads, params.dim = args.head_dim;
  params.tiles = static_cast<int32_t>(quantize.tiles());
  params.x_dtype = quantize.x.dtype, params.y_dtype = quantize.y.dtype;
  params.scale_rows = args.scale_rows, params.rotation = quantize.rotation;
  params.ordered = quantize.ordered();
  for (int32_t c = 0; c < args.head_dim && quantize.rotation > 0; ++c) {
    const uint32_t negated = rotation_negates(args.seed, c) ? 1 : 0;
    params.negated[c / 32] |= negated << c % 32;
    if (c / 2 < static_cast<int32_t>(std::size(params.negated_pairs)))
      params.negated_pairs[c / 2] |= negated << (c % 2 == 0 ? 15 : 31);
  }
  params.by_held = cuda::Divisor(static_cast<uint32_t>(args.head_dim / cuda::kHeldChannels));
  params.x_aligned = is_aligned(args.x_data, params.x_stride, dtype_bytes(quantize.x.dtype), 16);
  params.y_aligned = is_aligned(args.y_data, params.y_stride, 1, params.ordered ? 16 : 8);
  params.held = args.head_dim % cuda::kHeldChannels == 0 && args.head_dim <= cuda::kMostHeldDim && params.x_aligned &&
                is_aligned(args.y_data, params.y_stride, 1, 16) && is_aligned(params.mean, {}, 4, 16) &&
                args.batch * args.heads <= INT32_MAX / (cuda::kMostHeldDim / cuda::kHeldMeanChannels);
  const char* reason = "";
  const cuda::QuantizeCut cut = cut_of(quantize, *cuda_info(args.device, &reason));
  cuda::DeviceScope scope(args.device);
  if (scope.error() != cudaSuccess) return scope.finish(scope.error(), "quantize: making the device current", status);
  return scope.finish(cuda::launch_quantize(params, cut, static_cast<cudaStream_t>(stream)), "quantize: launch",
                      status);
}

}  // namespace tessera::core
