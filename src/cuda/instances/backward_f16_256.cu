// The sm80 backward for f16, the head-dim bucket 256.
#include "../sm80/backward_instance.cuh"

namespace tessera::cuda::sm80 {

extern constexpr BackwardKernels kBackwardF16D256 = backward_kernels<F16, 256>();

}  // namespace tessera::cuda::sm80
