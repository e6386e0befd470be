// The merge of states and its gradient, in float and in double.
#include "../launch.hpp"
#include "../merge.cuh"

namespace tessera::cuda {

cudaError_t launch_merge(const tessera_merge_args& args, bool backward, cudaStream_t stream) {
  const MergeRows rows{args.seqlen_q, args.heads, args.batch * args.seqlen_q * args.heads};
  constexpr int64_t kMostBlocks = 1 << 20;  // the kernels stride over the rest
  const int64_t blocks = (rows.count + kMergeWarps - 1) / kMergeWarps;
  void* arguments[] = {const_cast<tessera_merge_args*>(&args), const_cast<MergeRows*>(&rows)};
  using Kernel = void (*)(tessera_merge_args, MergeRows);
  const Kernel kernels[2][2] = {{merge_kernel<float>, merge_kernel<double>},
                                {merge_backward_kernel<float>, merge_backward_kernel<double>}};
  return cudaLaunchKernel(kernels[backward][args.dtype == TESSERA_F64],
                          dim3(static_cast<uint32_t>(blocks < kMostBlocks ? blocks : kMostBlocks)),
                          dim3(kMergeWarps * 32), arguments, 0, stream);
}

}  // namespace tessera::cuda
