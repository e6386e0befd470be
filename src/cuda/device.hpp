// The CUDA side of a run: the plan's device made current and the caller's restored, and errors of the runtime as a
// status.
// Invariant: an error that was pending before a call is still pending after it and is never reported as ours; an error
// of ours that the runtime would keep pending is taken back where nothing was pending before.
#pragma once

#include <cuda_runtime_api.h>

#include "status.hpp"

namespace tessera::cuda {

class DeviceScope {
 public:
  explicit DeviceScope(int device) : pending_(cudaPeekAtLastError()) {
    error_ = cudaGetDevice(&previous_);
    if (error_ == cudaSuccess && previous_ != device) {
      error_ = cudaSetDevice(device);
      restore_ = error_ == cudaSuccess;
    }
  }
  ~DeviceScope() {
    if (restore_) cudaSetDevice(previous_);
    if (failed_ && pending_ == cudaSuccess) cudaGetLastError();
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  cudaError_t error() const { return error_; }
  // The status of `error`, met while doing `what` ("launch of cuda.sm80.forward").
  int finish(cudaError_t error, const char* what, tessera_status* status) {
    if (error == cudaSuccess) return TESSERA_OK;
    failed_ = true;
    const int code = error == cudaErrorMemoryAllocation ? TESSERA_OUT_OF_MEMORY : TESSERA_DEVICE_ERROR;
    return core::fail(status, code, "%s: %s (%s)", what, cudaGetErrorString(error), cudaGetErrorName(error));
  }

 private:
  cudaError_t pending_, error_ = cudaSuccess;
  int previous_ = 0;
  bool restore_ = false, failed_ = false;
};

}  // namespace tessera::cuda
