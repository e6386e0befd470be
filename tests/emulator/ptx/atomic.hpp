// Additions and counters in global memory that several blocks share. The blocks of a launch may run on several host
// threads, so these are whole there too; a thread that polls lets the others go first.
#pragma once

namespace tessera::cuda::ptx {

inline void reduce_add(float* address, float value) { atomicAdd(address, value); }
inline bool has_reduce_add_v4() { return emulator::architecture() >= 90; }
inline void reduce_add_v4(float* address, const float (&v)[4], TESSERA_WHERE) {
  if (reinterpret_cast<uintptr_t>(address) % 16 != 0)
    emulator::fail(where, "red.v4 at %p, which is no multiple of 16", static_cast<void*>(address));
  for (int i = 0; i < 4; ++i) atomicAdd(address + i, v[i]);
}
// A release waits for what was written before: now and then so long that the other threads go steps ahead.
inline void reduce_add_release(int32_t* address, int32_t value) {
  emulator::Block& block = *emulator::Block::running();
  if (block.random() % 8 == 0) {
    for (int i = 0; i < emulator::kSlowRelease; ++i) block.pause();
  }
  atomicAdd(address, value);
}
inline unsigned long long load_relaxed(const unsigned long long* address) {
  return __atomic_load_n(address, __ATOMIC_RELAXED);
}
inline int32_t load_relaxed(const int32_t* address) { return __atomic_load_n(address, __ATOMIC_RELAXED); }
inline unsigned long long arrive(unsigned long long* address) { return atomicAdd(address, 1ull); }
inline uint32_t fetch_increment(uint32_t* address) { return atomicAdd(address, 1u); }
inline int32_t load_acquire(const int32_t* address, TESSERA_WHERE) {
  emulator::Block::running()->spin(where);
  return __atomic_load_n(address, __ATOMIC_ACQUIRE);
}

}  // namespace tessera::cuda::ptx
