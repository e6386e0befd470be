// The kernels of a quantisation.
#include "../launch.hpp"
#include "../quantize.cuh"

namespace tessera::cuda {
namespace {

using Kernel = void (*)(QuantizeParams);

cudaError_t launch(Kernel kernel, int64_t blocks, size_t shared_bytes, const QuantizeParams& params,
                   cudaStream_t stream) {
  void* arguments[] = {const_cast<QuantizeParams*>(&params)};
  return cudaLaunchKernel(kernel, dim3(static_cast<uint32_t>(blocks)), dim3(kQuantizeThreads), arguments, shared_bytes,
                          stream);
}

}  // namespace

cudaError_t launch_quantize(const QuantizeParams& p, bool own_scales, cudaStream_t stream) {
  const int64_t blocks = int64_t{p.batch} * p.heads * p.tiles, cells = p.cells[0] * p.cells[1] * p.cells[2];
  constexpr int64_t kMostBlocks = 1 << 20;  // the kernels of cells stride over the rest
  const int64_t wanted = (cells + kQuantizeThreads - 1) / kQuantizeThreads;
  const int64_t cell_blocks = wanted < kMostBlocks ? wanted : kMostBlocks;
  const size_t shared_bytes = p.ordered ? static_cast<size_t>(p.dim) * kQuantizePitch : 0;
  const int64_t chunks = (p.dim + kQuantizeMeanChannels - 1) / kQuantizeMeanChannels;
  cudaError_t error = cudaSuccess;
  if (p.mean != nullptr && p.batch > 0) error = launch(quantize_means_kernel, chunks * p.heads * p.batch, 0, p, stream);
  // Cells without a row get the scale of nothing, 1.
  const bool find = p.scale != nullptr && !own_scales;
  const bool cleared = cells > 0 && (find || (p.scale != nullptr && (p.cu_seqlens != nullptr || blocks == 0)));
  if (error == cudaSuccess && cleared) error = launch(quantize_cells_kernel<false>, cell_blocks, 0, p, stream);
  if (error == cudaSuccess && find && blocks > 0) error = launch(quantize_largest_kernel, blocks, 0, p, stream);
  if (error == cudaSuccess && cleared) error = launch(quantize_cells_kernel<true>, cell_blocks, 0, p, stream);
  if (error != cudaSuccess || blocks == 0) return error;
  return launch(own_scales ? quantize_store_kernel<true> : quantize_store_kernel<false>, blocks, shared_bytes, p,
                stream);
}

}  // namespace tessera::cuda
