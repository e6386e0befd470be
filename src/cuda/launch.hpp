// The compiled kernels that serve every architecture as host code sees them; those of one architecture are in its own
// launch.hpp. All are defined in instances/.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "append_params.hpp"
#include "backward_params.hpp"
#include "forward_params.hpp"
#include "quantize_params.hpp"
#include "tessera/tessera.h"

namespace tessera::cuda {

// How the sums of dq lie: columns (a head-dim bucket), and the form of the fragments.
struct DqSums {
  int32_t dim;
  bool transposed;  // Hopper's, with dim 64, 128, 192 or 256
};

// Before and after the main kernel of a backward pass; `blocks`: of kRowTile rows.
cudaError_t launch_preprocess(const BackwardParams& params, bool bf16, const DqSums& sums, uint32_t blocks,
                              cudaStream_t stream);
cudaError_t launch_postprocess(const BackwardParams& params, bool bf16, const DqSums& sums, uint32_t blocks,
                               cudaStream_t stream);
cudaError_t launch_sum_sinks(const BackwardParams& params, cudaStream_t stream);
cudaError_t prepare_backward_rows(bool bf16, const DqSums& sums);  // all three, on the current device

// Merges the partial states of a split forward, in order, with sinks: final_params' o and lse from `partial`'s.
cudaError_t launch_combine(const ForwardParams& partial, const ForwardParams& final_params, bool bf16,
                           cudaStream_t stream);
uint64_t combine_blocks(const ForwardParams& params);
cudaError_t prepare_combine(bool bf16);  // on the current device

// tessera_merge and tessera_merge_backward, for at least one row.
cudaError_t launch_merge(const tessera_merge_args& args, bool backward, cudaStream_t stream);

// New rows into a cache, for at least one block.
cudaError_t launch_append(const AppendParams& params, uint32_t blocks, cudaStream_t stream);
cudaError_t prepare_append();  // on the current device

// tessera_quantize. Of `params` what the cut decides is filled in by the launches.
cudaError_t launch_quantize(const QuantizeParams& params, const QuantizeCut& cut, cudaStream_t stream);

}  // namespace tessera::cuda
