// The sm90 backward for bf16, head dims up to 256.
#include "../sm90/backward_instance.cuh"

namespace tessera::cuda::sm90 {

extern constexpr BackwardBucket kBackwardBf16D256 = backward_bucket<Bf16, 256>();

}  // namespace tessera::cuda::sm90
