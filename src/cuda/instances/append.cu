// The kernel that appends.
#include "../append.cuh"
#include "../launch.hpp"

namespace tessera::cuda {

cudaError_t prepare_append() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, append_kernel);
}

cudaError_t launch_append(const AppendParams& params, uint32_t blocks, cudaStream_t stream) {
  void* arguments[] = {const_cast<AppendParams*>(&params)};
  return cudaLaunchKernel(append_kernel, dim3(blocks), dim3(kAppendThreads), arguments, 0, stream);
}

}  // namespace tessera::cuda
