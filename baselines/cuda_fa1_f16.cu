// cuda.fa1 for f16: every head-dim bucket and budget.
#include "cuda_fa1.cuh"

namespace tessera::baselines {

extern constexpr Fa1Instances kFa1F16 = fa1::instances<cuda::F16>();

}  // namespace tessera::baselines
