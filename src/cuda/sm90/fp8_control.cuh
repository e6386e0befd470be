// The barriers of the e4m3 forward: those of the 16-bit one, with V released by the warps that transpose it, and V^T
// between these, or the same warps as they copy it, and the consumers.
#pragma once

#include "control.cuh"

namespace tessera::cuda::sm90 {

template <class Config>
struct Fp8Control : Control<Config> {
  uint64_t transposed_full[Config::kStages], transposed_empty[Config::kStages];

  __device__ void init() {
    for (uint64_t& barrier : transposed_full) ::cuda::ptx::mbarrier_init(&barrier, Config::kTransposers);
    for (uint64_t& barrier : transposed_empty) ::cuda::ptx::mbarrier_init(&barrier, 4 * Config::kGroups);
    Control<Config>::init();
  }
};

}  // namespace tessera::cuda::sm90
