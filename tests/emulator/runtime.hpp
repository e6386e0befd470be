// What the parts of the runtime share with one another and with launches.
#pragma once

#include <functional>

#include "launch.hpp"

namespace tessera::emulator {

// Keeps an error as the host thread's last one, and returns it.
cudaError_t result(cudaError_t error);

// Sizes of grid and block, and the shared memory that cudaFuncSetAttribute allowed the kernel.
cudaError_t check_launch(const void* kernel, const Launch& launch);

// Runs `work`, or keeps it for the graph that the stream is captured into.
cudaError_t submit(cudaStream_t stream, std::function<cudaError_t()> work);
// While this host thread captures a stream it may neither allocate nor wait.
cudaError_t refuse_while_capturing();

}  // namespace tessera::emulator
