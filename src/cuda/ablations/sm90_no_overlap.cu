// The sm90 forward without the overlap inside a warpgroup.
#include "sm90_instance.cuh"

namespace tessera::cuda::sm90 {

extern constexpr AblatedBuckets kNoOverlap = ablated_buckets<NoOverlap>();

}  // namespace tessera::cuda::sm90
