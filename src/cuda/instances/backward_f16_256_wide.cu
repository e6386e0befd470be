// The sm80 backward for f16, the head-dim bucket 256, in 227 KB of shared memory.
#include "../sm80/backward_instance.cuh"

namespace tessera::cuda::sm80 {

extern constexpr BackwardKernels kBackwardF16D256Wide = backward_kernels<F16, 256, BackwardSize::wide>();

}  // namespace tessera::cuda::sm80
