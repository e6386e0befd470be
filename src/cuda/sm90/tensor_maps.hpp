// Tensor maps of q, k and v for TMA, encoded on the host at every run, since plans hold no pointers.
#pragma once

#include <cuda_runtime_api.h>

#include "kernel_entry.hpp"
#include "params.hpp"

namespace tessera::cuda::sm90 {

// A tensor of 16-bit elements or of e4m3 as TMA sees it; dimension 0 is contiguous. Strides in elements.
struct TensorView {
  const void* data;
  int32_t rank;
  int64_t extent[5], stride[5];
  int32_t box[5];
};

// Columns lie swizzled in spans of `span` bytes (128, 64 or 32), what is outside reads as zero. A tensor without
// elements leaves the map as it is: no copy uses it.
cudaError_t encode_tensor_map(const TensorView& view, int32_t dtype, int32_t span, CUtensorMap* map);

// Strides of q, k, v and in backward d_o that no tensor map takes.
core::Refusal refuse_map_strides(const core::Problem& p);

// Finds the driver's encoder; once, when a plan is made.
cudaError_t load_encoder();

}  // namespace tessera::cuda::sm90
