// The sm80 forward for f16, head dims up to 128.
#include "../sm80/forward_instance.cuh"

namespace tessera::cuda::sm80 {

extern constexpr ForwardPair kForwardF16D128 = forward_pair<F16, 128>();

}  // namespace tessera::cuda::sm80
