// The sm90 forward for f16, head dims up to 256.
#include "../sm90/forward_instance.cuh"

namespace tessera::cuda::sm90 {

extern constexpr Bucket kF16D256 = bucket<F16, 256, 256>();

}  // namespace tessera::cuda::sm90
