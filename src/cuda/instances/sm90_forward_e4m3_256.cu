// The sm90 forward for e4m3, head dims up to 256.
#include "../sm90/fp8_instance.cuh"

namespace tessera::cuda::sm90 {

extern constexpr Instance kE4m3D256 = Fp8Kernel<Fp8Config<256>::Plain>::instance();

}  // namespace tessera::cuda::sm90
