// cuTensorMapEncodeTiled with the checks of the driver (CUDA Driver API, "Tensor Map Object Management"), and the
// driver's entry points.
#include "tensor_map.hpp"

#include <cuda_runtime_api.h>

#include <cstring>

#include "failure.hpp"

namespace tessera::emulator {
namespace {

constexpr uint64_t kMagic = 0x74656e736f726d61;

uint32_t element_bytes(CUtensorMapDataType type) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8:
      return 1;
    case CU_TENSOR_MAP_DATA_TYPE_UINT16:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
      return 2;
    case CU_TENSOR_MAP_DATA_TYPE_UINT32:
    case CU_TENSOR_MAP_DATA_TYPE_INT32:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
      return 4;
  }
  return 0;
}

CUresult encode_tiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data, const cuuint64_t* extent,
                      const cuuint64_t* stride_bytes, const cuuint32_t* box, const cuuint32_t* step,
                      CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                      CUtensorMapFloatOOBfill fill) {
  const uint32_t bytes = element_bytes(type);
  if (map == nullptr || reinterpret_cast<uintptr_t>(map) % 64 != 0 || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (rank < 1 || rank > 5 || data == nullptr || reinterpret_cast<uintptr_t>(data) % 16 != 0)
    return CUDA_ERROR_INVALID_VALUE;
  TensorMap out{};
  for (uint32_t i = 0; i < rank; ++i) {
    if (extent[i] == 0 || extent[i] > uint64_t{1} << 32 || box[i] == 0 || box[i] > 256) return CUDA_ERROR_INVALID_VALUE;
    if (step[i] == 0 || step[i] > 8) return CUDA_ERROR_INVALID_VALUE;
    if (step[i] != 1) fail({}, "cuTensorMapEncodeTiled with an element stride of %u is not emulated", step[i]);
    if (i > 0) {
      const uint64_t stride = stride_bytes[i - 1];
      if (stride % 16 != 0 || stride >= uint64_t{1} << 40) return CUDA_ERROR_INVALID_VALUE;
      out.stride[i - 1] = stride;
    }
    out.extent[i] = static_cast<uint32_t>(extent[i] - 1);
    out.box[i] = static_cast<uint16_t>(box[i]);
  }
  static constexpr uint16_t kSpans[] = {0, 32, 64, 128};
  out.span = kSpans[swizzle];
  const uint32_t row_bytes = box[0] * bytes;
  if (row_bytes % 16 != 0 || (out.span != 0 && row_bytes > out.span)) return CUDA_ERROR_INVALID_VALUE;
  if (interleave != CU_TENSOR_MAP_INTERLEAVE_NONE || fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
    fail({}, "cuTensorMapEncodeTiled with interleaving or a fill of NaN is not emulated");
  out.magic = kMagic;
  out.data = static_cast<const char*>(data);
  out.rank = static_cast<uint8_t>(rank);
  out.element_bytes = static_cast<uint8_t>(bytes);
  std::memset(map, 0, sizeof *map);
  std::memcpy(map, &out, sizeof out);
  return CUDA_SUCCESS;
}

}  // namespace

TensorMap read_tensor_map(const void* map, Where where) {
  TensorMap found;
  if (reinterpret_cast<uintptr_t>(map) % 64 != 0) fail(where, "a tensor map at %p, no multiple of 64", map);
  std::memcpy(&found, map, sizeof found);
  if (found.magic != kMagic) fail(where, "a tensor map at %p that was not encoded", map);
  return found;
}

}  // namespace tessera::emulator

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  const bool known = std::strcmp(name, "cuTensorMapEncodeTiled") == 0 && version >= 12000;
  *function = known ? reinterpret_cast<void*>(tessera::emulator::encode_tiled) : nullptr;
  if (found != nullptr) *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
