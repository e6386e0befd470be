// The weights of any number of states in their merge, shared by the CPU's and the GPU's merges of states.
#pragma once

#include "semantics.hpp"

namespace tessera::core {

// The merge of any number of states, in order; lse(s) is that of state s. Weights are taken from the largest lse, as
// merge_weights takes them. Empty states weigh 0; where there is no other the sum is 0 and the merged state is empty.
template <class T>
struct MergedStates {
  T highest, sum;
  // To be divided by `sum`.
  TESSERA_HD T weight(T lse) const {
    return lse == -T(INFINITY) ? T(0) : (lse == highest ? T(1) : T(::exp(lse - highest)));
  }
  TESSERA_HD T lse() const { return sum == T(0) ? -T(INFINITY) : T(highest + T(::log(sum))); }
};
template <class T, class Lse>
TESSERA_HD MergedStates<T> merge_states(int64_t states, const Lse& lse) {
  MergedStates<T> merged{-T(INFINITY), T(0)};
  for (int64_t s = 0; s < states; ++s) merged.highest = lse(s) > merged.highest ? lse(s) : merged.highest;
  for (int64_t s = 0; s < states; ++s) merged.sum += merged.weight(lse(s));
  return merged;
}

}  // namespace tessera::core
