// The sm80 backward for bf16, the head-dim bucket 256.
#include "../sm80/backward_instance.cuh"

namespace tessera::cuda::sm80 {

extern constexpr BackwardKernels kBackwardBf16D256 = backward_kernels<Bf16, 256>();

}  // namespace tessera::cuda::sm80
