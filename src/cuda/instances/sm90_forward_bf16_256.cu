// The sm90 forward for bf16, head dims up to 256.
#include "../sm90/forward_instance.cuh"

namespace tessera::cuda::sm90 {

extern constexpr Bucket kBf16D256 = bucket<Bf16, 256, 256>();

}  // namespace tessera::cuda::sm90
