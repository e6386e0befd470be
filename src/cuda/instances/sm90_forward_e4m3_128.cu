// The sm90 forward for e4m3, head dims up to 128.
#include "../sm90/fp8_instance.cuh"

namespace tessera::cuda::sm90 {

extern constexpr Instance kE4m3D128 = Fp8Kernel<Fp8Config<128>::Plain>::instance();

}  // namespace tessera::cuda::sm90
