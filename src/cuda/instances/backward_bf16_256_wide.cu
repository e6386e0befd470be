// The sm80 backward for bf16, the head-dim bucket 256, in 227 KB of shared memory.
#include "../sm80/backward_instance.cuh"

namespace tessera::cuda::sm80 {

extern constexpr BackwardKernels kBackwardBf16D256Wide = backward_kernels<Bf16, 256, BackwardSize::wide>();

}  // namespace tessera::cuda::sm80
