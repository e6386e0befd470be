// The merge of split states for both output types.
#include "../combine.cuh"
#include "../launch.hpp"

namespace tessera::cuda {

uint64_t combine_blocks(const ForwardParams& params) {
  return uint64_t{params.schedule.head_batches} *
         static_cast<uint64_t>((params.seqlen_q + kCombineRows - 1) / kCombineRows);
}

cudaError_t launch_combine(const ForwardParams& partial, const ForwardParams& final_params, bool bf16,
                           cudaStream_t stream) {
  void* arguments[] = {const_cast<ForwardParams*>(&partial), const_cast<ForwardParams*>(&final_params)};
  const void* kernel =
      bf16 ? reinterpret_cast<const void*>(combine_kernel<Bf16>) : reinterpret_cast<const void*>(combine_kernel<F16>);
  return cudaLaunchKernel(kernel, dim3(static_cast<uint32_t>(combine_blocks(final_params))), dim3(kCombineRows * 32),
                          arguments, 0, stream);
}

}  // namespace tessera::cuda
