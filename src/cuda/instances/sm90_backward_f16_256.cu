// The sm90 backward for f16, head dims up to 256.
#include "../sm90/backward_instance.cuh"

namespace tessera::cuda::sm90 {

extern constexpr BackwardBucket kBackwardF16D256 = backward_bucket<F16, 256>();

}  // namespace tessera::cuda::sm90
