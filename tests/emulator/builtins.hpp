// The variables that CUDA gives every thread. One set a host thread: the emulator sets them whenever a fiber goes on.
#pragma once

#include <cuda_runtime_api.h>

inline thread_local uint3 threadIdx{}, blockIdx{};
inline thread_local dim3 blockDim{}, gridDim{};
inline constexpr int warpSize = 32;
