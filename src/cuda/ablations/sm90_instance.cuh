// An ablation of the sm90 forward: the shapes of both buckets under `Step`.
#pragma once

#include "../sm90/forward_instance.cuh"
#include "rows.hpp"
#include "shapes.hpp"

namespace tessera::cuda::sm90 {

template <template <class> class Step, int kDim>
constexpr Bucket ablated_bucket() {
  using Shapes = ForwardConfig<kDim, kDim>;
  constexpr Instance plain = ForwardKernel<Bf16, Step<typename Shapes::Plain>, ScoreKind::plain>::instance();
  constexpr Instance wide = ForwardKernel<Bf16, Step<typename Shapes::Wide>, ScoreKind::plain>::instance();
  // No ablation takes general scores or problems of the brief tile, and few rows are not what they are measured on.
  return {plain, wide, wide, plain, plain, Shapes::kWideKeys, Shapes::kBriefKeys, Shapes::kBriefWindow};
}

template <template <class> class Step>
constexpr AblatedBuckets ablated_buckets() {
  return {ablated_bucket<Step, 64>(), ablated_bucket<Step, 128>()};
}

}  // namespace tessera::cuda::sm90
