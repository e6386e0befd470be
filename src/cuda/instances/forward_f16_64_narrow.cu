// The sm80 forward for f16, head dims up to 64, for compute capability 12.0 and later.
#include "../sm80/forward_instance.cuh"

namespace tessera::cuda::sm80 {

extern constexpr ForwardPair kForwardF16D64Narrow = forward_pair<F16, 64, NarrowConfig64>();

}  // namespace tessera::cuda::sm80
