// The sm80 backward for bf16, the head-dim bucket 64.
#include "../sm80/backward_instance.cuh"

namespace tessera::cuda::sm80 {

extern constexpr BackwardKernels kBackwardBf16D64 = backward_kernels<Bf16, 64>();

}  // namespace tessera::cuda::sm80
