// src/cuda/ptx/load.cuh.
#pragma once

namespace tessera::cuda::ptx {

inline uint4 load_last(const uint4* from) { return *from; }

}  // namespace tessera::cuda::ptx
