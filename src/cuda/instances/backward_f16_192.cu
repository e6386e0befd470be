// The sm80 backward for f16, the head-dim bucket 192.
#include "../sm80/backward_instance.cuh"

namespace tessera::cuda::sm80 {

extern constexpr BackwardKernels kBackwardF16D192 = backward_kernels<F16, 192>();

}  // namespace tessera::cuda::sm80
