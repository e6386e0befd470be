// Host operands on a CUDA device: copies that host pointers translate to, and launches timed between events. What the
// command line and the GPU tests share. Without CUDA the classes exist and cannot be made.
// Errors: std::bad_alloc where the device has no room, else std::runtime_error with the runtime's words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/tessera.h"

namespace tessera::baselines {

// Bytes of device memory; the address is a multiple of 256, plus `offset`.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(int32_t device, size_t bytes, size_t offset = 0);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  int32_t device_ = 0;
  void* base_ = nullptr;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// Device copies of host ranges, at the same address modulo 256. A range's copy ends with its allocation, so that a
// memory checker sees a read past it.
class Mirror {
 public:
  explicit Mirror(int32_t device) : device_(device) {}
  void add(const void* host, size_t bytes);
  void upload() const;    // host to device
  void download() const;  // device to host, after all that the device has to do
  // The copy's place of a host pointer; null stays null. Throws for a pointer outside every range.
  void* translate(const void* host) const;
  tessera_tensors translate(const tessera_tensors& host) const;

 private:
  struct Range {
    std::byte* host;
    DeviceBuffer copy;
  };
  int32_t device_;
  std::vector<Range> ranges_;
};

// A stream of a device and events around what is launched on it.
class DeviceClock {
 public:
  // Before each launch `flush_bytes` of device memory are written, so that the L2 cache serves nothing.
  explicit DeviceClock(int32_t device, size_t flush_bytes = 0);
  ~DeviceClock();
  DeviceClock(const DeviceClock&) = delete;
  DeviceClock& operator=(const DeviceClock&) = delete;
  void* stream() const { return stream_; }
  // Seconds between events before and after what `launch` puts on the stream; waits for the end.
  double seconds(const std::function<void()>& launch) const;
  void synchronize() const;

 private:
  int32_t device_;
  void *stream_ = nullptr, *begin_ = nullptr, *end_ = nullptr;
  DeviceBuffer flush_;
};

// "CUDA 13.0", what the driver serves; empty without one.
std::string driver_version();

}  // namespace tessera::baselines
