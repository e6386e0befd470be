// The sm90 forward for f16, head dims up to 64.
#include "../sm90/forward_instance.cuh"

namespace tessera::cuda::sm90 {

extern constexpr Bucket kF16D64 = bucket<F16, 64, 64>();

}  // namespace tessera::cuda::sm90
