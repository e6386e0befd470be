// The ordered list of CUDA kernels, fastest first. What only e4m3 queries are for stands last: no other row takes them,
// and a message has room for the reasons of a few rows.
#include "kernels.hpp"

namespace tessera::core {

KernelList cuda_kernels() {
  static const KernelEntry kKernels[] = {cuda::sm80::kDecode,   cuda::sm90::kForward,  cuda::sm80::kForward,
                                         cuda::sm90::kBackward, cuda::sm80::kBackward, cuda::sm90::kForwardFp8};
  return kKernels;
}

}  // namespace tessera::core
