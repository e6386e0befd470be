// The instruction set that a CPU row with several builds runs: the machine's, at most the problem's isa=.
#pragma once

#include <algorithm>

#include "kernel_entry.hpp"

namespace tessera::baselines {

inline core::Isa capped_isa(const core::Problem& problem, const core::DeviceInfo& device) {
  const auto cap = static_cast<core::Isa>(problem.isa);
  if (device.isa == core::Isa::neon) return cap == core::Isa::portable ? cap : device.isa;
  if (problem.isa == TESSERA_ISA_AUTO || cap == core::Isa::neon) return device.isa;
  return std::min(cap, device.isa);
}

}  // namespace tessera::baselines
