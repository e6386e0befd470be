// The instructions of src/cuda/ptx/copy_async.cuh.
#pragma once

namespace tessera::cuda::ptx {

inline uint32_t shared_address(const void* pointer, TESSERA_WHERE) { return emulator::shared_address(pointer, where); }

inline void copy_async_16(uint32_t shared, const void* global, uint32_t bytes, TESSERA_WHERE) {
  char* const to = emulator::shared_pointer(shared, 16, 16, "cp.async", where);
  if (bytes != 0 && bytes != 16) emulator::fail(where, "cp.async of %u bytes; expected 0 or 16", bytes);
  if (reinterpret_cast<uintptr_t>(global) % 16 != 0)
    emulator::fail(where, "cp.async from %p, which is no multiple of 16", global);
  emulator::Block::running()->start_copy(to, global, bytes);
}

inline void copy_async_commit() { emulator::Block::running()->commit_copies(); }

template <int kPending>
void copy_async_wait() {
  emulator::Block::running()->wait_copies(kPending);
}

}  // namespace tessera::cuda::ptx
