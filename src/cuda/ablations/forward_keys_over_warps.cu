// The portable forward with keys split over warps.
#include "../sm80/forward_instance.cuh"
#include "rows.hpp"
#include "shapes.hpp"

namespace tessera::cuda::sm80 {

extern constexpr AblatedInstances kKeyWarps{ForwardKernel<Bf16, KeyWarps<64>, ScoreKind::plain>::instance(),
                                            ForwardKernel<Bf16, KeyWarps<128>, ScoreKind::plain>::instance()};

}  // namespace tessera::cuda::sm80
