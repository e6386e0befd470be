// src/cuda/ptx/load.cuh.
#pragma once

namespace tessera::cuda::ptx {

inline uint4 load_last(const uint4* from) { return *from; }
// Reads a byte, so that a line of no array is found.
inline void prefetch(const void* from) { static_cast<void>(*static_cast<const volatile char*>(from)); }

}  // namespace tessera::cuda::ptx
