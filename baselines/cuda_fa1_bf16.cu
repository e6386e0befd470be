// cuda.fa1 for bf16: every head-dim bucket and budget.
#include "cuda_fa1.cuh"

namespace tessera::baselines {

extern constexpr Fa1Instances kFa1Bf16 = fa1::instances<cuda::Bf16>();

}  // namespace tessera::baselines
