// A call's operands on CUDA device 0: the storages that it points into, mirrored with their canaries, and its pointers
// there.
#pragma once

#include "baselines/device_memory.hpp"
#include "support.hpp"

namespace tessera::test {

struct DeviceCall {
  // Copies nothing: mirror.upload() and mirror.download() do.
  explicit DeviceCall(const tessera_tensors& host, const void* workspace = nullptr);
  DeviceCall(const DeviceCall&) = delete;
  DeviceCall& operator=(const DeviceCall&) = delete;

  baselines::Mirror mirror;
  tessera_tensors tensors;     // those of the device
  tessera_append_args append;  // what tensors.append points at, where the host's does
};

}  // namespace tessera::test
