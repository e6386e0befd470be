// The sm80 backward for f16, the head-dim bucket 96.
#include "../sm80/backward_instance.cuh"

namespace tessera::cuda::sm80 {

extern constexpr BackwardKernels kBackwardF16D96 = backward_kernels<F16, 96>();

}  // namespace tessera::cuda::sm80
