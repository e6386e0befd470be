// The instructions of src/cuda/ptx/tensor_map.cuh.
#pragma once

namespace tessera::cuda::ptx {

inline void prefetch_tensor_map(const void* map) {
  if (reinterpret_cast<uintptr_t>(map) % 64 != 0)
    emulator::fail({}, "prefetch.tensormap of %p, no multiple of 64", map);
}

}  // namespace tessera::cuda::ptx
