// The shared memory of the block that a host thread runs. Dynamic shared memory is one array, by whatever name a kernel
// declares it (shared_memory.cpp lists the names); behind the bytes of the launch it is inaccessible by the page, and
// watched up to there. Shared addresses are offsets in it, from shared_window() on.
#pragma once

#include <cstddef>
#include <cstdint>

#include "where.hpp"

namespace tessera::emulator {

// A multiple of what kernels ask for, and of no more: 128 bytes, for Hopper's swizzles 1024.
uint32_t shared_window();
inline constexpr size_t kSharedCapacity = 256 * 1024;

// Before a block: `bytes` of dynamic shared memory and all static shared memory filled with garbage.
void open_shared_memory(size_t bytes);
// After it: nothing beside the bytes was written.
void check_shared_memory();
// After the last block: the host thread's memory as it was, since the C library uses it again for another thread.
void close_shared_memory();

// Dynamic bytes of the running block.
size_t shared_bytes();
// Where in the dynamic shared memory, or -1.
int64_t shared_offset(const void* pointer);
// The address as an instruction takes it.
uint32_t shared_address(const void* pointer, Where where);
// `bytes` at a shared address that `what` is about to touch; a multiple of `alignment`.
char* shared_pointer(uint32_t address, uint32_t bytes, uint32_t alignment, const char* what, Where where);

}  // namespace tessera::emulator
