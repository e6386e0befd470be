// Device memory of a build without CUDA: there is no device, so nothing here is ever reached with one.
#include <stdexcept>

#include "device_memory.hpp"

namespace tessera::baselines {
namespace {

[[noreturn]] void no_cuda() { throw std::runtime_error("this build has no CUDA"); }

}  // namespace

DeviceBuffer::DeviceBuffer(int32_t, size_t, size_t) { no_cuda(); }
DeviceBuffer::~DeviceBuffer() {}  // nothing was ever allocated
DeviceBuffer::DeviceBuffer(DeviceBuffer&&) noexcept = default;
DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&&) noexcept = default;

void Mirror::add(const void*, size_t) { no_cuda(); }
void Mirror::upload() const { no_cuda(); }
void Mirror::download() const { no_cuda(); }
void* Mirror::translate(const void*) const { no_cuda(); }
tessera_tensors Mirror::translate(const tessera_tensors&) const { no_cuda(); }

DeviceClock::DeviceClock(int32_t device, size_t) : device_(device) { no_cuda(); }
DeviceClock::~DeviceClock() = default;
double DeviceClock::seconds(const std::function<void()>&) const { no_cuda(); }
void DeviceClock::synchronize() const { no_cuda(); }

std::string driver_version() { return {}; }

}  // namespace tessera::baselines
