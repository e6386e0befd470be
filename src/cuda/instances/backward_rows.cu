// The kernels before and after a backward pass's main kernel, for both element types and every head-dim bucket.
#include "../launch.hpp"
#include "../preprocess.cuh"

namespace tessera::cuda {
namespace {

using PreprocessKernel = void (*)(BackwardParams, int);
using RowsKernel = void (*)(BackwardParams);

PreprocessKernel preprocess_function(bool bf16) { return bf16 ? preprocess_kernel<Bf16> : preprocess_kernel<F16>; }

template <class Element, bool kTransposed>
RowsKernel postprocess_of(int32_t dim) {
  switch (dim) {
    case 64:
      return postprocess_kernel<Element, 64, kTransposed>;
    case 128:
      return postprocess_kernel<Element, 128, kTransposed>;
    case 192:
      return postprocess_kernel<Element, 192, kTransposed>;
    default:
      return postprocess_kernel<Element, 256, kTransposed>;
  }
}
template <class Element>
RowsKernel postprocess_of(const DqSums& sums) {
  if (sums.transposed) return postprocess_of<Element, true>(sums.dim);
  // A bucket of cuda.sm80.backward alone.
  return sums.dim == 96 ? postprocess_kernel<Element, 96, false> : postprocess_of<Element, false>(sums.dim);
}
RowsKernel postprocess_function(bool bf16, const DqSums& sums) {
  return bf16 ? postprocess_of<Bf16>(sums) : postprocess_of<F16>(sums);
}

}  // namespace

cudaError_t launch_preprocess(const BackwardParams& params, bool bf16, const DqSums& sums, uint32_t blocks,
                              cudaStream_t stream) {
  void* arguments[] = {const_cast<BackwardParams*>(&params), const_cast<int32_t*>(&sums.dim)};
  return cudaLaunchKernel(preprocess_function(bf16), dim3(blocks), dim3(kRowThreads), arguments, 0, stream);
}

cudaError_t launch_postprocess(const BackwardParams& params, bool bf16, const DqSums& sums, uint32_t blocks,
                               cudaStream_t stream) {
  void* arguments[] = {const_cast<BackwardParams*>(&params)};
  return cudaLaunchKernel(postprocess_function(bf16, sums), dim3(blocks), dim3(kRowThreads), arguments, 0, stream);
}

cudaError_t launch_sum_sinks(const BackwardParams& params, cudaStream_t stream) {
  void* arguments[] = {const_cast<BackwardParams*>(&params)};
  const RowsKernel kernel = sum_sinks_kernel;
  return cudaLaunchKernel(kernel, dim3(static_cast<uint32_t>(params.f.heads_q)), dim3(32), arguments, 0, stream);
}

cudaError_t prepare_backward_rows(bool bf16, const DqSums& sums) {
  cudaFuncAttributes attributes;
  cudaError_t error = cudaFuncGetAttributes(&attributes, preprocess_function(bf16));
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, postprocess_function(bf16, sums));
  const RowsKernel sinks = sum_sinks_kernel;
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, sinks);
  return error;
}

}  // namespace tessera::cuda
