// Emulated additions and counters in global memory. Blocks run one after another and their threads take turns, so every
// operation is whole; a load that a thread may spin on lets the others go first.
#pragma once

#include <cstdint>

#include "../block.hpp"

namespace tessera::cuda::ptx {

inline void reduce_add(float* address, float value) { *address += value; }
inline void reduce_add_v4(float* address, const float (&values)[4]) {
  for (int i = 0; i < 4; ++i) address[i] += values[i];
}
inline void reduce_add_release(int32_t* address, int32_t value) { *address += value; }
inline int32_t load_acquire(const int32_t* address) {
  tessera::emulator::Block::running()->pause();
  return *address;
}
inline uint32_t fetch_increment(uint32_t* address) { return (*address)++; }

}  // namespace tessera::cuda::ptx
