// The shapes of the forward kernels with one step taken back each. What a step gave is the time of such a row beside
// the full kernel's.
#pragma once

#include "../sm80/config.hpp"
#include "../sm90/config.hpp"

namespace tessera::cuda {

namespace sm90 {

// Warpgroups issue their products when they like.
template <class Base>
struct NoTurns : Base {
  static constexpr bool kTurns = false;
};
// A softmax begins when both products of its warpgroup have ended.
template <class Base>
struct NoOverlap : Base {
  static constexpr bool kOverlaps = false;
};
// Lazily where the full kernel rescales at every step, and the other way round.
template <class Base>
struct OtherRescale : Base {
  static constexpr bool kLazy = !Base::kLazy;
};
// A warp of the consumers copies K and V, at most a tile ahead, and Q when it begins its tile; the scheduler keeps its
// warp. That warp does no more than whole dense rows need.
template <class Base>
struct NoProducer : Base {
  static constexpr bool kProduces = false, kDense = true;
};

}  // namespace sm90

namespace sm80 {

template <class Base>
struct WholeHead : Base {
  static constexpr bool kWholeHead = true;
};
template <class Base>
struct Normalised : Base {
  static constexpr bool kNormalises = true;
};
// FlashAttention-1's warps. Their partial accumulators fill shared memory, so a tile has 32 rows where the full
// kernel's has 128.
template <int kHeadDim>
struct KeyWarps;
template <>
struct KeyWarps<64> : ForwardShape<64, 4, 2, 128, 2, 2, 4> {};
template <>
struct KeyWarps<128> : ForwardShape<128, 4, 2, 64, 2, 1, 4> {};

}  // namespace sm80

}  // namespace tessera::cuda
