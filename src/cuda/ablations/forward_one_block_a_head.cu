// The portable forward with one block a head.
#include "../sm80/forward_instance.cuh"
#include "rows.hpp"
#include "shapes.hpp"

namespace tessera::cuda::sm80 {

extern constexpr AblatedInstances kWholeHead{
    ForwardKernel<Bf16, WholeHead<ForwardConfig<64, ScoreKind::plain>>, ScoreKind::plain>::instance(),
    ForwardKernel<Bf16, WholeHead<ForwardConfig<128, ScoreKind::plain>>, ScoreKind::plain>::instance()};

}  // namespace tessera::cuda::sm80
