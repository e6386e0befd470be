// What this machine has, and which rows of the lists it runs natively, emulated or not at all.
#pragma once

#include <string>

#include "kernel_entry.hpp"

namespace tessera::core {

// In words or as one JSON object; `extra` are rows besides the library's (baselines).
std::string describe_devices(KernelList extra, bool json);

}  // namespace tessera::core
