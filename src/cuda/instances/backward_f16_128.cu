// The sm80 backward for f16, the head-dim bucket 128.
#include "../sm80/backward_instance.cuh"

namespace tessera::cuda::sm80 {

extern constexpr BackwardKernels kBackwardF16D128 = backward_kernels<F16, 128>();

}  // namespace tessera::cuda::sm80
