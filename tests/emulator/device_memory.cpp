#include "device_memory.hpp"

#include <sys/mman.h>

#include <cstring>
#include <map>
#include <mutex>

#include "device.hpp"

namespace tessera::emulator {
namespace {

constexpr size_t kPage = 4096;

struct Allocation {
  size_t bytes;
  char* map;
  size_t map_bytes;
};

std::mutex mutex;
size_t used = 0;

std::map<const char*, Allocation>& allocations() {
  static std::map<const char*, Allocation> all;
  return all;
}

}  // namespace

void* allocate(size_t bytes) {
  const std::lock_guard lock(mutex);
  if (bytes > kMemoryBytes - used) return nullptr;
  const size_t rounded = (bytes + 255) / 256 * 256;  // the runtime's addresses are multiples of 256
  const size_t map_bytes = (rounded + kPage - 1) / kPage * kPage + 2 * kPage;
  void* map = mmap(nullptr, map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) return nullptr;
  char* const begin = static_cast<char*>(map);
  mprotect(begin + kPage, map_bytes - 2 * kPage, PROT_READ | PROT_WRITE);
  char* const data = begin + map_bytes - kPage - rounded;
  std::memset(data, 0xff, rounded);
  allocations()[data] = {bytes, begin, map_bytes};
  used += bytes;
  return data;
}

bool release(void* pointer) {
  const std::lock_guard lock(mutex);
  const auto found = allocations().find(static_cast<const char*>(pointer));
  if (found == allocations().end()) return false;
  munmap(found->second.map, found->second.map_bytes);
  used -= found->second.bytes;
  allocations().erase(found);
  return true;
}

bool owns(const void* pointer, size_t bytes) {
  const std::lock_guard lock(mutex);
  const auto* address = static_cast<const char*>(pointer);
  auto found = allocations().upper_bound(address);
  if (found == allocations().begin()) return false;
  --found;
  return address + bytes <= found->first + found->second.bytes;
}

size_t free_bytes() {
  const std::lock_guard lock(mutex);
  return kMemoryBytes - used;
}

std::string describe_device_address(const void* pointer) {
  const auto* address = static_cast<const char*>(pointer);
  for (const auto& [begin, allocation] : allocations()) {
    if (address < allocation.map || address >= allocation.map + allocation.map_bytes) continue;
    const std::string of = " an allocation of " + std::to_string(allocation.bytes) + " bytes";
    if (address < begin) return std::to_string(begin - address) + " bytes before" + of;
    return "byte " + std::to_string(address - begin) + " of" + of;
  }
  return "which is no device memory (or a stack is full)";
}

}  // namespace tessera::emulator
