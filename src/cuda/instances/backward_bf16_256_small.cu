// The sm80 backward for bf16, the head-dim bucket 256, in 99 KB of shared memory.
#include "../sm80/backward_instance.cuh"

namespace tessera::cuda::sm80 {

extern constexpr BackwardKernels kBackwardBf16D256Small = backward_kernels<Bf16, 256, BackwardSize::small>();

}  // namespace tessera::cuda::sm80
