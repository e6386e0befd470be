// The sm80 forward for f16, head dims up to 256.
#include "../sm80/forward_instance.cuh"

namespace tessera::cuda::sm80 {

extern constexpr ForwardPair kForwardF16D256 = forward_pair<F16, 256>();

}  // namespace tessera::cuda::sm80
