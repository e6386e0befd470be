// The sm90 backward for bf16, head dims up to 192.
#include "../sm90/backward_instance.cuh"

namespace tessera::cuda::sm90 {

extern constexpr BackwardBucket kBackwardBf16D192 = backward_bucket<Bf16, 192>();

}  // namespace tessera::cuda::sm90
