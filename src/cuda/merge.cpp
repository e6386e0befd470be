// tessera_merge and tessera_merge_backward on operands of a CUDA device. src/merge.cpp has checked the arguments.
#include "merge.hpp"

#include "device.hpp"
#include "launch.hpp"

namespace tessera::core {

int merge_cuda(const tessera_merge_args& args, const tessera_exec* exec, bool backward, tessera_status* status) {
  cuda::DeviceScope scope(args.device);
  if (scope.error() != cudaSuccess) return scope.finish(scope.error(), "merge: making the device current", status);
  const auto stream = exec != nullptr ? static_cast<cudaStream_t>(exec->cuda_stream) : nullptr;
  const int code = scope.finish(cuda::launch_merge(args, backward, stream),
                                backward ? "merge_backward: launch" : "merge: launch", status);
  return code == TESSERA_OK ? succeed(status) : code;
}

}  // namespace tessera::core
