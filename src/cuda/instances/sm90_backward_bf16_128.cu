// The sm90 backward for bf16, head dims up to 128.
#include "../sm90/backward_instance.cuh"

namespace tessera::cuda::sm90 {

extern constexpr BackwardBucket kBackwardBf16D128 = backward_bucket<Bf16, 128>();

}  // namespace tessera::cuda::sm90
