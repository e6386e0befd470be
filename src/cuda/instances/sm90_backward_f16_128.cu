// The sm90 backward for f16, head dims up to 128.
#include "../sm90/backward_instance.cuh"

namespace tessera::cuda::sm90 {

extern constexpr BackwardBucket kBackwardF16D128 = backward_bucket<F16, 128>();

}  // namespace tessera::cuda::sm90
