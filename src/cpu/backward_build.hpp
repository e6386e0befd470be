// The body of each instruction set's source: instantiates the backward kernel for its vectors.
#pragma once

#include "backward.hpp"
#include "bias_gradient.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

template <class V>
inline constexpr BackwardKernel::Functions kBackwardFunctions = {backward_task<V, VectorProducts<V>>,
                                                                 finish_queries<QueryGradients<V>>, bias_task<V>};

inline constexpr BackwardKernel kBackwardKernel = {F32x16::kRows,
                                                   F32x16::kLanes,
                                                   F64x8::kRows,
                                                   F64x8::kLanes,
                                                   kScoreStride,
                                                   kBackwardFunctions<F32x16>,
                                                   kBackwardFunctions<F64x8>};

}  // namespace tessera::cpu::TESSERA_CPU_ISA
