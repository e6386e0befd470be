// The CUDA runtime on the CPU: one device, its memory, errors and what kernels may ask for.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>

#include "device.hpp"
#include "device_memory.hpp"
#include "runtime.hpp"

namespace emulator = tessera::emulator;
using emulator::result;

namespace {

thread_local cudaError_t last_error = cudaSuccess;

std::mutex kernels_mutex;
std::map<const void*, size_t> dynamic_limits;  // kernels that asked for more than kSharedPerBlock

bool on_device(const void* pointer, size_t bytes) { return bytes == 0 || emulator::owns(pointer, bytes); }

}  // namespace

namespace tessera::emulator {

cudaError_t result(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

cudaError_t check_launch(const void* kernel, const Launch& launch) {
  const uint64_t threads = uint64_t{launch.block.x} * launch.block.y * launch.block.z;
  const uint64_t blocks = uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
  const bool fits = threads > 0 && threads <= 1024 && launch.block.z <= 64 && blocks > 0 &&
                    launch.grid.x <= 0x7fffffffu && launch.grid.y <= 65535 && launch.grid.z <= 65535;
  if (!fits) return result(cudaErrorInvalidConfiguration);
  const std::lock_guard lock(kernels_mutex);
  const auto found = dynamic_limits.find(kernel);
  const size_t limit = found != dynamic_limits.end() ? found->second : kSharedPerBlock;
  return launch.shared_bytes <= limit ? cudaSuccess : result(cudaErrorInvalidValue);
}

}  // namespace tessera::emulator

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return result(device == 0 ? cudaSuccess : cudaErrorInvalidDevice); }
cudaError_t cudaDeviceSynchronize() { return result(emulator::refuse_while_capturing()); }

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (device != 0) return result(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = 1024;
      break;
    case cudaDevAttrClockRate:
      *value = 1'000'000;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = emulator::kMultiprocessors;
      break;
    case cudaDevAttrMemoryClockRate:
      *value = 1'000'000;
      break;
    case cudaDevAttrGlobalMemoryBusWidth:
      *value = 256;
      break;
    case cudaDevAttrL2CacheSize:
      *value = emulator::kL2Bytes;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = emulator::architecture() / 10;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = emulator::architecture() % 10;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(emulator::most_shared_bytes());
      break;
    default:
      return result(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device != 0) return result(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "emulated sm_%d", emulator::architecture());
  properties->major = emulator::architecture() / 10;
  properties->multiProcessorCount = emulator::kMultiprocessors;
  properties->l2CacheSize = emulator::kL2Bytes;
  properties->totalGlobalMem = emulator::kMemoryBytes;
  properties->sharedMemPerBlock = emulator::kSharedPerBlock;
  properties->sharedMemPerMultiprocessor = emulator::most_shared_bytes() + 1024;
  properties->sharedMemPerBlockOptin = emulator::most_shared_bytes();
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError() { return last_error; }

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidMemcpyDirection:
      return "cudaErrorInvalidMemcpyDirection";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case cudaErrorIllegalState:
      return "cudaErrorIllegalState";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorSymbolNotFound:
      return "cudaErrorSymbolNotFound";
  }
  return "an unknown error";
}
const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  if (const cudaError_t error = emulator::refuse_while_capturing()) return result(error);
  *pointer = bytes == 0 ? nullptr : emulator::allocate(bytes);
  return result(bytes == 0 || *pointer != nullptr ? cudaSuccess : cudaErrorMemoryAllocation);
}
cudaError_t cudaMallocManaged(void** pointer, size_t bytes, unsigned) { return cudaMalloc(pointer, bytes); }
cudaError_t cudaFree(void* pointer) {
  if (const cudaError_t error = emulator::refuse_while_capturing()) return result(error);
  return result(pointer == nullptr || emulator::release(pointer) ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = emulator::free_bytes();
  *total = emulator::kMemoryBytes;
  return cudaSuccess;
}

namespace {

cudaError_t copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return result(cudaErrorInvalidMemcpyDirection);
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if ((to_device && !on_device(to, bytes)) || (from_device && !on_device(from, bytes)))
    return result(cudaErrorInvalidValue);
  if (bytes > 0) std::memmove(to, from, bytes);
  return cudaSuccess;
}
cudaError_t set(void* to, int value, size_t bytes) {
  if (!on_device(to, bytes)) return result(cudaErrorInvalidValue);
  if (bytes > 0) std::memset(to, value, bytes);
  return cudaSuccess;
}

}  // namespace

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (const cudaError_t error = emulator::refuse_while_capturing()) return result(error);
  return copy(to, from, bytes, kind);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return emulator::submit(stream, [=] { return copy(to, from, bytes, kind); });
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  if (const cudaError_t error = emulator::refuse_while_capturing()) return result(error);
  return set(to, value, bytes);
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return emulator::submit(stream, [=] { return set(to, value, bytes); });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  const bool device = emulator::owns(pointer, 1);
  void* const address = const_cast<void*>(pointer);
  *attributes = device ? cudaPointerAttributes{cudaMemoryTypeDevice, 0, address, nullptr}
                       : cudaPointerAttributes{cudaMemoryTypeUnregistered, -1, nullptr, address};
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value < 0 || static_cast<size_t>(value) > emulator::most_shared_bytes()) return result(cudaErrorInvalidValue);
  const std::lock_guard lock(kernels_mutex);
  dynamic_limits[kernel] = static_cast<size_t>(value);
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int threads, size_t shared_bytes) {
  const size_t by_shared = (emulator::most_shared_bytes() + 1024) / (shared_bytes + 1024);
  const size_t by_threads = threads > 0 ? 2048 / static_cast<size_t>(threads) : 0;
  *blocks = static_cast<int>(by_shared < by_threads ? by_shared : by_threads);
  return cudaSuccess;
}
