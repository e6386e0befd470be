// Device memory by the CUDA runtime. Each call makes its device current and restores the caller's.
#include <cuda_runtime_api.h>

#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>

#include "device_memory.hpp"

namespace tessera::baselines {
namespace {

constexpr size_t kAlign = 256;  // of cudaMalloc

void require(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();
  if (error == cudaErrorMemoryAllocation) throw std::bad_alloc();
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

class Current {
 public:
  explicit Current(int32_t device) {
    require(cudaGetDevice(&previous_), "reading the current device");
    require(cudaSetDevice(device), "making the device current");
  }
  ~Current() { cudaSetDevice(previous_); }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  int previous_ = 0;
};

}  // namespace

DeviceBuffer::DeviceBuffer(int32_t device, size_t bytes, size_t offset) : device_(device), bytes_(bytes) {
  const Current current(device);
  require(cudaMalloc(&base_, bytes + offset > 0 ? bytes + offset : 1), "allocating device memory");
  data_ = static_cast<std::byte*>(base_) + offset;
}

DeviceBuffer::~DeviceBuffer() {
  if (base_ == nullptr) return;
  int previous = 0;
  cudaGetDevice(&previous);
  cudaSetDevice(device_);
  cudaFree(base_);
  cudaSetDevice(previous);
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(base_, other.base_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void Mirror::add(const void* host, size_t bytes) {
  ranges_.push_back({static_cast<std::byte*>(const_cast<void*>(host)),
                     DeviceBuffer(device_, bytes, reinterpret_cast<uintptr_t>(host) % kAlign)});
}

void Mirror::upload() const {
  const Current current(device_);
  for (const Range& range : ranges_)
    require(cudaMemcpy(range.copy.data(), range.host, range.copy.bytes(), cudaMemcpyHostToDevice),
            "copying to the device");
  // A copy from pageable memory may return before its last bytes are there, and other streams do not wait for it.
  require(cudaDeviceSynchronize(), "copying to the device");
}

void Mirror::download() const {
  const Current current(device_);
  require(cudaDeviceSynchronize(), "the device");
  for (const Range& range : ranges_)
    require(cudaMemcpy(range.host, range.copy.data(), range.copy.bytes(), cudaMemcpyDeviceToHost),
            "copying from the device");
}

void* Mirror::translate(const void* host) const {
  if (host == nullptr) return nullptr;
  const auto* at = static_cast<const std::byte*>(host);
  for (const Range& range : ranges_) {
    if (at >= range.host && at < range.host + range.copy.bytes()) return range.copy.data() + (at - range.host);
  }
  // An empty tensor may lie one past the end.
  for (const Range& range : ranges_) {
    if (at == range.host + range.copy.bytes()) return range.copy.data() + range.copy.bytes();
  }
  throw std::runtime_error("a host pointer outside every range that is mirrored on the device");
}

tessera_tensors Mirror::translate(const tessera_tensors& host) const {
  tessera_tensors out = host;
  // Behind `size` the struct is nothing but pointers.
  constexpr size_t kPointers = (sizeof(tessera_tensors) - sizeof(size_t)) / sizeof(void*);
  void* pointers[kPointers];
  std::memcpy(pointers, reinterpret_cast<const std::byte*>(&host) + sizeof(size_t), sizeof pointers);
  for (void*& pointer : pointers) pointer = translate(pointer);
  std::memcpy(reinterpret_cast<std::byte*>(&out) + sizeof(size_t), pointers, sizeof pointers);
  return out;
}

DeviceClock::DeviceClock(int32_t device, size_t flush_bytes) : device_(device) {
  const Current current(device);
  if (flush_bytes > 0) flush_ = DeviceBuffer(device, flush_bytes);
  cudaStream_t stream;
  cudaEvent_t begin, end;
  require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
  require(cudaEventCreate(&begin), "making an event");
  require(cudaEventCreate(&end), "making an event");
  stream_ = stream;
  begin_ = begin;
  end_ = end;
}

DeviceClock::~DeviceClock() {
  cudaEventDestroy(static_cast<cudaEvent_t>(begin_));
  cudaEventDestroy(static_cast<cudaEvent_t>(end_));
  cudaStreamDestroy(static_cast<cudaStream_t>(stream_));
}

double DeviceClock::seconds(const std::function<void()>& launch) const {
  const Current current(device_);
  const auto stream = static_cast<cudaStream_t>(stream_);
  const auto begin = static_cast<cudaEvent_t>(begin_), end = static_cast<cudaEvent_t>(end_);
  if (flush_.bytes() > 0) require(cudaMemsetAsync(flush_.data(), 0, flush_.bytes(), stream), "flushing the cache");
  require(cudaEventRecord(begin, stream), "recording an event");
  launch();
  require(cudaEventRecord(end, stream), "recording an event");
  require(cudaStreamSynchronize(stream), "the kernel");
  float milliseconds = 0;
  require(cudaEventElapsedTime(&milliseconds, begin, end), "reading the events");
  return milliseconds * 1e-3;
}

void DeviceClock::synchronize() const {
  require(cudaStreamSynchronize(static_cast<cudaStream_t>(stream_)), "the kernel");
}

std::string driver_version() {
  int version = 0;
  if (cudaDriverGetVersion(&version) != cudaSuccess || version == 0) return {};
  return "CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace tessera::baselines
