// The ordered list of CUDA kernels, fastest first.
#include "kernels.hpp"

namespace tessera::core {

KernelList cuda_kernels() {
  static const KernelEntry kKernels[] = {cuda::sm80::kDecode, cuda::sm90::kForward, cuda::sm80::kForward,
                                         cuda::sm90::kBackward, cuda::sm80::kBackward};
  return kKernels;
}

}  // namespace tessera::core
