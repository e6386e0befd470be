// The sm90 forward with lazy rescaling.
#include "sm90_instance.cuh"

namespace tessera::cuda::sm90 {

extern constexpr AblatedBuckets kOtherRescale = ablated_buckets<OtherRescale>();

}  // namespace tessera::cuda::sm90
