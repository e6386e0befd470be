// Additions and counters in global memory that several blocks share. The blocks of a launch may run on several host
// threads, so these are whole there too; a thread that polls lets the others go first.
#pragma once

namespace tessera::cuda::ptx {

inline void reduce_add(float* address, float value) { atomicAdd(address, value); }
inline void reduce_add_release(int32_t* address, int32_t value) { atomicAdd(address, value); }
inline uint32_t fetch_increment(uint32_t* address) { return atomicAdd(address, 1u); }
inline int32_t load_acquire(const int32_t* address, TESSERA_WHERE) {
  emulator::Block::running()->spin(where);
  return __atomic_load_n(address, __ATOMIC_ACQUIRE);
}

}  // namespace tessera::cuda::ptx
