// The sm90 forward for f16, head dims up to 192.
#include "../sm90/forward_instance.cuh"

namespace tessera::cuda::sm90 {

extern constexpr Bucket kF16D192 = bucket<F16, 192, 192>();

}  // namespace tessera::cuda::sm90
