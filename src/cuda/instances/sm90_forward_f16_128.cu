// The sm90 forward for f16, head dims up to 128.
#include "../sm90/forward_instance.cuh"

namespace tessera::cuda::sm90 {

extern constexpr Bucket kF16D128 = bucket<F16, 128, 128>();

}  // namespace tessera::cuda::sm90
