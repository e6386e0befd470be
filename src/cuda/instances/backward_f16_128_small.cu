// The sm80 backward for f16, the head-dim bucket 128, in 99 KB of shared memory.
#include "../sm80/backward_instance.cuh"

namespace tessera::cuda::sm80 {

extern constexpr BackwardKernels kBackwardF16D128Small = backward_kernels<F16, 128, BackwardSize::small>();

}  // namespace tessera::cuda::sm80
