// What src/cuda/ptx/grid.cuh has, and launches with attributes: those of a stream do not overlap here.
#pragma once

#include <type_traits>

#include "emulator/device.hpp"

enum cudaLaunchAttributeID : int { cudaLaunchAttributeProgrammaticStreamSerialization = 6 };
union cudaLaunchAttributeValue {
  int programmaticStreamSerializationAllowed;
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  cudaLaunchAttributeValue val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

template <class... Parameters>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               std::type_identity_t<const std::remove_cv_t<Parameters>&>... arguments) {
  // What 9.0 brought.
  if (config->numAttrs != 0 && tessera::emulator::architecture() < 90) return cudaErrorInvalidValue;
  void* pointers[] = {const_cast<std::remove_cv_t<Parameters>*>(&arguments)...};
  return cudaLaunchKernel(kernel, config->gridDim, config->blockDim, pointers, config->dynamicSmemBytes,
                          config->stream);
}

namespace tessera::cuda::ptx {

inline void wait_for_grids_before() {}
inline void let_next_grid_begin() {}

}  // namespace tessera::cuda::ptx
