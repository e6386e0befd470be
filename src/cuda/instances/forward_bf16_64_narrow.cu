// The sm80 forward for bf16, head dims up to 64, for compute capability 12.0 and later.
#include "../sm80/forward_instance.cuh"

namespace tessera::cuda::sm80 {

extern constexpr ForwardPair kForwardBf16D64Narrow = forward_pair<Bf16, 64, NarrowConfig64>();

}  // namespace tessera::cuda::sm80
