// The sm80 backward for bf16, the head-dim bucket 96.
#include "../sm80/backward_instance.cuh"

namespace tessera::cuda::sm80 {

extern constexpr BackwardKernels kBackwardBf16D96 = backward_kernels<Bf16, 96>();

}  // namespace tessera::cuda::sm80
