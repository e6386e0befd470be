// The sm80 decode for bf16 queries over caches of the same type.
#include "../sm80/decode_instance.cuh"

namespace tessera::cuda::sm80 {

extern constexpr DecodeBuckets kDecodeBf16 = decode_buckets<Bf16, PlainCache>();

}  // namespace tessera::cuda::sm80
