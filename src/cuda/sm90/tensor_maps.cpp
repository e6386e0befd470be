// Encodes tensor maps through the driver's entry point, so that nothing links against the driver.
#include "tensor_maps.hpp"

#include <atomic>

#include "../forward_host.hpp"

namespace tessera::cuda::sm90 {
namespace {

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                            const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

std::atomic<Encode> encoder{nullptr};

}  // namespace

// TMA counts bytes between rows in multiples of 16, below 2^40.
core::Refusal refuse_map_strides(const core::Problem& p) {
  const auto [batches_q, rows_q, batches_k, rows_k] = extents(p);
  const bool backward = p.pass == TESSERA_BACKWARD;
  const struct {
    const char* argument;
    int64_t stride, count;
  } rules[] = {{"q.batch stride", p.q.batch_stride, batches_q},
               {"q.row stride", p.q.row_stride, rows_q},
               {"q.head stride", p.q.head_stride, p.heads_q},
               {"k.batch stride", p.k.batch_stride, batches_k},
               {"k.row stride", p.k.row_stride, rows_k},
               {"k.head stride", p.k.head_stride, p.heads_kv},
               {"v.batch stride", p.v.batch_stride, batches_k},
               {"v.row stride", p.v.row_stride, value_rows(p)},
               {"v.head stride", p.v.head_stride, p.heads_kv},
               {"d_o.batch stride", p.d_o.batch_stride, backward ? batches_q : 0},
               {"d_o.row stride", p.d_o.row_stride, backward ? rows_q : 0},
               {"d_o.head stride", p.d_o.head_stride, backward ? p.heads_q : 0}};
  for (const auto& rule : rules) {
    if (rule.count > 1 && (rule.stride < 0 || rule.stride >= int64_t{1} << 39)) {
      return {"copies by tensor maps, whose strides are below 2^39 elements", rule.argument, rule.stride};
    }
  }
  return {};
}

cudaError_t load_encoder() {
  if (encoder.load(std::memory_order_relaxed) != nullptr) return cudaSuccess;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
  if (error != cudaSuccess) return error;
  if (found != cudaDriverEntryPointSuccess || function == nullptr) return cudaErrorSymbolNotFound;
  encoder.store(reinterpret_cast<Encode>(function), std::memory_order_relaxed);
  return cudaSuccess;
}

cudaError_t encode_tensor_map(const TensorView& view, int32_t dtype, int32_t span, CUtensorMap* map) {
  cuuint64_t extent[5], stride_bytes[4];
  cuuint32_t box[5];
  const cuuint32_t step[5] = {1, 1, 1, 1, 1};
  const auto element_bytes = static_cast<cuuint64_t>(core::dtype_bytes(dtype));
  for (int i = 0; i < view.rank; ++i) {
    if (view.extent[i] == 0) return cudaSuccess;
    extent[i] = static_cast<cuuint64_t>(view.extent[i]);
    box[i] = static_cast<cuuint32_t>(view.box[i]);
    // The stride of a dimension of size 1 is never used, and may be anything in the problem.
    if (i > 0) stride_bytes[i - 1] = view.extent[i] > 1 ? element_bytes * static_cast<cuuint64_t>(view.stride[i]) : 16;
  }
  const CUresult result =
      encoder.load(std::memory_order_relaxed)(map,
                                              dtype == TESSERA_E4M3   ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                              : dtype == TESSERA_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                                      : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                                              static_cast<cuuint32_t>(view.rank), const_cast<void*>(view.data), extent,
                                              stride_bytes, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                              span == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                              : span == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                           : CU_TENSOR_MAP_SWIZZLE_32B,
                                              CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace tessera::cuda::sm90
