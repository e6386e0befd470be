// Device memory as host memory: every allocation ends at an inaccessible page and begins behind one, and holds garbage.
#pragma once

#include <cstddef>
#include <string>

namespace tessera::emulator {

void* allocate(size_t bytes);  // null: no room
bool release(void* pointer);   // false: not the begin of an allocation
bool owns(const void* pointer, size_t bytes);
size_t free_bytes();
// "8 bytes behind an allocation of 256", for messages.
std::string describe_device_address(const void* address);

}  // namespace tessera::emulator
