// The sm90 forward for f16, head dims up to 96.
#include "../sm90/forward_instance.cuh"

namespace tessera::cuda::sm90 {

extern constexpr Bucket kF16D96 = bucket<F16, 96, 96>();

}  // namespace tessera::cuda::sm90
