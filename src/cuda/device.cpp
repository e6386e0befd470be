// CUDA devices as plain data, read once. Without a driver, or with one older than the toolkit's, there is no device and
// a sentence that says so; nothing here needs one to load.
#include <cuda_runtime_api.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "device_info.hpp"

namespace tessera::core {
namespace {

constexpr int kMaxDevices = 64;

struct Devices {
  std::array<DeviceInfo, kMaxDevices> info{};
  int count = 0;
  char reason[128] = "";
};

int attribute(cudaDeviceAttr what, int device) {
  int value = 0;
  return cudaDeviceGetAttribute(&value, what, device) == cudaSuccess ? value : 0;
}

// Dense 16-bit tensor FLOPs a multiprocessor and cycle, by compute capability (NVIDIA's architecture whitepapers).
double tensor_flops_per_cycle(int arch) {
  if (arch >= 120) return 1024;
  if (arch >= 100) return 8192;
  if (arch >= 90) return 4096;
  return arch == 80 ? 2048 : 1024;
}

void read_device(int device, DeviceInfo* info) {
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) return;
  std::snprintf(info->name, sizeof info->name, "%.31s", properties.name);
  info->is_cpu = false;
  info->present = true;
  info->arch = 10 * properties.major + properties.minor;
  info->units = properties.multiProcessorCount;
  info->l2_bytes = properties.l2CacheSize;
  info->l1_bytes = static_cast<int64_t>(properties.sharedMemPerMultiprocessor);
  info->shared_bytes_per_block = static_cast<int64_t>(properties.sharedMemPerBlockOptin);
  info->memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  const double clock = attribute(cudaDevAttrClockRate, device) * 1e3;
  info->peak_f32 = info->units * clock * (info->arch == 80 ? 128 : 256);
  info->peak_16bit = info->units * clock * tensor_flops_per_cycle(info->arch);
  info->peak_8bit = info->arch == 80 || info->arch == 86 || info->arch == 87 ? 0 : 2 * info->peak_16bit;
  // Two transfers a clock.
  info->bandwidth = 2.0 * attribute(cudaDevAttrMemoryClockRate, device) * 1e3 *
                    attribute(cudaDevAttrGlobalMemoryBusWidth, device) / 8;
}

const Devices& devices() {
  static const Devices found = [] {
    Devices d;
    const cudaError_t pending = cudaPeekAtLastError();
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) {
      int driver = 0, runtime = 0;
      cudaDriverGetVersion(&driver);
      cudaRuntimeGetVersion(&runtime);
      if (driver == 0) {
        std::snprintf(d.reason, sizeof d.reason, "there is no NVIDIA driver");
      } else if (driver < runtime) {
        std::snprintf(d.reason, sizeof d.reason, "the NVIDIA driver serves CUDA %d.%d; expected %d.0 or later",
                      driver / 1000, driver % 1000 / 10, runtime / 1000);
      } else {
        std::snprintf(d.reason, sizeof d.reason, "the NVIDIA driver answers: %s", cudaGetErrorString(error));
      }
      if (pending == cudaSuccess) cudaGetLastError();
      return d;
    }
    d.count = count < kMaxDevices ? count : kMaxDevices;
    for (int i = 0; i < d.count; ++i) read_device(i, &d.info[static_cast<size_t>(i)]);
    std::snprintf(d.reason, sizeof d.reason,
                  d.count == 0 ? "there is no CUDA device" : "there are %d CUDA devices, counted from 0", d.count);
    return d;
  }();
  return found;
}

}  // namespace

const DeviceInfo* cuda_info(int32_t index, const char** reason) {
  const Devices& found = devices();
  if (index >= 0 && index < found.count && found.info[static_cast<size_t>(index)].present)
    return &found.info[static_cast<size_t>(index)];
  if (reason != nullptr) *reason = found.reason;
  return nullptr;
}

int32_t cuda_device_count() { return devices().count; }

}  // namespace tessera::core
