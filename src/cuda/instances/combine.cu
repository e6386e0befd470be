// The merge of split states for both output types.
#include "../combine.cuh"
#include "../launch.hpp"

namespace tessera::cuda {

uint64_t combine_blocks(const ForwardParams& params) {
  return uint64_t{params.schedule.head_batches} *
         static_cast<uint64_t>((params.seqlen_q + kCombineRows - 1) / kCombineRows);
}

namespace {

using CombineKernel = void (*)(ForwardParams, ForwardParams);

CombineKernel combine_function(bool bf16) { return bf16 ? combine_kernel<Bf16> : combine_kernel<F16>; }

}  // namespace

cudaError_t prepare_combine(bool bf16) {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, combine_function(bf16));
}

cudaError_t launch_combine(const ForwardParams& partial, const ForwardParams& final_params, bool bf16,
                           cudaStream_t stream) {
  void* arguments[] = {const_cast<ForwardParams*>(&partial), const_cast<ForwardParams*>(&final_params)};
  return cudaLaunchKernel(combine_function(bf16), dim3(static_cast<uint32_t>(combine_blocks(final_params))),
                          dim3(kCombineRows * 32), arguments, 0, stream);
}

}  // namespace tessera::cuda
