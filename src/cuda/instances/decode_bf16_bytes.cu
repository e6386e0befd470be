// The sm80 decode for bf16 queries over caches of int8 and e4m3.
#include "../sm80/decode_instance.cuh"

namespace tessera::cuda::sm80 {

extern constexpr DecodeBuckets kDecodeBf16Int8 = decode_buckets<Bf16, ByteCache<ByteType::int8>>();
extern constexpr DecodeBuckets kDecodeBf16E4m3 = decode_buckets<Bf16, ByteCache<ByteType::e4m3>>();

}  // namespace tessera::cuda::sm80
