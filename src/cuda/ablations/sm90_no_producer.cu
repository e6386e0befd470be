// The sm90 forward without a producer.
#include "sm90_instance.cuh"

namespace tessera::cuda::sm90 {

extern constexpr AblatedBuckets kNoProducer = ablated_buckets<NoProducer>();

}  // namespace tessera::cuda::sm90
