// How fast a CUDA device reads its two memories, for a page that compares them.
#pragma once

#include <cuda_runtime_api.h>

namespace tessera::baselines {

// Bytes a second, the best of several launches.
struct Bandwidth {
  double shared;  // all multiprocessors reading their shared memory
  double device;  // a buffer far larger than L2
};

// On the current device; takes 1 GiB of its memory meanwhile.
cudaError_t measure_bandwidth(Bandwidth* bandwidth);

}  // namespace tessera::baselines
