// The sm90 forward without turns and without the overlap inside a warpgroup.
#include "sm90_instance.cuh"

namespace tessera::cuda::sm90 {

template <class Base>
using NoTurnsNoOverlap = NoTurns<NoOverlap<Base>>;
extern constexpr AblatedBuckets kNoTurnsNoOverlap = ablated_buckets<NoTurnsNoOverlap>();

}  // namespace tessera::cuda::sm90
