// The sm90 forward for bf16, head dims up to 192.
#include "../sm90/forward_instance.cuh"

namespace tessera::cuda::sm90 {

extern constexpr Bucket kBf16D192 = bucket<Bf16, 192, 192>();

}  // namespace tessera::cuda::sm90
