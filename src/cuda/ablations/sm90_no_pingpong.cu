// The sm90 forward without turns.
#include "sm90_instance.cuh"

namespace tessera::cuda::sm90 {

extern constexpr AblatedBuckets kNoTurns = ablated_buckets<NoTurns>();

}  // namespace tessera::cuda::sm90
