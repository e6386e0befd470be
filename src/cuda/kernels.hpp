// The rows of the CUDA list, each defined beside its planning.
#pragma once

#include "kernel_entry.hpp"

namespace tessera::cuda {

namespace sm80 {
extern const core::KernelEntry kDecode, kForward, kBackward;
}
namespace sm90 {
extern const core::KernelEntry kForward, kForwardFp8, kBackward;
}

}  // namespace tessera::cuda
