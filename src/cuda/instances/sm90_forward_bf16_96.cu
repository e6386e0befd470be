// The sm90 forward for bf16, head dims up to 96.
#include "../sm90/forward_instance.cuh"

namespace tessera::cuda::sm90 {

extern constexpr Bucket kBf16D96 = bucket<Bf16, 96, 96>();

}  // namespace tessera::cuda::sm90
