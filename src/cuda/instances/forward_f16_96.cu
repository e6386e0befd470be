// The sm80 forward for f16, head dims up to 96.
#include "../sm80/forward_instance.cuh"

namespace tessera::cuda::sm80 {

extern constexpr ForwardPair kForwardF16D96 = forward_pair<F16, 96>();

}  // namespace tessera::cuda::sm80
