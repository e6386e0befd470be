// The sm80 forward for bf16, head dims up to 128.
#include "../sm80/forward_instance.cuh"

namespace tessera::cuda::sm80 {

extern constexpr ForwardPair kForwardBf16D128 = forward_pair<Bf16, 128>();

}  // namespace tessera::cuda::sm80
