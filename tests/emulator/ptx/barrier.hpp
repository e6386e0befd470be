// The instructions of src/cuda/ptx/barrier.cuh.
#pragma once

namespace tessera::cuda::ptx {

inline void barrier_sync(uint32_t id, uint32_t threads, TESSERA_WHERE) {
  emulator::Block::running()->arrive(static_cast<int>(id), static_cast<int>(threads), true, where);
}
inline void barrier_arrive(uint32_t id, uint32_t threads, TESSERA_WHERE) {
  emulator::Block::running()->arrive(static_cast<int>(id), static_cast<int>(threads), false, where);
}

}  // namespace tessera::cuda::ptx
