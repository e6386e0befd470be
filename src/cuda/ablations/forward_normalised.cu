// The portable forward with accumulators that are divided at every step.
#include "../sm80/forward_instance.cuh"
#include "rows.hpp"
#include "shapes.hpp"

namespace tessera::cuda::sm80 {

extern constexpr AblatedInstances kNormalised{
    ForwardKernel<Bf16, Normalised<ForwardConfig<64, ScoreKind::plain>>, ScoreKind::plain>::instance(),
    ForwardKernel<Bf16, Normalised<ForwardConfig<128, ScoreKind::plain>>, ScoreKind::plain>::instance()};

}  // namespace tessera::cuda::sm80
