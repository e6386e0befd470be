// The sm90 forward without a producer. Head dim 128 alone: with three warpgroups at 64 a consumer has no registers left
// to copy with, and an H200 gave infinities.
#include "sm90_instance.cuh"

namespace tessera::cuda::sm90 {

namespace {
constexpr Bucket kOnly128 = ablated_bucket<NoProducer, 128>();
}
extern constexpr AblatedBuckets kNoProducer = {kOnly128, kOnly128};

}  // namespace tessera::cuda::sm90
