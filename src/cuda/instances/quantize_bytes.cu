// The kernels of a quantisation.
#include "../launch.hpp"
#include "../quantize.cuh"
#include "../quantize_held.cuh"

namespace tessera::cuda {
namespace {

using Kernel = void (*)(QuantizeParams);

struct Kernels {
  Kernel means, largest, store, store_own;
  int threads;
};

template <int32_t kFrom, bool kTurned>
Kernels held_kernels(const QuantizeParams& p) {
  return {quantize_means_kernel<kFrom>, quantize_held_largest_kernel<kFrom, kTurned>,
          quantize_held_store_kernel<kFrom, kTurned, false>, quantize_held_store_kernel<kFrom, kTurned, true>,
          p.dim / kHeldChannels * (kQuantizeRows / kHeldRows<kTurned>)};
}
template <int32_t kFrom>
Kernels held_kernels(const QuantizeParams& p) {
  return p.mean != nullptr || p.rotation > 0 ? held_kernels<kFrom, true>(p) : held_kernels<kFrom, false>(p);
}

Kernels kernels_of(const QuantizeParams& p) {
  if (!p.held)
    return {quantize_means_kernel<-1>, quantize_largest_kernel, quantize_store_kernel<false>,
            quantize_store_kernel<true>, kQuantizeThreads};
  if (p.x_dtype == TESSERA_F32) return held_kernels<TESSERA_F32>(p);
  return p.x_dtype == TESSERA_F16 ? held_kernels<TESSERA_F16>(p) : held_kernels<TESSERA_BF16>(p);
}

cudaError_t launch(Kernel kernel, int64_t blocks, int threads, size_t shared_bytes, const QuantizeParams& params,
                   cudaStream_t stream) {
  void* arguments[] = {const_cast<QuantizeParams*>(&params)};
  return cudaLaunchKernel(kernel, dim3(static_cast<uint32_t>(blocks)), dim3(static_cast<uint32_t>(threads)), arguments,
                          shared_bytes, stream);
}

}  // namespace

cudaError_t launch_quantize(const QuantizeParams& params, bool own_scales, cudaStream_t stream) {
  QuantizeParams p = params;
  const Kernels kernels = kernels_of(p);
  const int64_t blocks = int64_t{p.batch} * p.heads * p.tiles, cells = p.cells[0] * p.cells[1] * p.cells[2];
  cudaError_t error = cudaSuccess;
  if (p.mean != nullptr && p.batch > 0) {
    const int64_t chunks = (p.dim + kQuantizeMeanChannels - 1) / kQuantizeMeanChannels;
    error = launch(kernels.means, chunks * p.heads * p.batch, kQuantizeMeanThreads, 0, p, stream);
    p.reversed = true;
  }
  const bool find = p.scale != nullptr && !own_scales;
  if (error == cudaSuccess && cells > 0 && p.scale != nullptr && (find || blocks == 0)) {
    constexpr int64_t kMostBlocks = 1 << 20;  // the kernel strides over the rest
    const int64_t wanted = (cells + kQuantizeThreads - 1) / kQuantizeThreads;
    p.cell_value = blocks > 0 ? -0.0f : 1.0f;  // no magnitude yet, or the scale of nothing
    error = launch(quantize_cells_kernel, wanted < kMostBlocks ? wanted : kMostBlocks, kQuantizeThreads, 0, p, stream);
  }
  if (error != cudaSuccess || blocks == 0) return error;
  if (find) {
    error = launch(kernels.largest, blocks, kernels.threads, 0, p, stream);
    p.reversed = !p.reversed;
  }
  if (error != cudaSuccess) return error;
  const size_t shared_bytes = p.ordered ? static_cast<size_t>(p.dim) * (p.held ? kQuantizeRows : kQuantizePitch) : 0;
  return launch(own_scales ? kernels.store_own : kernels.store, blocks, kernels.threads, shared_bytes, p, stream);
}

}  // namespace tessera::cuda
