// The sm80 decode for f16 queries over caches of the same type.
#include "../sm80/decode_instance.cuh"

namespace tessera::cuda::sm80 {

extern constexpr DecodeBuckets kDecodeF16 = decode_buckets<F16, PlainCache>();

}  // namespace tessera::cuda::sm80
