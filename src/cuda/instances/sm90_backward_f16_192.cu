// The sm90 backward for f16, head dims up to 192.
#include "../sm90/backward_instance.cuh"

namespace tessera::cuda::sm90 {

extern constexpr BackwardBucket kBackwardF16D192 = backward_bucket<F16, 192>();

}  // namespace tessera::cuda::sm90
