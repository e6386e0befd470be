// The sm90 forward for bf16, head dims up to 192 for q and k, up to 128 for v.
#include "../sm90/forward_instance.cuh"

namespace tessera::cuda::sm90 {

extern constexpr Bucket kBf16D192V128 = bucket<Bf16, 192, 128>();

}  // namespace tessera::cuda::sm90
