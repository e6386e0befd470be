// The ordered list of CUDA kernels, fastest first. What only e4m3 queries are for stands behind the others: no other
// row takes them, and a message has room for the reasons of a few rows. Ablations, where they are built, stand last.
#include "kernels.hpp"

#if TESSERA_ABLATIONS
#include <vector>

#include "ablations/rows.hpp"
#endif

namespace tessera::core {

KernelList cuda_kernels() {
  static const KernelEntry kKernels[] = {cuda::sm80::kDecode,   cuda::sm90::kForward,  cuda::sm80::kForward,
                                         cuda::sm90::kBackward, cuda::sm80::kBackward, cuda::sm90::kForwardFp8};
#if TESSERA_ABLATIONS
  static const std::vector<KernelEntry> kAll = [] {
    std::vector<KernelEntry> all;
    for (const KernelList list : {KernelList(kKernels), cuda::ablations()})
      all.insert(all.end(), list.begin(), list.end());
    return all;
  }();
  return kAll;
#else
  return kKernels;
#endif
}

}  // namespace tessera::core
