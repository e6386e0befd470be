// The CUDA side of a build without CUDA: no device, no rows. Compiled only when src/cuda is left out.
#include "append.hpp"
#include "device_info.hpp"
#include "kernel_entry.hpp"
#include "merge.hpp"
#include "quantize.hpp"

namespace tessera::core {

const DeviceInfo* cuda_info(int32_t, const char** reason) {
  if (reason != nullptr) *reason = "this build has no CUDA kernels";
  return nullptr;
}

int32_t cuda_device_count() { return 0; }

KernelList cuda_kernels() { return {}; }

int merge_cuda(const tessera_merge_args&, const tessera_exec*, bool, tessera_status*) { return TESSERA_UNSUPPORTED; }

int run_append_cuda(const Problem&, const tessera_tensors&, const Append&, void*, tessera_status*) {
  return TESSERA_UNSUPPORTED;
}
int check_append_cuda(const Problem&, const tessera_append_args&, tessera_status*) { return TESSERA_UNSUPPORTED; }
int prepare_append_cuda(int32_t, tessera_status*) { return TESSERA_UNSUPPORTED; }

int run_quantize_cuda(const Quantize&, void*, tessera_status*) { return TESSERA_UNSUPPORTED; }
int check_quantize_cuda(const Quantize&, tessera_status*) { return TESSERA_UNSUPPORTED; }

int check_metadata_cuda(const Plan&, const tessera_tensors&, const tessera_exec*, tessera_status*) {
  return TESSERA_UNSUPPORTED;
}

}  // namespace tessera::core
